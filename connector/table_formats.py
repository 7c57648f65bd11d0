"""Which sources are tables of Delta or Iceberg, by their classes.

Apart from :mod:`arrow_format.ingest.tables` because that loads the scans, and this imports nothing.
"""

from __future__ import annotations


def table_format(source: object) -> str | None:
    """Return ``delta`` or ``iceberg`` for a table of these, or a scan of one; None for others."""
    for kind in type(source).__mro__:
        package = kind.__module__.partition(".")[0]
        if (package, kind.__name__) == ("deltalake", "DeltaTable"):
            return "delta"
        if package == "pyiceberg" and kind.__name__ in ("Table", "DataScan"):
            return "iceberg"
    return None
