"""Protocols across processes: write jobs, commits, merges, garbage collection."""
