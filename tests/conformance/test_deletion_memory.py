"""CONFORMANCE, group "Memory and resources": a deletion streams, whatever the files have."""

import pytest

from tests.support.exhaustive import exhaustive
from tests.support.memory import figures_of

# Freed pages go back immediately: how long the allocator keeps some differs by 30 MiB between
# machines, and would hide what the deletion itself holds.
GIVES_BACK = {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc", "MIMALLOC_PURGE_DELAY": "0"}
NUM_ROWS = 500_000

DELETE = """
from arrow_format import WriteOptions, delete_rows, open_shuffle, write_shuffle

codec, path, num_rows, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random = np.random.default_rng(1)
BUFFER = 16 << 20

def batches():
    for start in range(0, num_rows, 10_000):
        content = random.bytes(10_000 * width)
        offsets = pa.py_buffer(np.arange(0, 10_000 * width + 1, width, dtype=np.int32))
        values = pa.Array.from_buffers(pa.binary(), 10_000, [None, offsets, pa.py_buffer(content)])
        # Most rows have one key, whose subpartition is far larger than the memory.
        keys = np.where(random.random(10_000) < 0.7, 0, random.integers(0, 5_000, 10_000))
        yield pa.record_batch({"k": keys, "s": values})

def write(name, many):
    options = WriteOptions(sync=False, codec=codec, sort_buffer_bytes=64 << 20)
    write_shuffle(many, path + name, num_subpartitions=50, keys="k", options=options)

options = WriteOptions(sync=False, sort_buffer_bytes=BUFFER)
write("/warm", [next(batches()).slice(0, 100)])
delete_rows(path + "/warm", {"k": [0]}, options=options)
write("/big", batches())
pa.default_memory_pool().release_unused()
base = forget_peak()
receipt = delete_rows(path + "/big", {"k": list(range(1, 200))}, options=options)
peak = resident_bytes()
assert receipt.num_rows > num_rows // 150, receipt
shuffle = open_shuffle(path + "/big")
raw = sum(output.raw_bytes for output in shuffle.map_outputs)
print(peak - base, raw, shuffle.num_rows + receipt.num_rows)
"""


@exhaustive(but="codec")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_peak_memory_of_a_deletion(tmp_path, codec):
    above, raw, num_rows = figures_of(DELETE, codec, tmp_path, NUM_ROWS, 400, **GIVES_BACK)
    assert num_rows == NUM_ROWS
    assert raw > 175 << 20
    allowed = int(1.25 * (16 << 20)) + (32 << 20)
    assert above <= allowed, f"{above >> 20} MiB over base, {allowed >> 20} allowed"
