"""A merge that mixed rows up is found before its inputs could go, even if all counts are right."""

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
from arrow_format.region_joiner import RegionJoiner

FAST = WriteOptions(sync=False)


def values_of_others(batch):
    return pa.array(batch["v"].to_numpy()[::-1].copy())


def one_invented(batch):
    values = batch["v"].to_numpy().copy()
    values[0] = -7
    return pa.array(values)


def rolled(batch):
    return pa.array(np.roll(batch["v"].to_numpy(), 1))


@pytest.mark.parametrize("mistake", [values_of_others, one_invented, rolled])
@pytest.mark.parametrize("sort_by", [(), ("k",), ("v",)])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_that_are_not_those_of_the_inputs(tmp_path, monkeypatch, mistake, sort_by, codec):
    path = tmp_path / "s"
    for start in range(0, 300, 100):
        numbers = np.arange(start, start + 100)
        write_shuffle(
            pa.table({"k": numbers, "v": numbers * 3}), path, num_subpartitions=2, keys="k",
            mode="append", sort_by=sort_by, options=WriteOptions(sync=False, codec=codec),
        )  # fmt: skip
    before = open_shuffle(path).read().read_all()
    real = RegionJoiner.parts

    def parts(self):
        for batch, clustering in real(self):
            columns = [batch["k"], mistake(batch)]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema), clustering

    with monkeypatch.context() as patched:
        patched.setattr(RegionJoiner, "parts", parts)
        with pytest.raises(CorruptShuffleError, match=r"differ from the files it was merged from"):
            merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=FAST)
    assert open_shuffle(path).version == 3
    assert open_shuffle(path).read().read_all().equals(before)
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=FAST)
    assert open_shuffle(path).version == 4
    assert open_shuffle(path).read().read_all().equals(before)


@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_structs_of_nulls_in_lists_are_merged(tmp_path, rewrite):
    """PyArrow makes them invalid where it casts a slice of them."""
    type_ = pa.list_(pa.struct([("n", pa.null())]))
    lists = pa.array([[{"n": None}] * (i % 3) for i in range(40)], type_)
    for start in (0, 40):
        table = pa.table({"k": range(start, start + 40), "l": lists})
        write_shuffle(table, tmp_path, num_subpartitions=2, keys="k", mode="append", options=FAST)
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite=rewrite), options=FAST)
    rows = open_shuffle(tmp_path).read().read_all().sort_by("k")
    assert rows["l"].to_pylist() == 2 * lists.to_pylist()


def no_text(n):
    """An Arrow column of strings that are not UTF-8, as other writers may make them."""
    return pa.array([b"\xed%d" % i for i in range(n)], pa.binary()).view(pa.string())


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_texts_that_are_no_text_are_merged_as_the_bytes_they_are(tmp_path, codec, rewrite):
    for start in (0, 10):
        table = pa.table({"k": range(start, start + 10), "s": no_text(10)})
        write_shuffle(
            table, tmp_path / "s", num_subpartitions=2, keys="k", mode="append",
            options=WriteOptions(sync=False, codec=codec),
        )  # fmt: skip
    merge_shuffle(tmp_path / "s", policy=MergePolicy(rewrite=rewrite), options=FAST)
    found = open_shuffle(tmp_path / "s")
    assert len(found.map_outputs) == 1
    texts = found.read().read_all()["s"].combine_chunks().view(pa.binary())
    assert sorted(texts.to_pylist()) == sorted(2 * [b"\xed%d" % i for i in range(10)])


def test_texts_inside_of_others_that_are_no_text_are_an_error_of_ours(tmp_path):
    for start in (0, 10):
        inner = pa.StructArray.from_arrays([no_text(10)], ["t"])
        table = pa.table({"k": range(start, start + 10), "s": inner})
        write_shuffle(
            table, tmp_path / "s", num_subpartitions=2, keys="k", mode="append", options=FAST
        )
    with pytest.raises(CorruptShuffleError, match="is no UTF-8, so the merge cannot be checked"):
        merge_shuffle(tmp_path / "s", policy=MergePolicy(rewrite="always"), options=FAST)
    assert open_shuffle(tmp_path / "s").num_rows == 20
