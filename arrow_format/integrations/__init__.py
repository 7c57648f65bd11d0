"""Rows of a shuffle in other libraries: DuckDB, Polars, Dask, Ray Data and PyTorch."""
