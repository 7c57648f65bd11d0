"""Fixtures and hypothesis profiles; HYPOTHESIS_PROFILE chooses one."""

import os

from hypothesis import settings

from tests.support.azure_server import azure
from tests.support.s3_server import s3
from tests.support.spark_session import pytest_collection_modifyitems, spark

__all__ = ["azure", "pytest_collection_modifyitems", "s3", "spark"]

# No deadlines: the first call into pyarrow is slow, and test machines are shared.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile(
    "ci", deadline=None, max_examples=100, derandomize=True, database=None, print_blob=True
)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("nightly", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)
