"""Filters: questions about rows, bound to a schema, compared with rows and statistics."""
