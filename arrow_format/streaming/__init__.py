"""Streams: buffered outputs, flushes, consumers and their leases."""
