"""The examples in the help of ``arrow_shuffle``, and what they are run with.

They speak of ``/data``, of shuffles and rows that are there, and of ``spark``, ``df`` and
``stream`` where Spark is needed.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

import arrow_shuffle
from arrow_shuffle import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OF_SPARK = re.compile(r"\b(spark|df|stream)\b")
PACKAGES = {"pl": "polars", "duckdb": "duckdb", "torch": "torch"}
"""Names of packages in examples."""
OF_PACKAGES = {**PACKAGES, "to_polars": "polars", "to_ray": "ray", "to_dask": "dask"}
"""Words of an example that needs a package which may not be installed."""

ORDERS = pa.table(
    {
        "customer": [17, 18, 18, 19, 20, None],
        "price": [9.5, 120.0, 3.0, 250.0, 11.0, 1.0],
        "day": [date(2026, 1, day) for day in range(1, 7)],
        "city": ["Ulm", "Bonn", "Bonn", "Trier", "Ulm", None],
        "note": ["a", "b", "c", "d", "e", "f"],
    }
)
VISITS = pa.table(
    {
        "user": ["a", "b", "a"],
        "item": [1, 1, 2],
        "at": pa.array([datetime(2026, 1, 1, hour) for hour in range(3)], pa.timestamp("us")),
    }
)
SHUFFLES = {
    "orders": ("customer", ORDERS),
    "customers": (
        "customer",
        pa.table({"customer": [17, 18, 20], "country": ["de", "fr", "de"]}),
    ),
    "people": ("id", pa.table({"id": [17, 18], "name": ["Ann", "Bob"]})),
    "visits": ("item", VISITS),
    "labels": ("item", VISITS.select(["item", "at"]).append_column("sold", pa.array([1, 0, 1]))),
    "balances": ("item", VISITS.select(["item", "at"]).append_column("left", pa.array([5, 4, 9]))),
    "prices": ("item", pa.table({"item": [1, 2], "price": [3.0, 4.0]})),
    "page_views": ("user", VISITS),
    "views": ("user", VISITS),
}
"""Keys and rows of the shuffles that examples speak of; they are named as their directories."""


class Example(NamedTuple):
    """The code of one block of a docstring."""

    name: str
    """Of what it explains."""
    code: str

    @property
    def needs_spark(self) -> bool:
        """Whether it runs with a session only."""
        return OF_SPARK.search(self.code) is not None

    @property
    def missing(self) -> list[str]:
        """Packages that it needs, and that are not installed."""
        words = {*re.findall(r"\w+", self.code)}
        needed = [package for word, package in OF_PACKAGES.items() if word in words]
        return [package for package in needed if find_spec(package) is None]


def explained() -> Iterator[tuple[str, object]]:
    """Yield what users read the help of: the public names, and methods of their classes."""
    yield "arrow_shuffle", arrow_shuffle
    for name in dir(arrow_shuffle):
        thing = getattr(arrow_shuffle, name)
        if isinstance(thing, int | str):
            continue  # these have the help of all numbers and texts
        yield name, thing
        if inspect.isclass(thing) and thing.__module__.startswith("arrow_shuffle"):
            yield from (
                (f"{name}.{method}", function)
                for method, function in inspect.getmembers(thing, inspect.isfunction)
                if not method.startswith("_")
            )


def is_own(function: object) -> bool:
    """Whether a method is one that is declared for users."""
    return isinstance(function, FunctionType) and function.__module__.startswith("arrow_shuffle")


def examples() -> list[Example]:
    """Return the examples, each once."""
    found: dict[str, Example] = {}
    for name, thing in explained():
        for code in blocks(inspect.getdoc(thing) or ""):
            found.setdefault(code, Example(name, code))
    return list(found.values())


def blocks(text: str) -> Iterator[str]:
    """Yield the code of the blocks in a docstring."""
    pattern = r"^( *)\.\. code-block:: python\n\n((?:\1    .*\n|\n)+)"
    for _, code in re.findall(pattern, f"{text}\n", re.MULTILINE):
        yield textwrap.dedent(code).strip()


def run(example: Example, directory: Path, **given: object) -> None:
    """Run an example with a directory in the place of ``/data``."""
    code = example.code.replace("/data", directory.as_posix())
    names = {} if code.startswith("import ") else names_in(directory, {*re.findall(r"\w+", code)})
    exec(compile(code, f"<example of {example.name}>", "exec"), {**names, **given})


def names_in(directory: Path, words: set[str]) -> dict[str, Any]:
    """Write the shuffles that an example speaks of, and return the names that it may use."""
    names: dict[str, Any] = {
        "arrow_shuffle": arrow_shuffle,
        "pa": pa,
        "dataclass": dataclass,
        "timedelta": timedelta,
        "new_rows": ORDERS.slice(0, 2),
        "rows": pa.table({"customer": [1, 2, 3], "price": [5.0, 15.0, 25.0], "part": [0, 3, 1]}),
        **{name: import_module(package) for name, package in PACKAGES.items() if name in words},
    }
    for name, (keys, rows) in SHUFFLES.items():
        if name in words:
            for _ in range(4 if name == "orders" else 1):  # versions
                _write(rows, directory / name, keys)
            names[name] = arrow_shuffle.open_shuffle(directory / name)
    if "moved" in words:
        disk = directory.absolute() / "disk"
        _write(ORDERS, directory / "there", "customer", local_dirs=(str(disk),))
        shutil.move(directory / "there", directory / "moved")
    return names


def _write(rows: pa.Table, path: Path, keys: str, **options: Any) -> None:
    arrow_shuffle.write_shuffle(
        rows,
        path,
        keys=keys,
        num_subpartitions=4,
        mode="append",
        options=WriteOptions(sync=False, **options),
    )
