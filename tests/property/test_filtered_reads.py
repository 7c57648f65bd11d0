"""A read with a filter gives the rows of the whole read for which Spark's logic says true."""

import shutil
import tempfile
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    BROADCAST,
    BroadcastPartitioner,
    HashPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    WriteOptions,
    collect_garbage,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.filters.filter import bind_filter
from arrow_format.format.statistics import has_statistics
from arrow_format.keys.partitioner import key_columns
from tests.support.column_statistics import in_spark_order
from tests.support.exhaustive import examples
from tests.support.filter_model import SCHEMA, conditions, rows_of, table_of, truth
from tests.support.guarantees import guarantee
from tests.support.own_partitioner import OwnPartitioner


def some_broadcast(batch, num_subpartitions):
    """By ``i``; every subpartition reads the rows of which it is null."""
    ids = batch["i"].fill_null(BROADCAST).to_numpy().astype(np.int32)
    return np.where(batch["i"].is_null().to_numpy(False), BROADCAST, ids % num_subpartitions)


def tables():
    return st.builds(rows_of, st.integers(0, 2**32), st.integers(1, 40)).map(table_of)


steps = st.one_of(
    tables().map(lambda rows: ("append", rows)),
    tables().map(lambda rows: ("overwrite", rows)),
    tables().map(lambda rows: ("mask", rows)),
    st.just(("merge", None)),
    st.just(("collect", None)),
)
partitioners = st.sampled_from(
    [
        HashPartitioner("i"), HashPartitioner("s", "b"), RoundRobinPartitioner(), "range",
        BroadcastPartitioner(), OwnPartitioner(some_broadcast),
    ]
)  # fmt: skip
LATER = "f", "y", "d", "t", "n", "m", "w"
"""Columns by which no row is placed or put in order: the first rows may lack some."""

some_columns = st.none() | st.lists(st.sampled_from(SCHEMA.names), unique=True)


@st.composite
def histories(draw):
    """How a shuffle is written: arguments of all writes, its first rows, and what comes then."""
    first, partitioner = draw(tables()), draw(partitioners)
    n = draw(st.integers(1, 9))
    if partitioner == "range":
        sample = RangePartitioner("x", ("s", "descending"))
        partitioner = sample.with_sample(first.to_batches()[0], n)
    options = WriteOptions(
        sync=False,
        codec=draw(st.sampled_from(["zstd", "none"])),
        chunk_bytes=draw(st.sampled_from([4096, 1 << 16])),
        sort_buffer_bytes=1 << 20,
        schema_evolution=True,
        statistics=draw(st.sampled_from([None, "all", (), ("x", "s")])),
    )
    sort_by = draw(st.sampled_from([(), ("x",), (("s", "descending"), "i")]))
    arguments = {
        "num_subpartitions": n, "partitioner": partitioner, "sort_by": sort_by, "options": options,
    }  # fmt: skip
    later = draw(st.sets(st.sampled_from(LATER), max_size=2))
    last = [("append", draw(tables()))] if later else []
    found = [("append", first.drop_columns([*later])), *draw(st.lists(steps, max_size=3)), *last]
    return arguments, found


@contextmanager
def written(history):
    path = Path(tempfile.mkdtemp())
    try:
        yield written_at(path, history)
    finally:
        shutil.rmtree(path)


def written_at(path, history, **where):
    """The shuffle of a history; ``where`` are the options of its store."""
    arguments, steps = history
    keys = key_columns(arguments["partitioner"])
    for step, rows in steps:
        if step == "merge":
            merge_shuffle(path, by="map_output", **where)
        elif step == "collect":
            collect_garbage(path, retention=timedelta(0), **where)
        elif step != "mask":
            write_shuffle(rows.to_batches(), path, mode=step, **arguments, **where)
        elif keys:
            delete_rows(path, rows.select(keys)[:2], erase=False, **where)
    return open_shuffle(path, **where)


