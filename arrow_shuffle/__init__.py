"""The one package that users import: all public names of ``connector`` and ``arrow_format``.

A name is the same object in both. Where the two packages have a function each of one name
(``write_shuffle``, ``consume``, ``merge_shuffle``), the one here calls the one that the arguments
belong to. Names are loaded on first use, so that pyspark and pandas are imported only by what needs
them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import arrow_format
import connector
from arrow_format import __version__

_OF_BOTH = (
    "aggregate_shuffle",
    "append_shuffle",
    "consume",
    "join_shuffles",
    "map_subpartitions",
    "merge_shuffle",
    "write_shuffle",
)
"""Functions that ``connector`` and ``arrow_format`` both have."""

__all__ = sorted({*arrow_format.__all__, *connector.__all__})
"""``__init__.pyi`` has the same names, those of Spark too, for type checkers; a test compares."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in ("append_shuffle", "write_shuffle"):
        return getattr(import_module("arrow_shuffle.write"), name)
    if name in _OF_BOTH:
        return getattr(import_module("arrow_shuffle.by_argument"), name)
    try:
        return getattr(arrow_format if name in arrow_format.__all__ else connector, name)
    except AttributeError:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg) from None


def __dir__() -> list[str]:
    return sorted({*dir(arrow_format), *dir(connector)})
