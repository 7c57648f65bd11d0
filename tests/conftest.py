"""Fixtures and hypothesis profiles; HYPOTHESIS_PROFILE chooses one."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.one_jvm import OneJvm
from tests.support.azure_server import azure
from tests.support.exhaustive import choose, examples
from tests.support.gcs_server import gs
from tests.support.left_out import (
    mark_slow,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.support.s3_server import s3
from tests.support.small_log import small_log
from tests.support.spark_session import mark_spark, spark
from tests.support.store_server import no_metadata

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = [
    "azure",
    "gs",
    "no_metadata",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "s3",
    "small_log",
    "spark",
]

# No deadlines: the first call into pyarrow is slow, and test machines are shared. The same examples
# each time, so that a run means the same on every machine: `make explore` looks for others.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=examples(25, 200),
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=10)
settings.register_profile(
    "explore", settings.get_profile("default"), max_examples=200, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests, which no search for garbage is to go through, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a JVM or is slow; leave out what only a night tries."""
    mark_spark(items)
    choose(config, items)
    mark_slow(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneJvm | None:
    """Let one worker run all that needs a JVM, where each runs whole files."""
    return OneJvm(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt the tests that send it: a shell starts background jobs without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def no_flushes() -> Iterator[None]:
    """Let no test wait for the disk: none could see whether it flushed.

    Tests of what is flushed, and when, wrap this one; a power failure is simulated by what was not
    (:mod:`tests.support.system_calls`). The tests in ``integration`` flush.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses what is no open file, too
        yield
