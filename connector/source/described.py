"""A name for what a scan reads, so that Spark's UI and ``explain`` say it.

Spark shows a Python scan under the name of its format and nothing else: no path, no options. So a
read by :func:`connector.read_shuffle` goes through the same source under a name that says them.

A name only describes. Spark finds the source of a name when a DataFrame is executed for the first
time, without regard to upper and lower case, and the source registered last wins. Therefore what
identifies the rows travels with each DataFrame, as options: path, version, commit id and span. The
source under a name holds nothing but the options of the object store, since Spark shows those of a
DataFrame.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from pyspark.errors import AnalysisException

from connector.options.source import SECRET_PREFIX
from connector.source.data_source import ArrowShuffleDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.options import StorageOptions

MOST_CHARACTERS = 60
"""Of a list of subpartitions; the rest is left out."""

MOST_NAMES = 1_000
"""Descriptions that a session registers. Spark keeps each for as long as the session, in 2 kB."""

UNDESCRIBED = "arrow_shuffle read"
"""The name of what is read after that."""

_lock = threading.Lock()


def described_format(spark: SparkSession, shuffle: Shuffle, selection: str | None) -> str:
    """Return a name that says what is read, under which the session has the data source.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    shuffle
        What is read. The options of its storage travel inside the source.
    selection
        Subpartitions as the option has them, such as ``3,7-9``; None for all.
    """
    options = shuffle.storage.options
    described = describe(shuffle.path, shuffle.version, selection)
    if shuffle.span is not None:
        described += f" since {shuffle.span.start}"
    with _lock:
        names = _names_of(_session_id(spark))
        if len(names) >= MOST_NAMES and described.lower() not in names:
            described = UNDESCRIBED
        numbered = (described if i == 1 else f"{described} ({i})" for i in count(1))
        return next(name for name in numbered if _has(spark, names, name, options))


def _has(
    spark: SparkSession,
    names: dict[str, StorageOptions | None],
    name: str,
    options: StorageOptions,
) -> bool:
    """Whether a session reads with these options under a name; registers it where it is new."""
    key = name.lower()
    if key not in names:
        names[key] = options if _register(spark, name, options) else None
    return names[key] == options


def _register(spark: SparkSession, name: str, options: StorageOptions) -> bool:
    """Register the data source under a name; return whether Spark has taken it."""
    try:
        spark.dataSource.register(_source(name, options))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False  # Spark looks among the names of the active session, which is another one
    return True


def describe(path: str, version: int, selection: str | None) -> str:
    """Return the name of a scan: ``arrow_shuffle /path version 3 subpartitions 0-7``."""
    if selection is None:
        return f"arrow_shuffle {path} version {version}"
    if len(selection) > MOST_CHARACTERS:
        selection = selection[: selection.rindex(",", 0, MOST_CHARACTERS) + 1] + "..."
    return f"arrow_shuffle {path} version {version} subpartitions {selection}"


@lru_cache(100)
def _names_of(session_id: str) -> dict[str, StorageOptions | None]:
    """Return the names of a session, in small letters, with the options that each reads with.

    None are those of a name that Spark refused. A session that is forgotten here registers again.
    """
    del session_id
    return {}


def _session_id(spark: SparkSession) -> str:
    """Return the id of a session, of which there may be several objects in Python."""
    if hasattr(spark, "session_id"):  # Connect
        return str(spark.session_id)
    return str(spark._jsparkSession.sessionUUID())


def _source(named: str, options: StorageOptions) -> type[ArrowShuffleDataSource]:
    """Return the data source under a name, with the options of an object store."""

    class DescribedSource(ArrowShuffleDataSource):
        """The data source under this name."""

        hidden_options: ClassVar = {
            f"{SECRET_PREFIX}{name}": value for name, value in options.items()
        }

        @classmethod
        def name(cls) -> str:
            return named

    return DescribedSource
