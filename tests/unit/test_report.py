"""Reports print themselves, a line for each fact, and become JSON."""

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format import (
    RangePartitioner,
    WriteOptions,
    collect_garbage,
    delete_rows,
    drop_columns,
    list_consumers,
    list_tags,
    merge_shuffle,
    open_shuffle,
    repair_shuffle,
    tag_shuffle,
    write_shuffle,
)
from arrow_format.errors import CorruptShuffleError
from arrow_format.jobs.merge import plan_merge
from arrow_format.report import Report, first_of, printable
from arrow_format.write.merge_policy import MergePolicy


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True, eq=False)
class Everything(Report):
    """A value of each kind that some report has."""

    name: str
    span: timedelta
    error: Exception
    by_number: object
    ids: np.ndarray
    one: np.int64
    rows: pa.Array
    schema: pa.Schema
    numbers: range
    colour: Colour

    @property
    def is_large(self):
        """Whether there are many ids."""
        return len(self.ids) > 1

    @property
    def parts(self):
        """No number, text or flag."""
        return [self]

    @property
    def _hidden(self):
        return 1

    def _lines(self):
        yield f"{self.name}: <{self.span}>"
        yield "  and more"


EVERYTHING = Everything(
    "a\nb\x1b[31m",
    timedelta(days=1),
    CorruptShuffleError("no"),
    MappingProxyType({1: (2, 3)}),
    np.array([4, 5]),
    np.int64(6),
    pa.array([7, None]),
    pa.schema([("k", pa.int64())]),
    range(2),
    Colour.RED,
)


def test_a_name_cannot_make_a_line():
    assert str(EVERYTHING) == "a\\nb\\x1b[31m: <1 day, 0:00:00>\n  and more"
    assert EVERYTHING._repr_html_() == (
        "<pre>a\\nb\\x1b[31m: &lt;1 day, 0:00:00&gt;\n  and more</pre>"
    )


def test_what_is_printable_stays():
    assert printable("größe 列") == "größe 列"
    assert printable("a\tb\u202e\udcff") == r"a\tb\u202e\udcff"


def test_json_has_fields_and_plain_properties():
    assert json.loads(json.dumps(EVERYTHING.as_json())) == {
        "name": "a\nb\x1b[31m",
        "span": "P1D",
        "error": {"error": "CorruptShuffleError", "message": "no"},
        "by_number": {"1": [2, 3]},
        "ids": [4, 5],
        "one": 6,
        "rows": [7, None],
        "schema": {"k": "int64"},
        "numbers": [0, 1],
        "colour": "red",
        "is_large": True,
    }


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (2, 2), (3, 3)])
def test_few_lines_are_all_there(count, shown):
    assert len([*first_of(["x"] * count, 3)]) == shown


def test_of_many_lines_the_rest_is_counted():
    assert [*first_of(map(str, range(2_004)), 1)] == ["0", "  ... and 2,003 more; JSON has all"]


@pytest.mark.slow
def test_every_report_prints_itself_and_becomes_json(tmp_path):
    path, rows = str(tmp_path / "s"), pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})
    ranges = RangePartitioner("k", bounds=[1])
    how = {"num_subpartitions": 2, "partitioner": ranges, "options": WriteOptions(sync=False)}
    for _ in range(3):
        written = write_shuffle(rows, path, mode="append", **how)
    shuffle = open_shuffle(path)
    every = MergePolicy(rewrite="always")
    explained = shuffle.where("k = 1").explain()
    reports = [
        written,
        shuffle.verify(),
        explained,
        explained.plan,
        plan_merge(shuffle, every, "subpartition"),
        plan_merge(shuffle, every),
        delete_rows(path, {"k": [3]}),
        merge_shuffle(path, policy=every, by="map_output"),
        tag_shuffle(path, "a"),
        drop_columns(path, "v"),
        repair_shuffle(path),
        collect_garbage(path, dry_run=True),
        *list_tags(path),
        *list_consumers(path),
    ]
    for report in reports:
        assert isinstance(report, Report)
        assert str(report) == "\n".join(str(report).splitlines())
        fields = json.loads(json.dumps(report.as_json()))
        assert set(type(report).__dataclass_fields__) <= set(fields)


def test_what_users_get_back_of_an_operation_is_a_report():
    suffixes = (
        "Report",
        "Receipt",
        "Explanation",
        "State",
        "Version",
        "Relocation",
        "Alteration",
        "Rescaling",
    )
    named = [name for name in arrow_shuffle.__all__ if name.endswith(suffixes)]
    assert len(named) > 8
    assert [name for name in named if not issubclass(getattr(arrow_shuffle, name), Report)] == []
