"""Text means what Spark's parser makes of it; each answer below is that of Spark 4."""

import pyarrow as pa
import pytest

from arrow_format.errors import SchemaError
from arrow_format.ingest.ddl import schema_of_ddl

KNOWN = {
    "k: bigint, v: array<int>": {"k": pa.int64(), "v": pa.list_(pa.field("element", pa.int32()))},
    "k long, j short, i byte, h integer, f real": {
        "k": pa.int64(), "j": pa.int16(), "i": pa.int8(), "h": pa.int32(), "f": pa.float32(),
    },
    "k decimal, d DEC(5), n numeric(38,38)": {
        "k": pa.decimal128(10, 0), "d": pa.decimal128(5, 0), "n": pa.decimal128(38, 38),
    },
    "k bigint /* c */, v double -- d": {"k": pa.int64(), "v": pa.float64()},
    "select bigint, order string, date date, 1k int": {
        "select": pa.int64(), "order": pa.string(), "date": pa.date32(), "1k": pa.int32(),
    },
    "`a.b` int COMMENT 'its', `c``d` string": None,
    "k map<string,struct<a: DECIMAL(10, 2) COMMENT 'x', `b c`:timestamp_ntz>>": {
        "k": pa.map_(
            pa.string(), pa.struct({"a": pa.decimal128(10, 2), "b c": pa.timestamp("us")})
        )
    },
    "t timestamp, l timestamp_ltz, b binary, o boolean": {
        "t": pa.timestamp("us", "UTC"), "l": pa.timestamp("us", "UTC"),
        "b": pa.binary(), "o": pa.bool_(),
    },
}  # fmt: skip

REFUSED = [
    "", " ", "k", "bigint", "k bigint,", "k bigint v double", "k int;", "k-x int", "é int",
    "k bigint) USING parquet --", "k bigint) AS SELECT (1", "k bigint NULL", "k bigint DEFAULT 5",
    "k bigint PRIMARY KEY", "k bigint UNIQUE", "k bigint COMMENT 'a' NOT NULL",
    "k bigint GENERATED ALWAYS AS IDENTITY", "k decimal(39,2)", "k decimal(5,10)",
    "k decimal(5,-2)", "k decimal(a)", "k decimal()", "k double precision", "k varchar", "k char",
    "k text", "k timestamptz", "k bool", "k int4", "k int8", "k int32", "k number", "k bigint[]",
    "k float(5)", "k int(5)", "k binary(4)", "k string(5)", "k array", "k array<int", "k map<int>",
    "k array<int not null>", "k bigint, k double", "k struct<a:int,a:string>", "k `bigint`",
    # Those that Spark has, and Arrow's types say too little about.
    "k string COLLATE UTF8_LCASE", "k interval", "k variant", "k void", "k time",
]  # fmt: skip


@pytest.mark.parametrize("text", KNOWN)
def test_what_spark_takes(text):
    found = schema_of_ddl(text)
    if KNOWN[text] is not None:
        assert found == pa.schema(KNOWN[text])


def test_names_in_backquotes_and_nulls():
    assert schema_of_ddl("`a.b` int NOT NULL COMMENT 'x', `c``d` struct<e int not null>") == (
        pa.schema(
            [
                pa.field("a.b", pa.int32(), nullable=False),
                ("c`d", pa.struct([pa.field("e", pa.int32(), nullable=False)])),
            ]
        )
    )


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(SchemaError):
        schema_of_ddl(text)
