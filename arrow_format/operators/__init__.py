"""Joins and aggregations of shuffles, and one reader per subpartition for functions of users."""
