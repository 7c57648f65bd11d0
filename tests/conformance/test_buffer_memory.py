"""CONFORMANCE, group "Memory and resources": a buffered output takes no more than it may."""

import pytest

from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.memory import figures_of

ALLOWED = 32 << 20

COUNTED = """
from datetime import timedelta
from arrow_format import BufferOutput, Output, Watermark

class Counted(Output):
    num_rows = 0

    def collect(self, batch):
        self.num_rows += batch.num_rows
"""

WORK = """
kind, how, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])

def run(num_rows):
    counted = Counted()
    output = BufferOutput(
        counted,
        keys=["k"],
        max_interval=timedelta(days=1),
        memory_buffer_only=how == "memory",
        max_buffered_bytes=allowed,
    )
    for start in range(0, num_rows, 10_000):
        # Every key once, neighbours far apart.
        keys = (np.arange(start, start + 10_000) * 7_919_000_003) % (1 << 40)
        k = pa.array(keys).cast(pa.string()) if kind == "text" else pa.array(keys)
        output.collect(pa.record_batch({"k": k, "v": keys}))
    output.close()
    return counted.num_rows, output.spilled_bytes

run(10_000)
base = forget_peak()
print(*run(700_000), resident_bytes() - base)
"""


@guarantee("buffer memory")
@exhaustive()
@pytest.mark.parametrize("how", ["disk", "memory"])
@pytest.mark.parametrize("kind", ["number", "text"])
def test_memory_of_a_buffered_output_whose_keys_do_not_fit(kind, how):
    emitted, spilled, over_base = figures_of(COUNTED + WORK, kind, how, ALLOWED)
    assert emitted == 700_000
    assert (spilled > 0) == (how == "disk")
    # Code that only spilling loads, and what allocators keep, come on top.
    assert over_base <= ALLOWED + (16 << 20), f"{over_base / 2**20:.0f} MiB"


ODD = """
kind, allowed = sys.argv[1], int(sys.argv[2])

def lists(seed, num_rows, num_items):
    items = np.random.default_rng(seed).integers(0, 2, num_rows * num_items).astype(bool)
    offsets = np.arange(0, num_rows * num_items + 1, num_items, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))

def batches(part):
    if kind == "list keys":
        for number in range(8 // part):
            keys = lists(number // 2, 10_000, 100)
            yield pa.record_batch({"k": keys, "t": np.zeros(10_000, int)})
    elif kind == "lists":
        for number in range(40 // part):
            ids = np.arange(number * 5, number * 5 + 5)
            yield pa.record_batch({"k": ids, "t": ids % 2, "l": lists(0, 5, 100_000)})
    else:
        ids = np.arange(60_000)
        large = pa.record_batch({"k": ids, **{f"c{i}": ids for i in range(9)}, "t": ids % 2})
        for start in range(60_000 // part):
            yield large.slice(start, 1)

def run(part):
    counted = Counted()
    output = BufferOutput(
        counted, keys=["k"], timestamp="t", max_interval=timedelta(days=1),
        max_buffered_bytes=allowed,
    )
    for batch in batches(part):
        output.collect(batch)
    output.emit_watermark(Watermark(0))
    output.close()
    return counted.num_rows

run(8)
pa.default_memory_pool().release_unused()
base = forget_peak()
print(run(1), resident_bytes() - base)
"""


@exhaustive(but="kind, rows", least=2)
@pytest.mark.parametrize(
    ("kind", "rows"), [("list keys", 40_000), ("lists", 200), ("slices", 60_000)]
)
def test_memory_of_rows_whose_bytes_say_little(kind, rows):
    """Bits are numbered by words, or looked up by them; a row has pieces of its own."""
    emitted, over_base = figures_of(COUNTED + ODD, kind, ALLOWED)
    assert emitted == rows
    assert over_base <= ALLOWED + (16 << 20), f"{over_base / 2**20:.0f} MiB"
