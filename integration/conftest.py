"""The session of the unit tests, for those integration tests that need no more."""

from tests.azure_server import azure
from tests.s3_server import s3
from tests.spark_session import pytest_collection_modifyitems, spark

__all__ = ["azure", "pytest_collection_modifyitems", "s3", "spark"]
