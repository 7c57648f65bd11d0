"""CONFORMANCE, group "Damage": a merge that mixed rows up fails, even if all counts are right."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    MergePolicy,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.format.ipc import byte_schema
from arrow_format.write.merger import PartitionedFileMerger
from arrow_format.write.region_joiner import RegionJoiner
from tests.support.exhaustive import exhaustive
from tests.support.small_shuffles import FAST, write_rows


def append(path, column, start=0, *, n=2, **how):
    """Append a version of a column, with keys from a number on."""
    table = pa.table({"k": range(start, start + len(column)), "c": column})
    write_rows(path, table, "k", n=n, mode="append", for_spark=False, **{"options": FAST, **how})


def merge(path, rewrite="always"):
    merge_shuffle(path, policy=MergePolicy(rewrite=rewrite), options=FAST, by="map_output")


def mix_up(patch, mistake):
    """Let regions be joined to rows of which a function changes the column."""
    real = RegionJoiner.parts

    def parts(self):
        for batch, clustering in real(self):
            columns = [batch["k"], mistake(batch["c"])]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema), clustering

    patch.setattr(RegionJoiner, "parts", parts)


def values_of_others(column):
    return column[::-1]


def one_invented(column):
    return pa.concat_arrays([pa.array([-7]), column.slice(1)])


def rolled(column):
    return pa.concat_arrays([column.slice(1), column.slice(0, 1)])


@exhaustive(least=6)
@pytest.mark.parametrize("mistake", [values_of_others, one_invented, rolled])
@pytest.mark.parametrize("sort_by", [(), ("k",), ("c",)])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_that_are_not_those_of_the_inputs(tmp_path, monkeypatch, mistake, sort_by, codec):
    path = tmp_path / "s"
    for start in range(0, 300, 100):
        options = WriteOptions(sync=False, codec=codec)
        append(path, np.arange(start, start + 100) * 3, start, sort_by=sort_by, options=options)
    before = open_shuffle(path).read().read_all()
    with monkeypatch.context() as patched:
        mix_up(patched, mistake)
        with pytest.raises(CorruptShuffleError, match=r"differ from the files it was merged from"):
            merge(path)
    assert open_shuffle(path).version == 3
    assert open_shuffle(path).read().read_all().equals(before)
    merge(path)
    assert open_shuffle(path).version == 4
    assert open_shuffle(path).read().read_all().equals(before)


def test_regions_that_are_not_those_of_the_inputs(tmp_path, monkeypatch):
    """One input is copied twice, and the other left out: as many regions, with as many rows."""
    for value in (1, 2):
        append(tmp_path, [value] * 20)
    copy, inputs = PartitionedFileMerger._copy, []

    def first_only(self, writer, index, numbers):
        inputs.append(index)
        copy(self, writer, inputs[0], numbers)

    monkeypatch.setattr(PartitionedFileMerger, "_copy", first_only)
    with pytest.raises(CorruptShuffleError, match=r"differ from the files it was merged from"):
        merge(tmp_path, "never")
    assert len(inputs) == 2
    assert open_shuffle(tmp_path).version == 2


@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_structs_of_nulls_in_lists_are_merged(tmp_path, rewrite):
    """PyArrow makes them invalid where it casts a slice of them."""
    type_ = pa.list_(pa.struct([("n", pa.null())]))
    lists = pa.array([[{"n": None}] * (i % 3) for i in range(40)], type_)
    for start in (0, 40):
        append(tmp_path, lists, start)
    merge(tmp_path, rewrite)
    rows = open_shuffle(tmp_path).read().read_all().sort_by("k")
    assert rows["c"].to_pylist() == 2 * lists.to_pylist()


def no_text(n):
    """An Arrow column of strings that are not UTF-8, as other writers may make them."""
    return pa.array([b"\xed%d" % i for i in range(n)], pa.binary()).view(pa.string())


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_texts_that_are_no_text_are_merged_as_the_bytes_they_are(tmp_path, codec, rewrite):
    for start in (0, 10):
        append(tmp_path / "s", no_text(10), start, options=WriteOptions(sync=False, codec=codec))
    merge(tmp_path / "s", rewrite)
    found = open_shuffle(tmp_path / "s")
    assert len(found.map_outputs) == 1
    texts = found.read().read_all()["c"].combine_chunks().view(pa.binary())
    assert sorted(texts.to_pylist()) == sorted(2 * [b"\xed%d" % i for i in range(10)])


def column_of(values, type_):
    return pa.array(values, pa.int64()).view(type_)


MICROS = [2**63 - 1, -(2**63) + 1, 253_402_300_800_000_000, 1, None]
"""Timestamps far beyond what Python has: from the year 10,000 on, and before the year 1."""

TEXTS = pa.StructArray.from_arrays([no_text(5)], ["t"])

NO_PYTHON = {
    "dates": pa.array([2**31 - 1, -(2**31), 2_932_897, 1, None], pa.int32()).view(pa.date32()),
    "timestamps": column_of(MICROS, pa.timestamp("us")),
    "instants": column_of(MICROS, pa.timestamp("us", "UTC")),
    "a zone that is not known": column_of(MICROS, pa.timestamp("us", "Mars/Olympus Mons")),
    "nanoseconds": column_of([1, 2**63 - 1, 999, -7, None], pa.timestamp("ns")),
    "durations": column_of(MICROS, pa.duration("us")),
    "times": column_of([86_399_999_999_999, 1, 0, 5, None], pa.time64("ns")),
    "decimals": pa.Array.from_buffers(pa.decimal128(3), 5, [None, pa.py_buffer(bytes(range(80)))]),
    "texts in structs": TEXTS,
    "texts in lists": pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 5], pa.int32()), TEXTS),
    "texts in maps": pa.MapArray.from_arrays(
        pa.array([0, 2, 2, 3, 4, 5], pa.int32()), no_text(5), TEXTS
    ),
    "texts in fixed-size lists": pa.FixedSizeListArray.from_arrays(no_text(10), 2),
}
"""Values that are stored and that Python has no form for."""


def bytes_of(column):
    """What a column without a slice is made of, but for what its nulls hide."""
    batch = pa.record_batch({"c": pa.concat_arrays([*column.chunks])})
    return pa.ipc.read_record_batch(batch.serialize(), byte_schema(batch.schema))["c"].to_pylist()


@pytest.mark.parametrize("column", NO_PYTHON.values(), ids=NO_PYTHON)
@pytest.mark.parametrize("sort_by", [(), ("k",)])
def test_values_that_python_lacks_are_merged(tmp_path, column, sort_by):
    for start in (0, 5):
        append(tmp_path / "s", column, start, sort_by=sort_by)
    before = open_shuffle(tmp_path / "s").read().read_all()
    merge(tmp_path / "s")
    found = open_shuffle(tmp_path / "s")
    assert sum(file.num_regions for file in found.map_outputs[0].files) == 1
    assert bytes_of(found.read().read_all()["c"]) == bytes_of(before["c"])


@pytest.mark.parametrize("column", NO_PYTHON.values(), ids=NO_PYTHON)
def test_a_map_task_joins_regions_of_values_that_python_lacks(tmp_path, column):
    table = pa.table({"k": list(range(5)) * 200, "c": pa.chunked_array([column] * 200)})
    options = WriteOptions(sync=False, sort_buffer_bytes=4 << 10, rewrite="always")
    receipt = write_shuffle(
        table.to_batches(max_chunksize=5), tmp_path / "s", num_subpartitions=2, keys="k",
        for_spark=False, options=options,
    )  # fmt: skip
    shuffle = open_shuffle(tmp_path / "s")
    assert receipt.counters["merged_regions"] > 1
    assert shuffle.verify().num_rows == 1_000


@pytest.mark.parametrize("column", NO_PYTHON.values(), ids=NO_PYTHON)
def test_a_mistake_in_values_that_python_lacks_is_found(tmp_path, monkeypatch, column):
    for start in (0, 5):
        append(tmp_path / "s", column, start, n=1)
    mix_up(monkeypatch, rolled)
    with pytest.raises(CorruptShuffleError, match=r"differ from the files it was merged from"):
        merge(tmp_path / "s")
