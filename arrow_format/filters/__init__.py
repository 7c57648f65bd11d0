"""Filters: what a reader asks of rows, bound to a schema, compared with rows and with statistics."""
