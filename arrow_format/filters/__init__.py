"""Filters: which rows a reader asks for, compared with rows and with their statistics."""
