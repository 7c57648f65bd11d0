"""Deletion by key against pandas: any data, keys, layout, appends and merges in any order."""

import contextlib
import tempfile
from datetime import timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    CommitConflictError,
    HashPartitioner,
    RangePartitioner,
    WriteOptions,
    collect_garbage,
    delete_rows,
    erasure_status,
    open_shuffle,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.merge_work import MapOutputMerges, SubpartitionMerge
from arrow_format.jobs.target import open_target
from arrow_format.model import BROADCAST
from tests.support.exhaustive import examples
from tests.support.foreign_writer import check_but_for_broadcasts, written_by
from tests.support.guarantees import guarantee
from tests.support.merges import merge_by
from tests.support.small_shuffles import begin

KEYS = {
    pa.int64(): st.none() | st.integers(-3, 8),
    pa.int8(): st.none() | st.integers(-3, 8),
    pa.string(): st.none() | st.sampled_from(["", "a", "ab", "b", "\0"]),
    pa.float64(): st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5, -1.5]),
    pa.bool_(): st.none() | st.booleans(),
}


def some_for_all(ids, batch):
    """As by hash, but of some map tasks every third or second row is read by every subpartition."""
    task = batch["v"][0].as_py() % 1_000 // 100
    every = (0, 3, 2)[task % 3]
    if every:
        ids[::every] = BROADCAST
    return ids


@st.composite
def programs(draw):
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2))
    key = st.tuples(*(KEYS[type_] for type_ in types))
    append = st.tuples(
        st.just("append"), st.lists(st.lists(key, max_size=25), min_size=1, max_size=3)
    )
    delete = st.tuples(st.sampled_from(["delete", "mask"]), st.lists(key, max_size=4))
    how = st.sampled_from(["never", "always", "subpartition"])
    merge = st.tuples(st.just("merge"), st.tuples(how, st.lists(key, max_size=3)))
    first = draw(append)
    steps = draw(st.lists(st.one_of(append, delete, delete, merge), max_size=6))
    return types, [first, *steps]


def comparable(frame):
    """Keys as text that is equal where Spark's groups are: one NaN, one zero, one null."""
    texts = []
    for name in frame.columns:
        values = [
            "null" if v is None else repr(v + 0.0) if isinstance(v, float) else repr(v)
            for v in frame[name].tolist()
        ]
        texts.append(pd.Series(values, index=frame.index, dtype=object))
    return pd.Series(list(zip(*texts, strict=True)), index=frame.index, dtype=object)


@contextlib.contextmanager
def after_its_writes(act):
    """Do something after a merge has written all files, and before it commits them."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (MapOutputMerges, SubpartitionMerge):

            def replacements(self, job, statuses, real=kind.replacements):
                found = real(self, job, statuses)
                act()
                return found

            patch.setattr(kind, "replacements", replacements)
        yield


def frames(shuffle, names):
    """Rows of each subpartition, in order: number and comparable key."""
    read = []
    for i in range(shuffle.num_subpartitions):
        table = shuffle.subpartition(i).read_all()
        keys = pd.DataFrame({n: pd.Series(table[n].to_pylist(), dtype=object) for n in names})
        numbers = table["v"].to_numpy()
        read.append(pd.DataFrame({"v": numbers, "key": comparable(keys)}))
    return read


@guarantee("deleted rows")
@guarantee("masked rows")
@settings(max_examples=examples(15, 200))
@given(
    programs(),
    st.sampled_from(["none", "zstd"]),
    st.sampled_from([(), (("s", "descending"),), (("k0", "ascending"), ("s", "ascending"))]),
    st.sampled_from(["hash", "some for all", "range"]),
)
def test_deletions_are_those_of_pandas(program, codec, sort_by, kind):
    types, steps = program
    names = [f"k{i}" for i in range(len(types))]
    fields = [pa.field(name, type_) for name, type_ in zip(names, types, strict=True)]
    schema = pa.schema([*fields, ("v", pa.int64()), ("s", pa.int64())])
    options = WriteOptions(
        sync=False, codec=codec, sort_buffer_bytes=4_096, chunk_bytes=64, statistics="all"
    )
    bounds = pa.table([pa.array([None], field.type) for field in fields], names)
    partitioner = {
        "hash": HashPartitioner(names),
        "some for all": HashPartitioner(names),
        "range": RangePartitioner(keys=names, bounds=bounds),
    }[kind]
    count = 0

    def columns_of(keys):
        return [pa.array([key[i] for key in keys], type_) for i, type_ in enumerate(types)]

    def left_of(before, keys):
        columns = {
            name: pd.Series([key[i] for key in keys], dtype=object) for i, name in enumerate(names)
        }
        gone = set(comparable(pd.DataFrame(columns))) if keys else set()
        return [frame[~frame["key"].isin(gone)].reset_index(drop=True) for frame in before]

    with tempfile.TemporaryDirectory() as path:
        for what, argument in steps:
            before = frames(open_shuffle(path), names) if count else []
            if what == "append":
                count += 1
                job = begin(path, schema, 3, partitioner, options, sort_by=sort_by)
                if kind == "some for all":
                    job = written_by(job, some_for_all)
                open_target(job, "append")
                statuses = []
                for task, keys in enumerate(argument):
                    v = np.arange(len(keys)) + 1_000 * count + 100 * task
                    columns = [*columns_of(keys), v, v * 7 % 5]
                    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
                    parts = [batch.slice(i, 7) for i in range(0, len(keys), 7)]
                    statuses.append(run_map_task(job, task, 0, parts))
                commit_job(job, statuses, mode="append")
            elif what == "merge":
                how, masked = argument
                keys_meanwhile = pa.table(columns_of(masked), names)

                done = []

                def mask(keys=keys_meanwhile, done=done):
                    done.append(True)
                    if keys.num_rows:
                        delete_rows(path, keys, erase=False, options=options)

                with after_its_writes(mask), contextlib.suppress(CommitConflictError):
                    # Where rows in order were joined, it is not known which these are.
                    merge_by(path, how, options)
                expected = left_of(before, masked if done else [])
                assert all(map(pd.DataFrame.equals, expected, frames(open_shuffle(path), names)))
            else:
                receipt = delete_rows(
                    path,
                    pa.table(columns_of(argument), names),
                    erase=what == "delete",
                    options=options,
                )
                expected = left_of(before, argument)
                shuffle = open_shuffle(path)
                actual = frames(shuffle, names)
                assert [f["v"].tolist() for f in actual] == [f["v"].tolist() for f in expected]
                assert [f["key"].tolist() for f in actual] == [f["key"].tolist() for f in expected]
                lost = {
                    i: len(old) - len(new)
                    for i, (old, new) in enumerate(zip(before, expected, strict=True))
                    if len(old) > len(new)
                }
                assert receipt.subpartition_rows == lost
                assert shuffle.subpartition_rows.to_pylist() == [len(f) for f in expected]
                assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes
                last = receipt
        deleted = [step for step in steps if step[0] in ("delete", "mask") and step[1]]
        shuffle = open_shuffle(path)
        check_but_for_broadcasts(shuffle)
        kept = shuffle.read(columns=["v"]).read_all()
        collect_garbage(path, retention=timedelta(0), compact_log=True)
        if deleted:
            assert erasure_status(path, last).is_gone == last.erases
        assert open_shuffle(path).read(columns=["v"]).read_all() == kept
