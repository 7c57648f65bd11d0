"""Rows that are written to several targets in one pass are those that each write alone has."""

import tempfile

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import RangePartitioner, RoundRobinPartitioner
from arrow_format.options import WriteOptions
from arrow_shuffle import Target, open_shuffle, write_shuffle, write_shuffles

OPTIONS = st.builds(
    WriteOptions,
    sync=st.just(False),
    codec=st.sampled_from(["zstd", "none"]),
    sort_buffer_bytes=st.sampled_from([1 << 10, 1 << 12, 1 << 20]),
    threads=st.sampled_from([None, 1, 2, 3]),
)
KEYS = st.lists(st.sampled_from("kst"), min_size=1, max_size=2, unique=True)
PLACED = st.one_of(
    st.builds(lambda keys: {"keys": keys}, KEYS),
    st.builds(lambda keys: {"keys": keys, "combine": {"v": "sum"}}, st.just(["k", "s", "t"])),
    st.builds(lambda keys: {"partitioner": RangePartitioner(keys=keys)}, KEYS),
    st.just({"partitioner": RoundRobinPartitioner()}),
)
HOW = st.builds(
    lambda placed, **how: {**placed, **how},
    PLACED,
    num_subpartitions=st.sampled_from([1, 2, 7, 100]),
    sort_by=st.sampled_from([[], ["k"], [("s", "descending"), "k"]]),
    options=OPTIONS,
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-9, 9)),
        st.one_of(st.none(), st.text("ab", max_size=3)),
        st.integers(0, 3),
        st.integers(0, 1_000),
    ),
    max_size=60,
)
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.int32()), ("v", pa.int64())])


@st.composite
def sources(draw):
    """Rows in batches of whatever lengths, none at all included."""
    rows = draw(ROWS)
    table = pa.Table.from_pylist([dict(zip("kstv", row, strict=True)) for row in rows], SCHEMA)
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    parts = zip([0, *cuts], [*cuts, len(rows)], strict=True)
    cut = [table.slice(start, stop - start).to_batches() for start, stop in parts]
    return pa.Table.from_batches([batch for part in cut for batch in part], SCHEMA)


@given(sources(), st.lists(HOW, min_size=1, max_size=4))
def test_one_pass_writes_what_each_write_alone_does(rows, how):
    with tempfile.TemporaryDirectory() as directory:
        targets = [Target(f"{directory}/{i}", **each) for i, each in enumerate(how)]
        receipts = write_shuffles(rows, targets)
        for target, receipt, each in zip(targets, receipts, how, strict=True):
            alone = write_shuffle(rows, f"{target.path}-alone", **each)
            assert receipt.num_rows == alone.num_rows
            assert receipt.subpartition_rows == alone.subpartition_rows
            found, expected = (
                open_shuffle(path).read(with_subpartition=True).read_all()
                for path in (target.path, f"{target.path}-alone")
            )
            assert found == expected
