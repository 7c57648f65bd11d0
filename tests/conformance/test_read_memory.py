"""CONFORMANCE, group "Memory and resources": reading takes no more than it may."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    OptionError,
    ReadOptions,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.memory import check_memory

ALLOWED = 96 << 20
UNORDERED = ALLOWED // 2
"""What a read without an order takes at most: a few chunks, where the ordered one takes all."""

READ = """
from arrow_format import ReadOptions, open_shuffle

tiny, path, memory_bytes, ordered = sys.argv[1:]

how = {"ordered": ordered == "True"}
for batch in open_shuffle(tiny).read(**how):
    del batch
options = ReadOptions(memory_bytes=int(memory_bytes))
shuffle = open_shuffle(path, options=options)
base = forget_peak()
rows = sum(batch.num_rows for batch in shuffle.read(**how))
print(rows, resident_bytes() - base)
"""


def rows_of(count, *, text_bytes=0):
    """`count` rows that hardly compress, in batches; `p` is a permutation's low digits."""
    random = np.random.default_rng(0)
    for start in range(0, count, 50_000):
        k = np.arange(start, min(start + 50_000, count), dtype=np.int32)
        columns = {"k": k, "v": random.integers(0, 1 << 62, len(k))}
        if text_bytes:
            text = random.bytes(text_bytes * len(k))
            offsets = np.arange(0, len(text) + 1, text_bytes, dtype=np.int32)
            columns["s"] = pa.Array.from_buffers(
                pa.binary(), len(k), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
            )
        yield pa.record_batch(columns)


def in_one_subpartition(count):
    """Such rows of subpartition 0, whose keys are in no order within a batch."""
    random = np.random.default_rng(1)
    for batch in rows_of(count, text_bytes=40):
        yield batch.append_column("p", pa.array(np.zeros(batch.num_rows, np.int32))).set_column(
            0, "k", pa.array(random.permutation(batch.num_rows))
        )


def write_sorted(path, rows, **options):
    write_shuffle(
        rows, path, num_subpartitions=1, partitioner=ColumnPartitioner("p"), sort_by="k",
        options=WriteOptions(sync=False, codec_level=-5, **options), mode="append",
    )  # fmt: skip


