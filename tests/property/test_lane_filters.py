"""Which rows of a dataset pass a filter does not depend on how its files are cut."""

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st

from arrow_format.ingest.scan import plan_scan

NAN = float("nan")
VALUES = {
    "x": (pa.float64(), [-1.0, -0.0, 0.0, 1.0, NAN, float("inf")]),
    "f": (pa.float32(), [-0.0, 0.0, 1.5, NAN]),
    "i": (pa.int64(), [-1, 0, 1]),
    "s": (pa.string(), ["", "a", "b" * 80]),
    "d": (pa.date32(), [dt.date(1500, 3, 1), dt.date(2024, 1, 1)]),
    "b": (pa.bool_(), [False, True]),
    "u": (pa.uint32(), [0, 1, 2**31, 2**32 - 1]),
    "w": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "y": (pa.binary(), [b"", b"\x00", b"\x7f", b"\xff"]),
    "t": (pa.timestamp("us", "UTC"), [dt.datetime(1500, 3, 1), dt.datetime(2024, 1, 1)]),
    "m": (pa.decimal128(5, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")]),
}
COMPARISONS = ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]

rows = st.lists(
    st.fixed_dictionaries({n: st.none() | st.sampled_from(v) for n, (_, v) in VALUES.items()}),
    min_size=1,
    max_size=12,
)


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(sorted(VALUES)))
    type_, values = VALUES[name]
    is_nested = draw(st.booleans())
    column = ds.field("st", name) if is_nested else ds.field(name)
    kind = draw(st.sampled_from([*COMPARISONS, "isin", "is_null", "is_valid"]))
    if kind in ("is_null", "is_valid"):
        return getattr(column, kind)()
    if kind == "isin":
        some = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return column.isin(pa.array(some, type_))
    return getattr(column, kind)(pa.scalar(draw(st.sampled_from(values)), type_))


conditions = st.recursive(
    comparisons(),
    lambda some: st.one_of(
        some.map(lambda one: ~one),
        st.tuples(some, some).map(lambda both: both[0] & both[1]),
        st.tuples(some, some).map(lambda both: both[0] | both[1]),
    ),
    max_leaves=4,
)


@given(rows, conditions, st.integers(1, 4), st.sampled_from([1, 9]))
@example([{"x": 1.0}, {"x": NAN}], ~(ds.field("x") < 5), 2, 1)
@example([{"x": 0.0}], ds.field("st", "x").isin([0.0]), 1, 9)
def test_which_rows_pass_does_not_depend_on_row_groups(rows, condition, size, num_tasks):
    fields = [(name, type_) for name, (type_, _) in VALUES.items()]
    table = pa.Table.from_pylist(
        [{**row, "st": row, "k": number} for number, row in enumerate(rows)],
        pa.schema([*fields, ("st", pa.struct(fields)), ("k", pa.int64())]),
    )
    # Rows in memory have no statistics.
    held = ds.dataset(table).scanner(columns={"passes": condition}).to_table()["passes"]
    expected = table.filter(pc.fill_null(held, False))["k"].to_pylist()
    with tempfile.TemporaryDirectory() as directory:
        pq.write_table(table, Path(directory) / "x.parquet", row_group_size=size)
        dataset = ds.dataset(directory)
        scan = plan_scan(
            dataset, parallelism=1, columns=["k"], filter=condition, num_tasks=num_tasks
        )
        batches = [batch for task in range(scan.num_tasks) for batch in scan.read(task)]
    found = pa.Table.from_batches(batches, scan.schema)["k"].to_pylist()
    assert found == expected
