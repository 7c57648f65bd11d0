"""What tests need of Spark: those that an older version cannot pass are skipped, and say why."""

from __future__ import annotations

import pytest

from connector.spark_version import SPARK


def since(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Skip a test on a PySpark before a version, which lacks ``what``."""
    return pytest.mark.skipif(
        (major, minor) > SPARK, reason=f"{what}: PySpark {major}.{minor} and newer have it"
    )


ADMISSION_CONTROL = since(4, 2, "limits and the end of a batch, told to a stream's source")
TIMES = since(4, 1, "TIME")
ORC_INSTANTS = since(4, 2, "timestamps of ORC with a time zone")
ORC_TIMES = since(4, 2, "TIME of ORC")
