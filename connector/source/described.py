"""Formats named after what a scan reads, since Spark's UI and ``explain`` show only the format.

:func:`connector.read.frame_of_shuffle` registers the data source again under a name that contains
path, version, subpartitions and filter, and reads through that.

The name only describes. Spark resolves it when a DataFrame is first executed, ignoring case, and
the source registered last wins. So what identifies the rows (path, version, commit id, span,
filter) travels with each DataFrame, as options. The registered source holds only the options of the
object store, because Spark shows those of a DataFrame.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from pyspark.errors import AnalysisException

from connector.options.batch import SECRET_PREFIX
from connector.session import session_id
from connector.source.data_source import ArrowShuffleDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.options import StorageOptions

MOST_CHARACTERS = 60
"""Length at which a list of subpartitions is cut off in a name."""

MOST_FILTER_CHARACTERS = 120
"""Length at which a filter is cut off in a name."""

MOST_NAMES = 1_000
"""Names that a session registers. Spark keeps each as long as the session, in 5 kB."""

MOST_FRAMES = 100
"""Scans of a session that are kept for equal reads: a few kB each."""

UNDESCRIBED = "arrow_shuffle read"
"""The name of every scan after that."""

_lock = threading.Lock()


def described_format(spark: SparkSession, shuffle: Shuffle, selection: str | None) -> str:
    """Return a format that describes a scan, registered in the session (classic or Connect).

    ``selection`` has the subpartitions as the option does, ``3,7-9``; None for all. The options of
    the shuffle's storage travel inside the registered source.
    """
    options = shuffle.storage.options
    described = describe(shuffle.path, shuffle.version, selection)
    if shuffle.span is not None:
        described += f" since {shuffle.span.start}"
    if shuffle.latest_column is not None:
        described += f" latest by {shuffle.latest_column}"
    if shuffle.filter is not None:
        described += f" where {shortened(str(shuffle.filter))}"
    with _lock:
        names = _names_of(session_id(spark))
        if len(names) >= MOST_NAMES and described.lower() not in names:
            described = UNDESCRIBED
        for number in count(1):
            name = described if number == 1 else f"{described} ({number})"
            if name.lower() not in names:
                names[name.lower()] = options if _register(spark, name, options) else None
            if names[name.lower()] == options:
                break
    return name


def loaded_once(spark: SparkSession, key: Hashable, load: Callable[[], DataFrame]) -> DataFrame:
    """Return a scan of which Spark knows that it is the one of an equal read before.

    Spark takes two scans of a Python source for equal only if they are one ``load()``. With it, a
    read uses what an equal one has cached. Its columns are new ones: those of one DataFrame would
    be ambiguous on both sides of a join.

    Parameters
    ----------
    spark
        The session. Spark Connect resolves a plan each time, so each read is a load there.
    key
        All that decides the rows and how they are read.
    load
        Makes the DataFrame.
    """
    if hasattr(spark, "session_id"):
        return load()
    # Settings decide what types columns have: those of CHAR, for one.
    key = key, str(spark._jsparkSession.sessionState().conf().settings().toString())
    with _lock:
        frames = _frames_of(session_id(spark))
        frame = frames.pop(key) if key in frames else load()
        frames[key] = frame  # now the last
        if len(frames) > MOST_FRAMES:
            del frames[next(iter(frames))]
    return frame.toDF(*frame.columns)


@lru_cache(100)
def _frames_of(session_id: str) -> dict[Hashable, DataFrame]:
    """Return the scans of a session that were loaded last, in that order."""
    del session_id
    return {}


def _register(spark: SparkSession, name: str, options: StorageOptions) -> bool:
    """Register the data source under a name; return whether Spark accepted it."""
    try:
        spark.dataSource.register(_source(name, options))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False  # Spark checks the names of the active session, which is another one
    return True


def describe(path: str, version: int, selection: str | None) -> str:
    """Return the name of a scan: ``arrow_shuffle /path version 3 subpartitions 0-7``."""
    if selection is None:
        return f"arrow_shuffle {path} version {version}"
    if len(selection) > MOST_CHARACTERS:
        selection = selection[: selection.rindex(",", 0, MOST_CHARACTERS) + 1] + "..."
    return f"arrow_shuffle {path} version {version} subpartitions {selection}"


def shortened(condition: str) -> str:
    """Return the text of a filter on one line, cut off where it is long."""
    line = " ".join(condition.split())
    if len(line) <= MOST_FILTER_CHARACTERS:
        return line
    return f"{line[:MOST_FILTER_CHARACTERS]}..."


@lru_cache(100)
def _names_of(session_id: str) -> dict[str, StorageOptions | None]:
    """Return the names of a session, in lower case, with the options that each reads with.

    The options of a name that Spark refused are None. A session dropped from this cache registers
    its names again.
    """
    del session_id
    return {}


def _source(named: str, options: StorageOptions) -> type[ArrowShuffleDataSource]:
    class DescribedSource(ArrowShuffleDataSource):
        hidden_options: ClassVar = {
            f"{SECRET_PREFIX}{name}": value for name, value in options.items()
        }

        @classmethod
        def name(cls) -> str:
            return named

    return DescribedSource
