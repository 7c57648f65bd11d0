"""Writing: the sort buffer, regions, chunks, map outputs, and merging files."""
