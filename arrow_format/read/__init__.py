"""Reading: opening a version, planning, scheduled reads, decoded subpartitions."""
