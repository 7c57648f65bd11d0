"""CONFORMANCE, group "Memory and resources": combining keeps to the memory of a map task."""

import pytest

from tests.conformance.test_memory import checked_peak
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.memory import figures_of

STREAM = """
from arrow_format import WriteOptions, open_shuffle, write_shuffle

shape, path, num_keys = sys.argv[1:]
BUFFER = 64 << 20
ROWS = 50_000
random = np.random.default_rng(1)

def batch():
    keys = random.integers(0, int(num_keys), ROWS) * 7_919
    values = random.integers(0, 1_000, ROWS)
    if shape == "numbers":
        columns = {"k": pa.array(keys), "v": values}
    elif shape == "small":
        columns = {"k": pa.array(keys.astype(np.int32)), "v": pa.array(values > 7)}
    elif shape == "texts":
        columns = {"k": pa.array([f"/page/{key}" for key in keys.tolist()]), "v": values}
    elif shape == "two keys":
        texts = [f"/page/{key}" for key in keys.tolist()]
        columns = {"k": pa.array(texts), "j": pa.array(keys % 7), "v": values}
    elif shape == "decimals":
        content = pa.py_buffer(np.stack([values, values], axis=1))  # of more than 64 bits
        wide = pa.Array.from_buffers(pa.decimal128(28, 0), ROWS, [None, content])
        columns = {"k": pa.array(keys), "v": wide}
    else:
        words = pa.array([f"{value:06d} accounts" for value in values.tolist()])
        columns = {"k": pa.array(keys), "v": words}
    made = pa.record_batch(columns)
    return pa.ipc.read_record_batch(made.serialize(), made.schema)

function = "max" if shape in ("small", "words") else "sum"
made = [batch() for _ in range(16)]
keys = [name for name in made[0].schema.names if name != "v"]

def write(batches, name):
    return write_shuffle(
        batches, path + name, num_subpartitions=200, keys=keys, combine={"v": function},
        options=WriteOptions(sync=False, sort_buffer_bytes=BUFFER),
    )

write([made[0].slice(0, 100)], "/warm")
pa.default_memory_pool().release_unused()
base = forget_peak()
receipt = write((made[i % len(made)] for i in range(120)), "/big")
peak = resident_bytes()
assert receipt.counters["combined_rows"] > 1_000_000, receipt.counters
print(base, peak, max(b.nbytes for b in made), BUFFER)
"""


@guarantee("map task memory")
@exhaustive(but="shape", least=3)
@pytest.mark.parametrize("num_keys", [1_000, 250_000])
@pytest.mark.parametrize("shape", ["numbers", "small", "texts", "two keys", "decimals", "words"])
def test_peak_memory_of_a_combined_write(tmp_path, shape, num_keys):
    above, buffer = checked_peak(STREAM, shape, tmp_path, num_keys)
    assert above > buffer // 8, "the buffer was in use, so the peak means something"


LARGE = """
from arrow_format import WriteOptions, write_shuffle

ROWS = 20_000_000
BUFFER = 32 << 20
keys = pa.array((np.arange(ROWS) % 1000).astype(np.int16))
batch = pa.record_batch({"k": keys, "v": np.ones(ROWS, np.int8), "w": np.ones(ROWS, np.int8)})

def write(batch, name):
    return write_shuffle(
        batch, sys.argv[1] + name, num_subpartitions=20, keys="k",
        combine={"v": "sum", "w": "sum"},
        options=WriteOptions(sync=False, sort_buffer_bytes=BUFFER),
    )

write(batch.slice(0, 100), "/warm")
pa.default_memory_pool().release_unused()
base = forget_peak()
write(batch, "/big")
print(resident_bytes() - base, BUFFER)
"""


def test_a_large_batch_whose_sums_are_wider_is_not_cast_whole(tmp_path):
    above, buffer = figures_of(LARGE, tmp_path)
    assert above < 2 * buffer
