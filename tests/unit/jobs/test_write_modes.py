"""errorifexists, overwrite, append, ignore, and what may stand at the path."""

import pyarrow as pa
import pytest

from arrow_format import (
    HashPartitioner,
    SchemaError,
    ShuffleExistsError,
    open_shuffle,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import (
    SCHEMA,
    N,
    begin,
    files_below,
    numbered,
    run,
    values,
    write_rows,
    write_tasks,
)

# Modes --------------------------------------------------------------------------------------------


def test_errorifexists(path):
    assert write_tasks(path, [[numbered([1])]], N).version == 1
    before = files_below(path)
    with pytest.raises(ShuffleExistsError, match=r"there is a shuffle already \(version 1\)"):
        write_tasks(path, [[numbered([2])]], N)
    assert files_below(path) == before


def test_overwrite(path):
    assert write_tasks(path, [[numbered([1, 2])]], N, mode="overwrite").version == 1
    other = pa.record_batch({"p": [0], "x": ["another schema"]})
    assert write_tasks(path, [[other]], 9, mode="overwrite").version == 2
    shuffle = open_shuffle(path)
    assert shuffle.read().read_all().to_pylist() == [{"p": 0, "x": "another schema"}]
    assert shuffle.num_subpartitions == 9
    assert values(path, version=1) == [0, 1]


def test_append(path):
    assert write_tasks(path, [[numbered([1, 2])]], N, mode="append").version == 1
    assert (
        write_tasks(path, [[numbered([1], 2)], [numbered([1], 3)]], N, mode="append").version == 2
    )
    assert values(path) == [0, 2, 3, 1]
    assert values(path, version=1) == [0, 1]
    write_tasks(path, [[numbered([4], 9)]], N, mode="overwrite")
    write_tasks(path, [[numbered([4], 10)]], N, mode="append")
    assert values(path) == [9, 10]


def test_ignore(path):
    first = write_tasks(path, [[numbered([1, 2])]], N, mode="ignore")
    before = files_below(path)
    again = write_tasks(path, [[numbered([3])]], N, mode="ignore")
    assert (again.version, again.num_rows) == (first.version, first.num_rows) == (1, 2)
    assert again.subpartition_rows.equals(first.subpartition_rows)
    assert files_below(path) == before, "what the ignored job wrote is removed"
    assert values(path) == [0, 1]


def test_ignore_does_not_consume_its_input(path):
    write_tasks(path, [[numbered([1])]], N)

    def batches():
        yield numbered([2])
        pytest.fail("the shuffle is there: no row is needed")

    assert write_rows(path, batches(), "p", mode="ignore").num_rows == 1


@pytest.mark.parametrize("nullable_first", [True, False])
def test_append_with_another_nullability_is_read_as_nullable(path, nullable_first):
    strict = SCHEMA.set(1, pa.field("v", pa.int64(), nullable=False))
    first, second = (SCHEMA, strict) if nullable_first else (strict, SCHEMA)
    values_of = {SCHEMA: [None, 1], strict: [2, 3]}
    for schema in (first, second):
        columns = [pa.array([1, 1], "i4"), pa.array(values_of[schema]), pa.array(["", ""])]
        write_tasks(path, [[pa.record_batch(columns, schema=schema)]], N, mode="append")
    assert values(path) == values_of[first] + values_of[second]
    assert open_shuffle(path).schema.equals(SCHEMA)
    assert open_shuffle(path, version=1).schema.equals(first)
    open_shuffle(path).verify()
    for batch in open_shuffle(path).read():
        batch.validate(full=True)


@guarantee("refused append")
def test_append_of_another_n(path):
    write_tasks(path, [[numbered([1])]], N)
    with pytest.raises(SchemaError, match="has 5 subpartitions; cannot append with 6"):
        write_tasks(path, [[numbered([1])]], N + 1, mode="append")


@guarantee("refused append")
def test_append_of_another_partitioner(path):
    write_tasks(path, [[numbered([1])]], N)
    job = begin(path, partitioner=HashPartitioner("p"))
    with pytest.raises(SchemaError, match=r"is partitioned by .*column.*; cannot append .*hash"):
        open_target(job, "append")
    with pytest.raises(SchemaError, match="is partitioned by"):
        commit_job(job, [], mode="append")


# What stands at the path --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["errorifexists", "overwrite", "append", "ignore"])
def test_a_path_that_is_a_file_or_holds_something_else(path, mode):
    path.write_bytes(b"mine")
    with pytest.raises(ShuffleExistsError, match=f"{path}: is a file"):
        write_tasks(path, [[numbered([1])]], N, mode=mode)
    assert path.read_bytes() == b"mine"
    path.unlink()
    path.mkdir()
    (path / "thesis.tex").write_bytes(b"mine")
    with pytest.raises(
        ShuffleExistsError, match=r"holds 'thesis\.tex' and is not a shuffle; nothing"
    ):
        write_tasks(path, [[numbered([1])]], N, mode=mode)
    assert files_below(path) == ["thesis.tex"]


def test_an_empty_directory_is_fine(path):
    path.mkdir()
    assert write_tasks(path, [[numbered([1])]], N).version == 1


def test_what_an_uncommitted_job_left_is_no_hindrance(path):
    job = begin(path)
    run(job, 0, [1])
    assert write_tasks(path, [[numbered([2])]], N).version == 1
    assert values(path) == [0]
