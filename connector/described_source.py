"""A name for what a scan reads, so that Spark's UI and ``explain`` say it.

Spark shows a Python scan under the name of its format and nothing else: no path, no options. So a
read by :func:`connector.read_shuffle` goes through the same source under a name that says them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.data_source import ArrowShuffleDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from arrow_format.dataset import Shuffle
    from arrow_format.storage import Storage

MOST_CHARACTERS = 60
"""Of a list of subpartitions; the rest is left out."""

_PLACES: dict[str, list[Storage]] = {}
"""Storages that this process has read through, by address."""


def described_format(spark: SparkSession, shuffle: Shuffle, selection: str | None) -> str:
    """Register the data source under a name that says what is read, and return that.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    shuffle
        What is read. The storage travels inside the source and not as options, which Spark shows.
    selection
        Subpartitions as the option has them, such as ``3,7-9``; None for all.
    """
    place = shuffle.storage
    described = f"{describe(place.root, shuffle.version, selection)}{_which(place)}"
    changes = shuffle if shuffle.span is not None else None
    if changes is not None and shuffle.span is not None:
        described += f" since {shuffle.span.start}"

    class DescribedSource(ArrowShuffleDataSource):
        """The data source under this name."""

        storage = place
        pinned = changes

        @classmethod
        def name(cls) -> str:
            return described

    spark.dataSource.register(DescribedSource)
    return described


def _which(place: Storage) -> str:
    """Tell storages of one address apart that are reached otherwise: by endpoint or credentials.

    Spark looks a name up again at each action, and would read where the last of them leads.
    """
    several = _PLACES.setdefault(place.root, [])
    if place not in several:
        several.append(place)
    number = several.index(place)
    return f" ({number + 1})" if number else ""


def describe(path: str, version: int, selection: str | None) -> str:
    """Return the name of a scan: ``arrow_shuffle /path version 3 subpartitions 0-7``."""
    if selection is None:
        return f"arrow_shuffle {path} version {version}"
    if len(selection) > MOST_CHARACTERS:
        selection = selection[: selection.rindex(",", 0, MOST_CHARACTERS) + 1] + "..."
    return f"arrow_shuffle {path} version {version} subpartitions {selection}"
