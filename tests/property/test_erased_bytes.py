"""After an erasing deletion no file holds a deleted value; other chunks are copied as stored."""

import tempfile
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    WriteOptions,
    collect_garbage,
    delete_rows,
    erasure_status,
    open_shuffle,
    write_shuffle,
)
from arrow_format.model import INDEX_SUFFIX
from tests.support.customers import contents, without
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.held_bytes import held_bytes, held_chunks, raw_bytes
from tests.support.merges import files_of, merge_by

ERASED = -0x1122334455667788
"""The key to delete: the least of all, so that numbers are stored as what they are above it."""

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(38, 2)),
        ("l", pa.list_(pa.int64())),
    ]
)


def needle(number):
    """A value of a row to be erased, which no other has."""
    return ERASED + 0x1_0000 * (number + 1)


def table_of(keys, start):
    """Rows of some keys; 0 stands for the one that is erased."""
    rows = []
    for i, key in enumerate(keys, start):
        value = i if key else needle(i)
        rows.append(
            {
                "k": key or ERASED,
                "v": value,
                "s": f"{value:x}" if key else f"needle {value:x}",
                "d": Decimal(value).scaleb(-2),
                "l": [value] * (i % 3),
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["none", "zstd"]), st.lists(st.integers(0, 6), min_size=1, max_size=40)
        ),
        st.tuples(st.just("mask"), st.integers(1, 6)),
        st.tuples(st.just("merge"), st.sampled_from(["never", "always", "subpartition"])),
    ),
    min_size=1,
    max_size=5,
)


@guarantee("erased bytes")
@settings(max_examples=examples(25, 300))
@given(
    steps,
    st.sampled_from(["none", "zstd"]),
    st.sampled_from([(), ("v",)]),
    st.sampled_from([1, 4]),
    st.sampled_from([64, 1_000]),
)
def test_no_file_holds_what_was_erased_and_other_chunks_are_copies(
    program, codec, sort_by, n, chunk_bytes
):
    options = WriteOptions(
        sync=False, codec=codec, sort_buffer_bytes=1 << 16, chunk_bytes=chunk_bytes,
        statistics="all",
    )  # fmt: skip
    start = 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        for what, how in [(codec, [1, 0, 2, 0, 3]), *program]:
            if what in ("none", "zstd"):
                write_shuffle(
                    table_of(how, start), path, keys="k", num_subpartitions=n, mode="append",
                    sort_by=sort_by, options=replace(options, codec=what),
                )  # fmt: skip
                start += len(how)
            elif what == "mask":
                delete_rows(path, {"k": [how]}, erase=False, options=options)
            else:
                merge_by(path, how, options)
        before, version = contents(path), open_shuffle(path)
        masked = {how for what, how in program if what == "mask"}
        replaced = chunks_of(version)
        larger = replace(options, chunk_bytes=4_096)  # so would chunks be that are encoded again
        receipt = delete_rows(path, {"k": [ERASED]}, options=larger)
        assert contents(path) == without(before, {ERASED})
        new = [chunk.stored for chunks in chunks_of(open_shuffle(path)) for chunk in chunks]
        for chunks in replaced:
            if all(ERASED not in held_keys(chunk) for chunk in chunks):
                continue  # its file was not replaced
            copied = [c.stored for c in chunks if not held_keys(c) & {ERASED, *masked}]
            later = iter(new)
            assert all(any(stored == other for other in later) for stored in copied)
        collect_garbage(path, retention=timedelta(0), compact_log=True)
        assert erasure_status(path, receipt).is_gone
        held = held_bytes(path) + raw_bytes(path)
        assert b"needle" not in held
        for value in (ERASED, *map(needle, range(start))):
            assert value.to_bytes(8, "little", signed=True) not in held
            assert str(value).encode() not in held


def chunks_of(shuffle):
    root = Path(shuffle.path)
    return [held_chunks(root / (file.path + INDEX_SUFFIX)) for file in files_of(shuffle)]


def held_keys(chunk):
    return set(chunk.rows["k"].to_pylist())