@guarantee("filters")
@settings(max_examples=examples(15, 200))
@given(histories(), conditions, some_columns, st.data())
def test_a_filtered_read_is_the_whole_read_filtered(history, condition, columns, data):
    with written(history) as shuffle:
        n = shuffle.num_subpartitions
        asked = data.draw(st.none() | st.lists(st.integers(0, n - 1), max_size=4))
        bound = bind_filter(condition, shuffle.schema)
        whole = shuffle.read(asked, with_subpartition=True).read_all()
        passes = pa.array([truth(condition, row) is True for row in whole.to_pylist()], pa.bool_())
        expected = whole.filter(passes)
        if columns is not None:
            expected = expected.select([*columns, "_subpartition"])
        filtered = shuffle.where(bound)
        found = filtered.read(asked, columns, with_subpartition=True).read_all()
        assert repr(found.to_pylist()) == repr(expected.to_pylist())  # a NaN is no NaN to ==
        steps = {step.what: step for step in filtered.explain(asked, columns).steps}
        assert all(step.kept <= step.total for step in steps.values())
        assert expected.num_rows == 0 or steps["chunks"].kept


@guarantee("unordered reads")
@settings(max_examples=examples(20, 300))
@given(histories(), st.none() | conditions, some_columns, st.data())
def test_an_unordered_read_alternates_subpartitions_and_nothing_else(
    history, condition, columns, data
):
    """Rows of an unordered read are those of the ordered one, of each subpartition in its order."""
    with written(history) as shuffle:
        check_unordered(shuffle, condition, columns, data)


@settings(max_examples=examples(6, 100))
@given(histories(), st.none() | conditions, some_columns, st.data())
def test_nor_does_one_from_a_store(s3, history, condition, columns, data):
    place = f"s3://{s3.new_bucket()}/t"
    shuffle = written_at(place, history, storage_options=s3.options)
    check_unordered(shuffle, condition, columns, data)


def check_unordered(shuffle, condition, columns, data):
    if condition is not None:
        shuffle = shuffle.where(bind_filter(condition, shuffle.schema))
    n = shuffle.num_subpartitions
    asked = data.draw(st.none() | st.lists(st.integers(0, n - 1), max_size=4))
    expected = shuffle.read(asked, columns, with_subpartition=True).read_all()
    batch_size = data.draw(st.none() | st.integers(1, 50))
    found = shuffle.read(
        asked, columns, ordered=False, with_subpartition=True, batch_size=batch_size
    ).read_all()
    assert found.schema.equals(expected.schema)
    assert len(found) == len(expected)
    place = np.argsort(found["_subpartition"].to_numpy(), kind="stable")
    assert repr(found.take(place).to_pylist()) == repr(expected.to_pylist())
    alone = shuffle.read(asked, columns, ordered=False)
    assert repr(alone.read_all().to_pylist()) == repr(
        found.drop_columns("_subpartition").to_pylist()
    )
    if shuffle.sort_by:
        assert found.equals(expected) or repr(found.to_pylist()) == repr(expected.to_pylist())


@guarantee("counts")
@settings(max_examples=examples(20, 200))
@given(histories(), st.none() | conditions)
def test_counts_and_extremes_are_those_of_the_filtered_read(history, condition):
    """Counts, minima and maxima by the log, by statistics and by rows are those of the rows read"""
    with written(history) as shuffle:
        bound = None if condition is None else bind_filter(condition, shuffle.schema)
        rows = shuffle.where(bound).read().read_all()
        assert shuffle.count_rows(filter=bound) == rows.num_rows
        names = [field.name for field in shuffle.schema if has_statistics(field.type)]
        found = shuffle.min_max(names, filter=bound)
        for name in names:
            values = sorted(rows[name].drop_null().to_pylist(), key=in_spark_order)
            ends = (values[0], values[-1]) if values else (None, None)
            expected = [0.0 if isinstance(end, float) and end == 0 else end for end in ends]
            assert repr([end.as_py() for end in found[name]]) == repr(expected), name


@guarantee("lookups")
@given(histories(), st.data())
def test_a_lookup_is_the_rows_of_the_keys(history, data):
    history[0]["partitioner"] = HashPartitioner("s", "b")
    with written(history) as shuffle:
        whole = shuffle.read().read_all()
        rows = st.lists(st.sampled_from(range(whole.num_rows)), max_size=3)
        rows = rows if whole.num_rows else st.just([])
        keys = whole.select(["s", "b"]).take(pa.array(data.draw(rows), pa.int64()))
        wanted = {tuple(row.values()) for row in keys.to_pylist()}
        expected = [row for row in whole.to_pylist() if (row["s"], row["b"]) in wanted]
        assert repr(shuffle.lookup(keys).read_all().to_pylist()) == repr(expected)
        for row in keys.to_pylist():
            subpartition = shuffle.subpartition(shuffle.subpartition_of(**row), ["s", "b"])
            assert row in subpartition.read_all().to_pylist()
