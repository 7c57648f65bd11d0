"""Which columns have statistics, and their form in an index."""

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from arrow_format.errors import CorruptShuffleError, SchemaError
from arrow_format.format.statistics import (
    MOST_CHOSEN,
    UNKNOWN,
    ColumnStatistics,
    chosen_columns,
)
from arrow_format.format.statistics_section import decode_section, encode_section
from tests.support.chunks import compressed_message

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("id", pa.int64()),
        ("price", pa.decimal128(15, 2)),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("nothing", pa.null()),
        ("at", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
    ]
)
ROWS = np.array([10, 4])
STATISTICS = {
    "day": ColumnStatistics(
        pa.array([1, None], pa.date32()),
        pa.array([9, None], pa.date32()),
        np.array([2, 4]),
        ROWS,
    ),
    "key": ColumnStatistics(pa.array(["", "b"]), pa.array([None, "c"]), np.array([0, -1]), ROWS),
}


def test_columns_by_default_are_keys_and_numbers_of_up_to_eight_bytes():
    assert chosen_columns(None, SCHEMA, ["key", "tags"]) == ("id", "day", "at", "key")
    assert chosen_columns(None, SCHEMA, []) == ("id", "day", "at")
    assert chosen_columns("all", SCHEMA, []) == chosen_columns("all", SCHEMA, ["id"])
    wide = pa.schema([*((f"c{i}", pa.int8()) for i in range(300)), ("key", pa.string())])
    assert chosen_columns(None, wide, ["key"]) == (*wide.names[: MOST_CHOSEN - 1], "key")


def test_columns_by_choice_are_in_the_order_of_the_schema():
    assert chosen_columns("all", SCHEMA, []) == ("name", "id", "price", "day", "at", "key")
    assert chosen_columns(("key", "name"), SCHEMA, ["id"]) == ("name", "key")
    assert chosen_columns((), SCHEMA, ["id"]) == ()


def test_columns_that_cannot_have_statistics():
    with pytest.raises(SchemaError, match=r"statistics: column 'dya' is not there \(did you mean"):
        chosen_columns(("dya",), SCHEMA, [])
    for name, type_ in (("tags", "list<item: string>"), ("nothing", "null")):
        with pytest.raises(SchemaError, match=f"column '{name}' is {type_}, whose values have no"):
            chosen_columns((name,), SCHEMA, [])


def test_a_section_comes_back():
    section = encode_section(STATISTICS)
    decoded = decode_section(memoryview(section), ["day", "key"], SCHEMA, ROWS)
    assert list(decoded) == ["day", "key"]
    for name, column in decoded.items():
        assert column.minimum.equals(STATISTICS[name].minimum)
        assert column.maximum.equals(STATISTICS[name].maximum)
        assert column.null_count.tolist() == STATISTICS[name].null_count.tolist()
        assert column.num_rows.tolist() == ROWS.tolist()
    assert encode_section({}) == b""
    assert decode_section(memoryview(b""), [], SCHEMA, ROWS) == {}


def test_units_of_a_column():
    key = STATISTICS["key"]
    again = ColumnStatistics.joined([key.units(0, 1), key.units(1, 2)])
    assert again.maximum.to_pylist() == [None, "c"]
    assert again.null_count.tolist() == [0, UNKNOWN]
    assert len(again) == 2
    wider = ColumnStatistics.all_null(pa.int32(), ROWS).of_type(pa.int64())
    assert wider.minimum.type == pa.int64()
    assert wider.null_count.tolist() == ROWS.tolist()


ZEROS = pa.record_batch({name: pa.array([0] * 999, pa.int64()) for name in "012"})


@pytest.mark.parametrize(
    ("section", "names", "rows", "message"),
    [
        (b"", ["day"], [10], "no statistics of its chunks"),
        (encode_section(STATISTICS)[:-9], ["day", "key"], [10, 4], "no statistics of its"),
        (encode_section(STATISTICS), ["day", "day"], [10, 4], "each column once"),
        (encode_section(STATISTICS), ["day", "tags"], [10, 4], "each column once"),
        (encode_section(STATISTICS), ["day", "who"], [10, 4], "who"),
        (encode_section(STATISTICS), ["day", "key"], [10, 4, 1], "2 rows for 3 chunks"),
        (encode_section(STATISTICS), ["day", "key"], [10, 3], "more nulls of column day"),
        (zstandard.compress(compressed_message(ZEROS)), ["id"], [1] * 999, "compressed inside"),
        (zstandard.compress(bytes(100 << 20)), ["day"], [10], "that states 104857600"),
    ],
    ids=range(9),
)
def test_a_section_that_cannot_be_of_the_index(section, names, rows, message):
    with pytest.raises(CorruptShuffleError, match=message):
        decode_section(memoryview(section), names, SCHEMA, np.array(rows))
