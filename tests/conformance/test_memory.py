"""CONFORMANCE, group "Memory and resources": what tasks may take, whatever n and the input are."""

import tempfile
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrow_format import merge_shuffle, open_shuffle, write_shuffle
from arrow_format.options import WriteOptions
from tests.support.exhaustive import exhaustive, times
from tests.support.guarantees import guarantee
from tests.support.memory import figures_of
from tests.support.open_files import open_files

N = 20_000


@guarantee("few files")
@exhaustive()
@pytest.mark.parametrize(("codec", "threads"), [("zstd", 1), ("none", 1), ("zstd", 3)])
def test_open_files_at_twenty_thousand_subpartitions(tmp_path, codec, threads):
    counts = []

    def batches():
        for start in range(0, 200_000, 10_000):
            counts.append(len(open_files()))
            yield pa.record_batch({"k": np.arange(start, start + 10_000)})

    options = WriteOptions(sync=False, codec=codec, sort_buffer_bytes=2 << 20, threads=threads)
    before = len(open_files())
    write_shuffle(batches(), tmp_path / "x", num_subpartitions=N, keys="k", options=options)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.map_outputs[0].files[0].num_regions > 3
    assert max(counts) - before < 16
    assert max(counts) - before >= 1, "the data file was open, so the count means something"
    for _ in shuffle.read():
        assert len(open_files()) - before < 16
    assert len(open_files()) == before


STREAM = """
import arrow_format
from arrow_format import WriteOptions, write_shuffle

shape, codec, path, gigabytes, threads = sys.argv[1:]
# Lists of booleans are slow to gather, and a small buffer of them is many enough.
BUFFER = (16 if shape.startswith("list<bool") else 64) << 20

random = np.random.default_rng(1)
words = pa.array([f"furiously ironic {i:05d} accounts"[: 10 + i % 24] for i in range(5_000)])

def bits(num_values):
    return pa.py_buffer(random.bytes(-(-num_values // 8)))

def numbers(type_, num_values, null=False):
    # Random values of a fixed width, a bit for booleans.
    content = pa.py_buffer(random.bytes(-(-num_values * type_.bit_width // 8)))
    buffers = [bits(num_values) if null else None, content]
    return pa.Array.from_buffers(type_, num_values, buffers)

def batch(rows):
    keys = pa.array(random.integers(0, 1 << 40, rows))
    if shape.startswith("list<"):
        type_, null = pa.type_for_alias(shape[5:].strip(">?")), shape.endswith("?")
        items = numbers(type_, rows * 500, null)
        offsets = pa.array(np.arange(0, rows * 500 + 1, 500, dtype=np.int32))
        columns = {"k": keys, "l": pa.ListArray.from_arrays(offsets, items)}
    elif shape == "nullable bools":
        columns = {f"b{i}": numbers(pa.bool_(), rows, null=True) for i in range(300)}
        columns["k"] = keys
    elif shape == "dictionary":
        values = pa.array([c * 200_000 for c in "abc"])
        indices = pa.array(random.integers(0, 3, rows, dtype=np.int8))
        columns = {"k": keys, "s": pa.DictionaryArray.from_arrays(indices, values)}
    elif shape == "repeated":
        columns = {"k": pa.array(np.arange(rows, dtype=np.int32))}
    elif shape == "int32":
        columns = {"k": pa.array(random.integers(0, 1 << 30, rows, dtype=np.int32))}
    elif shape == "wide rows":
        columns = {"k": keys, "s": pa.array([c * 1_000_000 for c in "abcdefgh"][:rows])}
    elif shape == "columns":
        columns = {f"c{i}": pa.array(random.integers(0, 1 << 40, rows)) for i in range(300)}
        columns["k"] = keys
    elif shape == "string":
        columns = {"k": keys, "s": words.take(pa.array(random.integers(0, 5_000, rows)))}
    else:
        columns = {"k": keys}
        for i in range(7):
            columns[f"n{i}"] = pa.array(random.integers(0, 1_000, rows).astype(np.float64))
        for i in range(5):
            columns[f"d{i}"] = pa.array(random.integers(0, 9_000, rows, dtype=np.int32))
        columns["s"] = words.take(pa.array(random.integers(0, 5_000, rows)))
    made = pa.record_batch(columns)
    if shape == "dictionary":
        return made
    # As it comes over IPC: one allocation under all columns.
    return pa.ipc.read_record_batch(made.serialize(), made.schema)

ROWS = {
    "int32": 500_000, "repeated": 10_000, "string": 80_000, "lineitem": 20_000, "wide rows": 8,
    "columns": 10_000, "huge": 1_000_000, "nullable bools": 30_000, "dictionary": 3_000,
    "list<bool>": 20_000, "list<bool>?": 20_000, "list<int8>": 8_000, "list<float>": 2_000,
}[shape]
made = [batch(ROWS) for _ in range(1 if shape in ("huge", "dictionary") else 4)]
messages = [] if shape == "dictionary" else [(b.serialize(), b.schema) for b in made]
largest = max(b.nbytes for b in made)
volume = int(float(gigabytes) * 1e9)
del made

def stream(num_bytes):
    if shape == "dictionary":
        yield batch(ROWS)
        return
    sent = 0
    while sent < num_bytes:
        for message, schema in messages:
            copied = pa.py_buffer(message.to_pybytes())
            yield pa.ipc.read_record_batch(copied, schema)
            sent += len(copied)

def write(batches, name):
    return write_shuffle(
        batches, path + name, num_subpartitions=20_000, keys="k",
        options=WriteOptions(
            sync=False, codec=codec, sort_buffer_bytes=BUFFER, threads=int(threads)
        ),
    )

write([next(stream(1)).slice(0, 8)], "/warm")
# Not what making the batches took for a while, nor what the allocator still has of it.
pa.default_memory_pool().release_unused()
base = forget_peak()
receipt = write(stream(volume), "/big")
peak = resident_bytes()
shuffle = arrow_format.open_shuffle(path + "/big")
assert sum(f.num_regions for o in shuffle.map_outputs for f in o.files) > 3
print(base, peak, largest, BUFFER)
"""


