"""Statistics that lie, each behind checksums that fit, are noticed by ``verify``."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from arrow_format import WriteOptions, open_shuffle
from arrow_format.arrays.buffers import to_arrow
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.index_file import encode_index
from arrow_format.format.statistics import UNKNOWN
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.outputs import MapOutputs
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.write.merge_policy import MergePolicy
from tests.support.indexes import decode_index, said_of
from tests.support.small_shuffles import write_rows

N = 4
OPTIONS = WriteOptions(sync=False, chunk_bytes=1, statistics="all")
ROWS = pa.record_batch(
    {
        "k": pa.array(range(20)),
        "t": pa.array([None, *(f"text {i:03} and more than sixteen" for i in range(19))]),
        "x": pa.array([float("nan"), *(i / 2 for i in range(19))]),
    }
)


@pytest.fixture
def path(tmp_path):
    write_rows(tmp_path / "s", [ROWS], "k", n=N, options=OPTIONS)
    return tmp_path / "s"


def logged(path):
    """The only file, as the log names it."""
    (output,) = open_shuffle(path).map_outputs
    (file,) = output.files
    return file


def log(path, **changes):
    """Change what the log says of the file, behind checksums that fit."""
    (entry_file,) = (path / "commit_log").glob("*/*.entry")
    entry = decode_entry(entry_file.read_bytes())
    (output,) = entry.map_outputs
    (file,) = output.files
    outputs = MapOutputs.of([replace(output, files=(replace(file, **changes),))])
    content = replace(entry.content, added=outputs)
    entry_file.write_bytes(encode_entry(structs.replace(entry, content=content)))


def index(path, change):
    """Change the statistics in the index by a function, behind checksums that fit."""
    file = logged(path)
    index_file = path / file.index_path
    reader = PartitionedFileReader(open_shuffle(path).storage, file)
    statistics = dict(reader.statistics)
    change(statistics)
    metadata, regions = decode_index(index_file.read_bytes())
    forged = encode_index(metadata, regions, statistics)
    index_file.write_bytes(forged)
    log(path, **said_of(forged))


def with_value(values, at, value):
    changed = values.to_pylist()
    changed[at] = value
    return pa.array(changed, values.type)


def test_honest_statistics_are_not_refused(path):
    assert open_shuffle(path).verify().ok
    assert len(logged(path).statistics) == 3


def test_wider_bounds_are_no_lies(path):
    def widen(statistics):
        x = statistics["x"]
        none = pa.nulls(len(x), x.minimum.type)
        statistics["x"] = replace(x, minimum=none, maximum=none)
        statistics["t"] = replace(
            statistics["t"], maximum=pa.array(["z"] * len(x)), minimum=pa.array([""] * len(x))
        )
        statistics["k"] = replace(statistics["k"], null_count=np.full(len(x), UNKNOWN))

    index(path, widen)
    log(path, first_subpartition=0, end_subpartition=N)
    assert open_shuffle(path).verify().ok


@pytest.mark.parametrize(
    ("column", "side", "value"),
    [
        ("k", "minimum", 100),
        ("k", "maximum", -1),
        ("t", "minimum", "text 999"),
        ("t", "maximum", "text"),
        ("x", "maximum", -1.0),  # below NaN, too
        ("x", "minimum", float("nan")),
    ],
)
def test_a_bound_of_a_chunk_that_lies(path, column, side, value):
    def lie(statistics):
        bounds = getattr(statistics[column], side)
        at = len(bounds) - 1
        changed = {side: with_value(bounds, at, value)}
        statistics[column] = replace(statistics[column], **changed)

    index(path, lie)
    message = rf"chunk 3: column '{column}' has .* with \d nulls, where the index says .*would lose"
    with pytest.raises(CorruptShuffleError, match=message):
        open_shuffle(path).verify()
    report = open_shuffle(path).verify(raise_on_damage=False)
    assert len(report.problems) == 1


def test_nulls_of_a_chunk_that_are_counted_wrongly(path):
    def lie(statistics):
        nulls = statistics["t"].null_count.copy()
        nulls[nulls.argmax()] = 0
        statistics["t"] = replace(statistics["t"], null_count=nulls)

    index(path, lie)
    with pytest.raises(CorruptShuffleError, match="with 1 nulls, where the index says"):
        open_shuffle(path).verify()


@pytest.mark.parametrize(
    ("column", "side", "value"),
    [
        ("k", "minimum", (1).to_bytes(8, "little")),
        ("k", "maximum", (18).to_bytes(1, "little")),
        ("t", "maximum", b"text 018 and mor"),
        ("x", "minimum", np.array([0.25]).tobytes()),
    ],
)
def test_a_bound_of_a_file_that_lies(path, column, side, value):
    statistics = logged(path).statistics.to_pylist()
    for entry in statistics:
        if entry["column"] == 1 + ROWS.schema.get_field_index(column):
            entry[side] = value
    log(path, statistics=pa.array(statistics, logged(path).statistics.type))
    with pytest.raises(CorruptShuffleError, match=f"column '{column}' has .*where the log says"):
        open_shuffle(path).verify()


def test_statistics_in_the_log_that_are_of_another_type(path):
    statistics = logged(path).statistics.to_pylist()
    statistics[0]["minimum"] = b"123"
    log(path, statistics=pa.array(statistics, logged(path).statistics.type))
    with pytest.raises(CorruptShuffleError, match="column 'k' that are not int64: a value of 3"):
        open_shuffle(path).verify()
    assert len(open_shuffle(path).verify(raise_on_damage=False).problems) == 1


@pytest.mark.parametrize(("first", "end"), [(1, N), (0, N - 1)])
def test_rows_outside_of_the_stated_subpartitions(path, first, end):
    log(path, first_subpartition=first, end_subpartition=end)
    with pytest.raises(CorruptShuffleError, match=f"where the log says {first} to {end - 1}"):
        open_shuffle(path).verify()


def test_an_index_without_the_statistics_that_it_names(path):
    index(path, dict.clear)
    with pytest.raises(CorruptShuffleError, match=r"shuffle.index: the index has no statistics"):
        open_shuffle(path).verify()
    assert open_shuffle(path).read().read_all().num_rows == 20  # which asks for none


# Merges, and the same rows as a later schema ------------------------------------------------------


def merged(tmp_path, rewrite):
    path = tmp_path / "m"
    for number, statistics in enumerate(["all", ("k",), ("k", "t")]):
        rows = ROWS.set_column(0, "k", to_arrow(np.arange(20) + 100 * number))
        write_rows(
            path, [rows], "k", n=N, mode="append", options=replace(OPTIONS, statistics=statistics)
        )
    merge_shuffle(path, policy=MergePolicy(rewrite=rewrite), options=OPTIONS, by="map_output")
    return open_shuffle(path)


@pytest.mark.parametrize("rewrite", ["never", "always"])
def test_a_merge_keeps_what_is_known(tmp_path, rewrite):
    shuffle = merged(tmp_path, rewrite)
    assert len(shuffle.map_outputs) == 1
    assert shuffle.verify().ok
    known = shuffle.map_outputs.file_statistics(["k", "t", "x"], shuffle.snapshot.newest.columns)
    assert known["k"].minimum.to_pylist() == [0]
    assert known["k"].maximum.to_pylist() == [219]
    # Rows that were decoded are counted anew; a chunk that was copied is as unknown as before.
    is_decoded = rewrite == "always"
    assert known["t"].null_count.tolist() == [3 if is_decoded else UNKNOWN]
    assert known["x"].maximum.is_valid().to_pylist() == [is_decoded]
    (file,) = shuffle.map_outputs[0].files
    reader = PartitionedFileReader(shuffle.storage, file)
    assert reader.metadata.statistics == ("k", "t", "x")
    part = reader.of_ranges([(0, shuffle.num_subpartitions)])
    chunks = part.chunk_statistics(["t"], shuffle.schema)["t"]
    assert (chunks.null_count == UNKNOWN).any() == (not is_decoded)
    assert all(block.statistics_length for block in reader.directory.blocks)


def test_chunks_as_a_later_schema(path):
    reader = PartitionedFileReader(open_shuffle(path).storage, logged(path))
    later = pa.schema([("k", pa.int64()), ("new", pa.int32()), ("x", pa.float64())])
    found = reader.of_ranges([(0, 1 << 20)]).chunk_statistics(["k", "new"], later)
    assert list(found) == ["k", "new"]
    assert found["new"].null_count.tolist() == found["new"].num_rows.tolist()
    assert found["new"].minimum.type == pa.int32()
    assert found["k"].num_rows.sum() == 20
