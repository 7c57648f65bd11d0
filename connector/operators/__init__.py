"""Spark jobs over kept shuffles: functions per subpartition, joins, aggregations."""
