"""Joins and aggregations of kept shuffles, and one reader per subpartition."""
