"""The data source of Spark: batch and streaming readers and writers."""
