"""Values as text: of every type that is stored, also where Python has no such value."""

import numpy as np
import pyarrow as pa
import pytest

from connector.cli.tables import value_text
from tests.support.memory import traced_peak

FAR = 6 * 10**17
NOWHERE = pa.timestamp("us", "Nowhere/At_All")
BROKEN = pa.array([b"\xff\xfeab"]).view(pa.string())


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (BROKEN, "\ufffd\ufffdab"),
        (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), BROKEN), "['\ufffd\ufffdab']"),
        (pa.array([[10**7]], pa.list_(pa.date32())), "[29349-01-26]"),
        (pa.array([{"at": FAR}], pa.struct({"at": pa.timestamp("us")})), "{'at': 20983-"),
        (pa.array([[("a", FAR)]], pa.map_(pa.string(), pa.timestamp("us"))), "[('a', 20983-"),
        (pa.array([1], NOWHERE), "1970-01-01 00:00:00.000001Z"),
        (
            pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([1], NOWHERE)),
            "[1970-01-01 00:00:00.000001Z]",
        ),
        (pa.array([2**62], pa.duration("s")), f"{2**62} s"),
        (pa.array([2**62], pa.timestamp("s")), f"<value out of range: {2**62}>"),
        (pa.array([1001], pa.time64("ns")), "00:00:00.000001001"),
    ],
)
def test_what_python_has_no_value_for(values, text):
    assert value_text(values[0], 100).startswith(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(None, pa.int64()), "null"),
        (pa.scalar("it's"), "it's"),
        (pa.scalar(["it's", None, "b"]), "[\"it's\", None, 'b']"),
        (pa.scalar([[1, 2], [], None]), "[[1, 2], [], None]"),
        (pa.scalar([], pa.list_(pa.int64())), "[]"),
        (pa.scalar({"a": 1, "b": None}, pa.struct({"a": pa.int8(), "b": pa.int8()})), None),
        (pa.scalar([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int64())), None),
        (pa.scalar(b"\x00\xff"), None),
        (pa.scalar(b"ab", pa.binary(2)), None),
        (pa.scalar(float("nan")), None),
        (pa.scalar(True), None),
        (pa.scalar("a", pa.dictionary(pa.int8(), pa.string())), "a"),
        (pa.scalar(None, pa.dictionary(pa.int8(), pa.string())), "null"),
        (pa.scalar(90_000_000, pa.duration("us")), "0:01:30"),
    ],
)
def test_all_else_is_written_as_python_does(value, text):
    assert value_text(value, 100) == (str(value.as_py()) if text is None else text)


def test_no_more_is_looked_at_than_is_shown():
    many = pa.ListArray.from_arrays(
        pa.array([0, 5_000_000], pa.int32()), pa.array(np.zeros(5_000_000, np.int8))
    )
    text, content = pa.scalar("日" * 10_000_000), pa.scalar(bytes(50_000_000))

    def look():
        assert value_text(many[0], 32) == "[" + "0, " * 11
        assert len(value_text(text, 32)) < 100
        assert value_text(content, 32) == str(bytes(33))

    assert traced_peak(look) < 1 << 20