CASES = {
    "narrow rows": ({}, 12_000_000, 100, {}),
    "20,000 subpartitions": ({"text_bytes": 40}, 3_000_000, 20_000, {}),
    "one huge subpartition": ({"text_bytes": 40}, 3_000_000, 1, {}),
    "without compression": ({"text_bytes": 40}, 3_000_000, 50, {"codec": "none"}),
    "wide rows": ({"text_bytes": 20_000}, 8_000, 20, {}),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "x"
    write_shuffle(rows_of(100, text_bytes=3), path, num_subpartitions=2, keys="k")
    return path


def check(num_rows, tiny, path, memory_bytes=ALLOWED, ordered=True, allowed=None):
    """Check the memory of a read of so many rows: what it is given, unless told."""
    check_memory(num_rows, allowed or memory_bytes, READ, tiny, path, memory_bytes, ordered)


@guarantee("reading memory")
@pytest.mark.parametrize("case", CASES)
def test_memory_keeps_to_the_option(tmp_path, tiny, case):
    shape, count, n, options = CASES[case]
    path = tmp_path / "x"
    options = WriteOptions(sync=False, codec_level=-5, **{"codec": "zstd", **options})
    write_shuffle(rows_of(count, **shape), path, num_subpartitions=n, keys="k", options=options)
    shuffle = open_shuffle(path)
    assert sum(output.raw_bytes for output in shuffle.map_outputs) > 1.4 * ALLOWED
    for ordered, most in ((True, ALLOWED), (False, UNORDERED)):
        check(count, tiny, path, ordered=ordered, allowed=most)


@guarantee("reading memory")
@exhaustive(but="mebibytes")
@pytest.mark.parametrize("mebibytes", [96, 160, 256])
def test_memory_of_twenty_thousand_subpartitions_keeps_to_what_is_given(tmp_path, tiny, mebibytes):
    allowed = mebibytes << 20
    write_shuffle(
        rows_of(5_000_000, text_bytes=40), tmp_path / "x", num_subpartitions=20_000, keys="k",
        options=WriteOptions(sync=False, codec_level=-5),
    )  # fmt: skip
    assert sum(output.raw_bytes for output in open_shuffle(tmp_path / "x").map_outputs) > allowed
    check(5_000_000, tiny, tmp_path / "x", memory_bytes=allowed)


@guarantee("reading memory")
def test_memory_of_a_sorted_subpartition_that_does_not_fit(tmp_path, tiny):
    write_sorted(tmp_path / "x", in_one_subpartition(3_000_000), chunk_bytes=64 << 10)
    assert open_shuffle(tmp_path / "x").map_outputs[0].files[0].num_regions >= 3
    check(3_000_000, tiny, tmp_path / "x")


@exhaustive(but="codec")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_of_a_sorted_subpartition_of_hundreds_of_regions(tmp_path, tiny, codec):
    sizes = {"chunk_bytes": 1 << 20, "sort_buffer_bytes": 2 << 20}
    write_sorted(tmp_path / "x", in_one_subpartition(4_000_000), codec=codec, **sizes)
    shuffle = open_shuffle(tmp_path / "x")
    assert sum(file.num_regions for file in shuffle.map_outputs[0].files) >= 300
    check(4_000_000, tiny, tmp_path / "x")


@exhaustive(but="codec")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_of_a_sorted_subpartition_of_large_chunks(tmp_path, tiny, codec):
    """Of which a piece is a part that must not keep the whole."""
    random = np.random.default_rng(1)
    num_rows = 7_000
    columns = {"p": np.zeros(num_rows, np.int32), "t": pa.array(["x" * 1_000] * num_rows)}
    for _ in range(16):
        rows = pa.record_batch({**columns, "k": random.permutation(num_rows)})
        write_sorted(tmp_path / "x", [rows], codec=codec, chunk_bytes=1_700 << 10)
    check(16 * num_rows, tiny, tmp_path / "x")


def test_more_memory_reads_more_at_once(tmp_path):
    write_shuffle(rows_of(3_000_000), tmp_path / "x", num_subpartitions=50, keys="k")
    few = open_shuffle(tmp_path / "x", options=ReadOptions(memory_bytes=96 << 20))
    many = open_shuffle(tmp_path / "x", options=ReadOptions(memory_bytes=512 << 20))
    assert len(few._reader.groups(None, None)) > 3 * len(many._reader.groups(None, None))
    assert few.read().read_all().equals(many.read().read_all())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_mapped_files_give_the_same_rows(tmp_path, codec):
    write_shuffle(
        rows_of(200_000, text_bytes=10), tmp_path / "x", num_subpartitions=9, keys="k",
        options=WriteOptions(codec=codec, sync=False),
    )  # fmt: skip
    mapped = open_shuffle(tmp_path / "x", options=ReadOptions(memory_map=True))
    assert mapped.read().read_all().equals(open_shuffle(tmp_path / "x").read().read_all())


def test_a_mapped_file_is_not_copied(tmp_path):
    write_shuffle(
        rows_of(200_000, text_bytes=10), tmp_path / "x", num_subpartitions=1, keys="k",
        options=WriteOptions(codec="none", sync=False),
    )  # fmt: skip
    before = pa.total_allocated_bytes()
    held = list(open_shuffle(tmp_path / "x", options=ReadOptions(memory_map=True)).reader(0, 1))
    assert sum(rows.batch.nbytes for rows in held) > 4_000_000
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_bytes": 1 << 10}, r"memory_bytes=1024: expected a whole number of bytes from"),
        ({"memory_bytes": "1g"}, r"memory_bytes='1g': expected"),
        ({"memory_bytes": True}, r"memory_bytes=True: expected"),
        ({"memory_map": 1}, r"memory_map=1: expected True or False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(OptionError, match=message):
        ReadOptions(**options)


def test_options_of_another_kind_are_refused(tiny):
    with pytest.raises(OptionError, match=r"options is WriteOptions: expected arrow_shuffle"):
        open_shuffle(tiny, options=WriteOptions())


def test_several_readers_share_the_memory():
    alone = ReadOptions(memory_map=True)
    for number in (1, 2, 8, 14):
        each = alone.shared_by(number)
        assert each.memory_map
        for name in ("fetched_bytes", "index_bytes", "group_bytes", "batch_bytes", "kept_bytes"):
            assert number * getattr(each, name) <= getattr(alone, name)
        assert number * each.working_set_bytes <= alone.working_set_bytes
    assert alone.shared_by(2).shared_by(3) == alone.shared_by(6)


@pytest.mark.parametrize(("memory", "readers", "needed"), [(256, 15, 272), (96, 5, 112)])
def test_too_little_memory_for_so_many_is_refused(memory, readers, needed):
    options = ReadOptions(memory_bytes=memory << 20)
    message = f"{readers} shuffles that one task reads need .* together, {needed} MiB"
    with pytest.raises(OptionError, match=message):
        options.shared_by(readers)
    assert ReadOptions(memory_bytes=needed << 20).shared_by(readers).readers == readers


def test_however_much_memory_there_is_batches_stay_far_below_what_one_can_hold():
    options = ReadOptions(memory_bytes=1 << 40)
    assert max(options.group_bytes, options.batch_bytes, options.working_set_bytes) <= 1 << 29
    few = ReadOptions()
    assert few.group_bytes < options.group_bytes
