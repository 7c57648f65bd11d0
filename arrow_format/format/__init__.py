"""The bytes of format v1: packed chunks, the index file, totals, IPC messages."""
