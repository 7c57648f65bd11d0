"""Map outputs as columns: what objects say, in reading order, made when they are asked for."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.arrays.column_ids import Columns
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import decode_table, encode_table
from arrow_format.format.statistics import UNKNOWN
from arrow_format.log.output_table import SCHEMA
from arrow_format.log.outputs import (
    NO_OUTPUTS,
    MapOutputs,
    check_keys,
    decode_outputs,
    encode_outputs,
    key_of,
)
from arrow_format.model import (
    FILE_STATISTICS,
    MAX_INTEGER,
    MapOutput,
    PartitionedFile,
    Position,
)
from tests.support.guarantees import guarantee

SMALL = st.integers(0, 1 << 40)


@st.composite
def statistics(draw, rows):
    """What a log entry says of the columns of a file of so many rows."""
    bound = st.none() | st.binary(max_size=9)
    return pa.array(
        [
            {
                "column": id_,
                "minimum": draw(bound),
                "maximum": draw(bound),
                "null_count": draw(st.integers(0, rows)),
            }
            for id_ in draw(st.sets(st.integers(1, 9)))
        ],
        FILE_STATISTICS,
    )


@st.composite
def map_outputs(draw, *, placed=True):
    """Some map outputs, each once, of any files that a reader takes."""
    made = []
    for task in range(draw(st.integers(0, 6))):
        files = []
        for number in range(draw(st.integers(0, 3))):
            rows = draw(st.integers(0, 1 << 30))
            files.append(
                PartitionedFile(
                    path=f"map_outputs/j{task}/{number}",
                    num_rows=rows,
                    num_regions=draw(st.integers(min(rows, 1), min(rows, 3))),
                    data_bytes=draw(SMALL),
                    raw_bytes=draw(SMALL),
                    index_bytes=draw(SMALL),
                    directory_bytes=draw(SMALL),
                    directory_crc32=draw(st.integers(0, 2**32 - 1)),
                    num_broadcast_rows=draw(st.integers(0, rows)),
                    first_subpartition=draw(st.integers(0, 5)),
                    end_subpartition=draw(st.integers(6, 9)),
                    statistics=draw(statistics(rows)),
                    root=draw(st.sampled_from(["", "/disk/a", "/ü", "/\udcff"])),
                )
            )
        version = draw(st.integers(1, 9))
        position = Position(version, task, draw(st.integers(version, 9)))
        made.append(
            MapOutput(
                job_id=draw(st.sampled_from(["a", "b" * 32, "x-y_0"])),
                map_task=task,
                attempt=draw(SMALL),
                files=tuple(files),
                position=position if placed else None,
                column_ids=draw(st.sampled_from([(), (1,), (7, 2, 3), (1, 2**31 - 1)])),
            )
        )
    return tuple(made)


@pytest.mark.slow
@settings(deadline=None)
@given(objects=map_outputs())
def test_columns_say_what_the_objects_say(objects):
    data = encode_outputs(MapOutputs.of(objects))
    found = decode_outputs(data)
    assert len(found) == len(objects)
    files = [file for output in objects for file in output.files]
    assert found.num_files == len(files)
    assert found.num_rows == sum(file.num_rows for file in files)
    assert found.num_bytes == sum(file.data_bytes for file in files)
    assert found.raw_bytes == sum(file.raw_bytes for file in files)
    assert found.num_broadcast_rows == sum(file.num_broadcast_rows for file in files)
    assert found.delivered_rows(3) == found.num_rows + 2 * found.num_broadcast_rows
    assert found.of_files("directory_crc32").tolist() == [file.directory_crc32 for file in files]
    assert found.keys.to_pylist() == list(map(key_of, objects))
    assert found.job_ids == {output.job_id for output in objects}
    assert found.last_versions.tolist() == [output.position.last_version for output in objects]
    assert tuple(found) == objects
    assert found == MapOutputs.of(objects)
    assert hash(found) == hash(MapOutputs.of(objects))


@settings(deadline=None)
@given(objects=map_outputs(placed=False), number=st.integers(1, 99))
def test_those_of_no_version_yet_get_the_number_of_their_entry(objects, number):
    before = MapOutputs.of(objects)
    columns = MapOutputs.of_table(before.table).at_version(number)
    placed = before.at_version(number)
    assert list(placed) == list(columns)
    assert [output.position for output in placed] == [
        Position(number, output.map_task, number) for output in objects
    ]
    assert placed.versions.tolist() == columns.versions.tolist() == [number] * len(objects)
    assert list(placed.at_version(number + 1)) == list(placed), "what has a place keeps it"


@pytest.mark.slow
@settings(deadline=None)
@given(objects=map_outputs(), data=st.data())
def test_what_is_selected_is_what_objects_say(objects, data):
    outputs = MapOutputs.of(objects)
    chosen = data.draw(st.lists(st.sampled_from(objects), unique_by=key_of) if objects else
                       st.just([]))  # fmt: skip
    keys = pa.array([key_of(output) for output in chosen], pa.string())
    assert list(outputs.without(keys)) == [one for one in objects if one not in chosen]
    assert list(outputs.among(keys)) == [one for one in objects if one in chosen]
    assert list(outputs.of_jobs(["a"])) == [one for one in objects if one.job_id == "a"]
    assert list(outputs.added_after(4)) == [one for one in objects if one.position.last_version > 4]


@settings(deadline=None)
@given(objects=map_outputs(), data=st.data())
def test_parts_are_joined_in_reading_order(objects, data):
    """A merged output is where the first of its inputs was, whichever part it came in."""
    parts: list[list[MapOutput]] = [[] for _ in range(3)]
    for output in objects:
        parts[data.draw(st.integers(0, 2))].append(output)
    joined = MapOutputs.concat([MapOutputs.of(part) for part in parts])
    assert list(joined) == sorted(objects, key=lambda output: output.position[:2])


def test_nothing_is_decoded_until_it_is_asked_for():
    asked = []

    def table():
        asked.append(True)
        return SCHEMA.empty_table()

    outputs = MapOutputs(table)
    assert not asked
    assert (len(outputs), list(outputs)) == (0, [])
    assert len(asked) == 1
    assert MapOutputs.of(outputs) is outputs
    assert MapOutputs.concat([]) == NO_OUTPUTS
    assert outputs != 5
    assert repr(outputs) == "MapOutputs(())"


FILE = PartitionedFile("a", 1, 1, 8, 8, 8, 8, 8)
ONE = MapOutput("j", 0, 1, (FILE,), position=Position(1, 0, 1))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([replace(ONE, attempt=-1)], "is not from 0 to"),
        ([replace(ONE, attempt=MAX_INTEGER + 1)], "is not from 0 to"),
        ([replace(ONE, job_id="")], "no name of a job"),
        ([replace(ONE, job_id="a\nb")], "no name of a job"),
        ([replace(ONE, job_id="a\n")], "no name of a job"),
        ([replace(ONE, files=(replace(FILE, path="a\n"),))], "not normalised"),
        ([replace(ONE, files=(FILE, FILE))], "named twice"),
        ([ONE, replace(ONE, files=())], "named twice"),
        ([replace(ONE, files=(replace(FILE, num_rows=1 << 31),))], "rows in its regions"),
        (
            [
                replace(
                    ONE,
                    files=tuple(
                        replace(FILE, path=str(n), data_bytes=MAX_INTEGER) for n in range(4)
                    ),
                )
            ],
            "data_bytes of all files together",
        ),
    ],
)
def test_what_no_writer_writes_is_refused(outputs, message):
    with pytest.raises(ValueError, match=message):
        decode_outputs(encode_outputs(MapOutputs.of(outputs)))


def test_what_no_writer_writes_is_refused_among_others_too():
    broken = MapOutputs.of([replace(ONE, attempt=-1)]).table

    def check(table):
        assert table is broken
        raise ValueError("attempt -1")

    parts = [MapOutputs.of([replace(ONE, map_task=1)]), MapOutputs(lambda: broken, check)]
    with pytest.raises(ValueError, match="attempt -1"):
        MapOutputs.concat(parts)


def with_bounds(number, *columns):
    """A map output of one file of ten rows with ``(id, minimum, maximum, null count)``."""
    named = [dict(zip(FILE_STATISTICS.names, column, strict=True)) for column in columns]
    file = replace(
        FILE, path=f"f{number}", num_rows=10, statistics=pa.array(named, FILE_STATISTICS)
    )
    return MapOutput("job", number, 0, (file,), position=Position(1, number, 1))


def test_statistics_of_all_files_as_a_later_schema():
    outputs = MapOutputs.of(
        [
            with_bounds(0, (1, b"\xfe\xff", b"\x05\x00", 3), (2, b"x", None, 0)),
            MapOutput("job", 1, 0, (), position=Position(1, 1, 1)),
            with_bounds(2),
            with_bounds(3, (1, None, None, 10)),
            with_bounds(4, (2, b"", "\u00e9".encode(), 0), (1, bytes(8), b"\x01" + bytes(7), 0)),
        ]
    )
    schema = pa.schema([("a", pa.int64()), ("t", pa.string()), ("new", pa.date32())])
    for known in (outputs, decode_outputs(encode_outputs(outputs))):
        found = known.file_statistics(["a", "t", "new"], Columns(schema, (1, 2, 3)))
        assert {name: column.minimum.type for name, column in found.items()} == {
            field.name: field.type for field in schema
        }
        assert found["a"].minimum.to_pylist() == [-2, None, None, 0]
        assert found["a"].maximum.to_pylist() == [5, None, None, 1]
        assert found["a"].null_count.tolist() == [3, UNKNOWN, 10, 0]
        assert found["t"].minimum.to_pylist() == ["x", None, None, ""]
        assert found["t"].maximum.to_pylist() == [None, None, None, "é"]
        assert found["t"].null_count.tolist() == [0, UNKNOWN, UNKNOWN, 0]
        assert found["new"].null_count.tolist() == [UNKNOWN] * 4
        assert found["a"].num_rows.tolist() == [10] * 4
    with pytest.raises(CorruptShuffleError, match="column 'a' that are not int8: a value of 2"):
        outputs.file_statistics(["a"], Columns(pa.schema([("a", pa.int8())]), (1,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_subpartition": 3, "end_subpartition": 3}, "rows in no subpartition"),
        ({"first_subpartition": 4, "end_subpartition": 3}, "rows in no subpartition"),
        (
            {"statistics": pa.array([(1, None, None, 2)], FILE_STATISTICS)},
            "more nulls of a column than rows",
        ),
        (
            {"statistics": pa.array([(1, None, None, -1)], FILE_STATISTICS)},
            "a number is not from 0",
        ),
    ],
)
def test_statistics_that_no_writer_writes_are_refused(changes, message):
    output = MapOutput("job", 0, 0, (replace(FILE, **changes),))
    with pytest.raises(ValueError, match=message):
        decode_outputs(encode_outputs(MapOutputs.of([output])))


def test_a_table_of_other_columns_or_with_nulls_is_refused():
    table = MapOutputs.of([ONE]).table
    more = table.append_column("more", pa.array([1]))
    for other in (table.drop_columns("attempt"), more):
        with pytest.raises((ValueError, OSError), match="a batch of "):
            decode_table(encode_table(other), SCHEMA)
    for name in ("job_id", "order", "files"):
        at = SCHEMA.get_field_index(name)
        lying = table.set_column(at, SCHEMA.field(at), pa.nulls(1, SCHEMA.field(at).type))
        with pytest.raises(ValueError, match=f"column {name} has nulls"):
            decode_table(encode_table(lying), SCHEMA)


def test_names_inside_of_a_section_do_not_matter():
    table = MapOutputs.of([ONE]).table
    names = [f"column {at}" for at in range(table.num_columns)]
    assert decode_table(encode_table(table.rename_columns(names)), SCHEMA) == table


@pytest.mark.slow
@guarantee("hostile files")
def test_a_table_that_would_fill_the_memory_is_refused():
    schema = pa.schema([pa.field("n", pa.int64(), False)])
    data = encode_table(pa.table({"n": np.zeros(20_000_000, np.int64)}, schema))
    assert len(data) < 100_000
    with pytest.raises(ValueError, match=r"bytes"):
        decode_table(data, schema)


@pytest.mark.parametrize("keys", [["a"], ["a/b"], ["a/1", "a/1"], ["a/-1"], ["/1"], ["a/1\n"]])
def test_keys_that_name_nothing_are_refused(keys):
    with pytest.raises(ValueError, match="not named by jobs and map tasks, each once"):
        check_keys(pa.array(keys))