@guarantee("map task memory")
@exhaustive("codec", "gigabytes")
@pytest.mark.parametrize(
    ("shape", "codec", "gigabytes"),
    [
        ("lineitem", "zstd", "0.3"),
        # A gigabyte at night: the bound does not follow the volume. All have four regions or more.
        ("string", "none", times("0.3", "1")),
        ("int32", "none", "0.3"),
        ("repeated", "zstd", "0.3"),
        ("wide rows", "zstd", "0.3"),
        ("columns", "zstd", "0.3"),
        ("columns", "none", "0.3"),
        # One batch of more than twice the sort buffer.
        ("huge", "zstd", "0.1"),
        ("list<bool>", "zstd", "0.03"),
        ("list<bool>", "none", "0.03"),
        ("list<bool>?", "zstd", "0.03"),
        ("list<int8>", "zstd", "0.11"),
        ("list<int8>", "none", "0.11"),
        ("list<float>", "none", "0.11"),
        ("nullable bools", "zstd", "0.08"),
        # A batch of 600 kB that stands for 600 MB.
        ("dictionary", "zstd", "0"),
    ],
)
def test_peak_memory_of_a_streamed_write(tmp_path, shape, codec, gigabytes):
    above, buffer = checked_peak(STREAM, shape, codec, tmp_path, gigabytes, 1)
    assert above > buffer // 8, "the buffer was in use, so the peak means something"


@guarantee("map task memory")
@exhaustive("codec", "threads")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(
    ("shape", "codec", "gigabytes"),
    [
        ("lineitem", "zstd", "0.3"),
        ("string", "none", "0.3"),
        ("repeated", "zstd", "0.3"),
        ("wide rows", "zstd", "0.3"),
        ("columns", "zstd", "0.3"),
        ("huge", "zstd", "0.1"),
        ("list<bool>?", "zstd", "0.03"),
        ("list<float>", "none", "0.11"),
        ("nullable bools", "zstd", "0.08"),
    ],
)
def test_peak_memory_of_a_write_with_threads(tmp_path, shape, codec, gigabytes, threads):
    checked_peak(STREAM, shape, codec, tmp_path, gigabytes, threads)


