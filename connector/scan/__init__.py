"""Plain files as input of map tasks, read as Spark would read them."""
