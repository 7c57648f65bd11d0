"""Plain files as the source of a write, read as Spark would read them."""