def checked_peak(program, *arguments, spare=0):
    """Run a program that writes as :data:`STREAM` does, and check the bound of its memory.

    Its last argument is its number of threads; several may take ``spare`` more. Its peak above what
    it had before, and its sort buffer, in bytes.
    """
    base, peak, largest, buffer = figures_of(program, *arguments)
    allowed = int(1.25 * buffer) + (64 << 20) + largest
    threads = arguments[-1]
    if threads > 1:
        allowed += buffer // 2 + threads * (16 << 20) + spare
    assert peak - base <= allowed, f"{peak - base >> 20} MiB over base, {allowed >> 20} allowed"
    return peak - base, buffer


DATASET = """
import pyarrow.dataset as ds
from arrow_format import WriteOptions
from arrow_shuffle import Target, write_shuffles

source, path, keys, threads = sys.argv[1:]
BUFFER = 32 << 20

def write(dataset, name):
    share = BUFFER // len(keys.split())
    options = WriteOptions(sync=False, sort_buffer_bytes=share, threads=int(threads))
    how = {"num_subpartitions": 200, "options": options}
    write_shuffles(dataset, [Target(path + name + key, keys=key, **how) for key in keys.split()])

write(ds.dataset(source).filter(ds.field("k") < 9), "/warm")
pa.default_memory_pool().release_unused()
base = forget_peak()
write(ds.dataset(source), "/big")
print(base, resident_bytes(), 0, BUFFER)
"""


@guarantee("map task memory")
@exhaustive(but="threads")
@pytest.mark.parametrize("keys", ["k", "k n1 n2"], ids=["one target", "three targets"])
@pytest.mark.parametrize("threads", [1, 3])
def test_peak_memory_of_a_dataset_with_one_large_row_group(tmp_path, threads, keys):
    numbers = np.random.default_rng(1).integers(0, 1 << 40, 5_000_000)
    columns = {"k": np.arange(5_000_000), **{f"n{i}": numbers ^ i for i in range(7)}}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet", row_group_size=5_000_000)
    assert (tmp_path / "f.parquet").stat().st_size > 250_000_000
    checked_peak(DATASET, tmp_path / "f.parquet", tmp_path, keys, threads, spare=32 << 20)


READ = """
from arrow_format import open_shuffle

shuffle = open_shuffle(sys.argv[1])
next(iter(shuffle.subpartition(0)), None)
base = resident_bytes()
rows = sum(batch.num_rows for batch in shuffle.read())
assert rows == shuffle.num_rows
raw = sum(output.raw_bytes for output in shuffle.map_outputs)
print(resident_bytes() - base, pa.default_memory_pool().max_memory(), raw)
"""


def test_peak_memory_of_reading_everything(tmp_path):
    batches = (
        pa.record_batch({"k": np.arange(start, start + 500_000), "v": np.ones(500_000)})
        for start in range(0, 25_000_000, 500_000)
    )
    options = WriteOptions(sync=False, codec="none", sort_buffer_bytes=64 << 20)
    write_shuffle(batches, tmp_path / "x", num_subpartitions=50, keys="k", options=options)
    grown, allocated, raw = figures_of(READ, tmp_path / "x")
    assert raw >= 400_000_000
    # About 32 MiB as they were read, joined, and in order; the allocator keeps some of it longer.
    assert allocated < 112 << 20, f"{allocated >> 20} MiB"
    assert grown < 288 << 20, f"{grown >> 20} MiB"


@guarantee("nothing outlives its owner")
def test_nothing_outlives_its_owner(tmp_path, monkeypatch):
    """No thread, open file or temporary file is left by a write, a read and a merge."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # so that it is looked up again
    assert tempfile.gettempdir() == str(temporary)

    def left():
        return threading.active_count(), len(open_files()), list(temporary.iterdir())

    before = left()
    table = pa.table({"k": np.arange(50_000), "s": [f"{i}" for i in range(50_000)]})
    for mode in ("errorifexists", "append"):
        write_shuffle(
            table, tmp_path / "x", num_subpartitions=7, keys="k", mode=mode,
            options=WriteOptions(sync=False, sort_buffer_bytes=1 << 20),
        )  # fmt: skip
    merge_shuffle(tmp_path / "x", by="map_output")
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.read().read_all().num_rows == 100_000
    with shuffle.read() as reader:
        reader.read_next_batch()
    del reader
    assert left() == before
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not {name for name in names if "tmp" in name}
