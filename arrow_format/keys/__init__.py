"""Hashes, orders and ranges of keys, as in Spark: where a row belongs and what comes first."""
