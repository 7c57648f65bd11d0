"""CONFORMANCE, group "Memory and resources": joins and aggregations take no more than they may."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import BroadcastPartitioner, WriteOptions, write_shuffle
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.memory import check_memory

ALLOWED = 256 << 20
SORTING = WriteOptions().sort_buffer_bytes

WORK = """
from arrow_format import ReadOptions, open_shuffle
from arrow_format.operators.aggregation_plan import plan_aggregation
from arrow_format.operators.subpartition_readers import each_subpartition
from arrow_format.operators.join_plan import plan_join
from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.join import join_range
from arrow_format.operators.subpartition_readers import row_source

tiny, what, how, *paths = sys.argv[1:]

def by_turns(shuffles):
    subpartitions = range(shuffles[0].num_subpartitions)
    sources = [row_source(shuffle, subpartitions, None) for shuffle in shuffles]
    for _, readers in each_subpartition(subpartitions, sources):
        waiting = list(readers)
        while waiting:
            for reader in waiting.copy():
                batch = next(reader, None)
                if batch is None:
                    waiting.remove(reader)
                else:
                    yield batch

def work(paths):
    options = ReadOptions(memory_bytes=256 << 20).shared_by(len(paths))
    shuffles = [open_shuffle(path, options=options) for path in paths]
    if what == "join":
        plan = plan_join(*shuffles, how=how, suffixes=("_l", "_r"))
        return join_range(*shuffles, plan)
    if what == "map":
        return by_turns(shuffles)
    (shuffle,) = shuffles
    return aggregate_range(shuffle, plan_aggregation(shuffle, "k", [("v", how)]))

for _ in work([tiny] * len(paths)):
    pass
base = forget_peak()
rows = sum(batch.num_rows for batch in work(paths))
print(rows, resident_bytes() - base)
"""

NUM_ROWS = 3_000_000


def batches(seed, repeats=1, num_rows=NUM_ROWS, text=False):
    random = np.random.default_rng(seed)
    keys = random.permutation(num_rows) // repeats
    for start in range(0, num_rows, 50_000):
        part = keys[start : start + 50_000]
        k = pa.array(part).cast(pa.string()) if text else pa.array(part)
        yield pa.record_batch({"k": k, "v": random.integers(0, 1 << 62, len(part))})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    options = WriteOptions(sync=False, codec_level=-5)

    def write(name, rows, n, **how):
        path = directory / name
        if not path.exists():
            write_shuffle(rows, path, num_subpartitions=n, options=options, **how or {"keys": "k"})
        return str(path)

    return write


@guarantee("reading memory")
@exhaustive()
@pytest.mark.parametrize("n", [1, 50])
@pytest.mark.parametrize("how", ["inner", "full"])
def test_memory_of_a_join_of_narrow_rows_with_distinct_keys(written, n, how):
    tiny = written("tiny", batches(0, num_rows=100), 2)
    paths = [written(f"{seed}-{n}", batches(seed), n) for seed in (1, 2)]
    check_memory(NUM_ROWS, ALLOWED, WORK, tiny, "join", how, *paths)


@guarantee("reading memory")
@pytest.mark.parametrize("kind", ["large", "small", "broadcast"])
def test_memory_of_eight_shuffles_that_are_read_together(written, kind):
    tiny = written("tiny", batches(0, num_rows=100), 2)
    path = {
        "large": lambda: written("1-1", batches(1), 1),
        "small": lambda: written("1-50", batches(1), 50),
        "broadcast": lambda: written("all", batches(1), 1, partitioner=BroadcastPartitioner()),
    }[kind]()
    check_memory(8 * NUM_ROWS, ALLOWED, WORK, tiny, "map", "-", *[path] * 8)


@guarantee("reading memory")
@exhaustive(but="how")
@pytest.mark.parametrize("how", ["sum", "list"])
def test_memory_of_an_aggregation_of_distinct_keys(written, how):
    tiny = written("tiny text", batches(0, num_rows=100, text=True), 2)
    path = written("text", batches(1, text=True), 1)
    check_memory(NUM_ROWS, ALLOWED, WORK, tiny, "aggregate", how, path)


IN_PROCESS = """
import time
from concurrent.futures import ThreadPoolExecutor
from arrow_shuffle import ReadOptions, WriteOptions, open_shuffle

tiny, what, number, *paths = sys.argv[1:]

def slowly(batches):
    for number, batch in enumerate(batches):
        if number < 5:
            time.sleep(0.2)
        yield batch

def repeated(_, reader):
    for batch in reader:
        for _ in range(4):
            yield batch

def run(left, right, executor):
    options = ReadOptions(memory_bytes=256 << 20)
    rows = open_shuffle(left, options=options)
    if what == "repeated":
        return rows.map_subpartitions(repeated, "k bigint, v bigint").read(executor=executor)
    joined = rows.join(open_shuffle(right), suffixes=("_l", "_r"))
    if what == "into":
        writing = WriteOptions(sync=False, codec_level=-5)
        return joined.write(
            right + "-joined", mode="overwrite", options=writing, executor=executor
        )
    return joined.read(executor=executor)

with ThreadPoolExecutor(int(number)) as executor:
    first = run(tiny, tiny, executor)
    if what != "into":
        first.read_all()
    base = forget_peak()
    made = run(*paths, executor)
    rows = made.num_rows if what == "into" else sum(batch.num_rows for batch in slowly(made))
    print(rows, resident_bytes() - base)
"""


@guarantee("reading memory")
@exhaustive()
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("what", ["join", "repeated", "into"])
def test_memory_of_threads_in_one_process(written, what, workers):
    """All workers, and the results that a slow consumer has not taken; writing has its own."""
    tiny = written("tiny", batches(0, num_rows=100), 2)
    paths = [written(f"{seed}-4", batches(seed), 4) for seed in (1, 2)]
    allowed = ALLOWED + (SORTING if what == "into" else 0)
    num_rows = NUM_ROWS * (4 if what == "repeated" else 1)
    check_memory(num_rows, allowed, IN_PROCESS, tiny, what, workers, *paths)


AGGREGATED = """
from concurrent.futures import ThreadPoolExecutor
from arrow_shuffle import ReadOptions, open_shuffle

tiny, path, number, memory_bytes, *functions = sys.argv[1:]
asked = [("t", function) for function in functions] + [("v", "sum")]
options = ReadOptions(memory_bytes=int(memory_bytes))

with ThreadPoolExecutor(int(number)) as executor:
    summed = [open_shuffle(p, options=options).aggregate("k", asked) for p in (tiny, path)]
    summed[0].read(executor=executor).read_all()
    base = forget_peak()
    batches = summed[1].read(executor=executor, target_partition_bytes=1 << 20)
    rows = sum(batch.num_rows for batch in batches)
    print(rows, resident_bytes() - base)
"""


def with_texts(seed, num_rows):
    for batch in batches(seed, num_rows=num_rows):
        yield batch.append_column("t", pa.array(["y" * 50] * batch.num_rows))


@guarantee("reading memory")
@exhaustive()
@pytest.mark.parametrize(("workers", "mebibytes"), [(2, 96), (8, 128), (16, 256)])
@pytest.mark.parametrize("functions", [["max"], ["min", "max", "first"], ["collect_list"]])
def test_memory_of_an_aggregation_of_texts_by_many_threads(written, workers, mebibytes, functions):
    """Of texts and distinct keys, whose results are as large as the rows."""
    tiny = written("tiny texts", with_texts(0, 100), 2)
    path = written("texts", with_texts(1, 1_000_000), 16)
    memory_bytes = mebibytes << 20
    arguments = [tiny, path, workers, memory_bytes, *functions]
    check_memory(1_000_000, memory_bytes, AGGREGATED, *arguments)


AS_OF = """
from arrow_shuffle import ReadOptions, open_shuffle

memory_bytes, tiny, labels, features = sys.argv[1:]

def joined(*paths):
    options = ReadOptions(memory_bytes=int(memory_bytes))
    left, *rights = (open_shuffle(path, options=options) for path in paths)
    return left.join(rights, how="asof", time="t", suffixes=("", *map(str, range(len(rights)))))

joined(tiny, tiny, tiny).to_table()
base = forget_peak()
rows = sum(batch.num_rows for batch in joined(labels, features, features).read())
print(rows, resident_bytes() - base)
"""


def timed(num_rows, num_labels=None):
    """Rows of one key, whose times go through all from the first to the last."""
    count = num_labels or num_rows
    for start in range(0, count, 50_000):
        numbers = np.arange(start, min(start + 50_000, count))
        times = numbers * (num_rows // count)
        yield pa.record_batch({"k": np.ones(len(times), np.int64), "t": times, "v": times})


@guarantee("reading memory")
@exhaustive()
@pytest.mark.parametrize("sort_by", [(), ("k", "t")])
def test_memory_of_an_as_of_join_with_ten_million_rows_of_one_key(written, sort_by):
    """The key has 240 MB of rows, each of which one label at least would take."""
    tiny = written("tiny times", timed(100), 2)
    labels = written("labels", timed(10_000_000, 1_000_000), 1)
    features = written(f"features{len(sort_by)}", timed(10_000_000), 1, keys="k", sort_by=sort_by)
    check_memory(1_000_000, 128 << 20, AS_OF, 128 << 20, tiny, labels, features)


OF_PIECES = """
from concurrent.futures import ThreadPoolExecutor
from arrow_shuffle import ReadOptions, open_shuffle

tiny, path, number, memory_bytes = sys.argv[1:]
options = ReadOptions(memory_bytes=int(memory_bytes))
asked = {"sum": ("v", "sum"), "most": ("v", "max")}

with ThreadPoolExecutor(int(number)) as executor:
    grouped = [open_shuffle(p, options=options).aggregate(["k", "j"], asked) for p in (tiny, path)]
    grouped[0].read(executor=executor).read_all()
    base = forget_peak()
    groups = grouped[1].read(executor=executor, target_partition_bytes=4 << 20)
    assert "pieces" in str(grouped[1].explain(target_partition_bytes=4 << 20))
    rows = sum(batch.num_rows for batch in groups)
    print(rows, resident_bytes() - base)
"""


def mostly_of_one_key(seed, num_rows):
    """Nine of ten rows have the key 0, and each has a second key of its own."""
    for number, batch in enumerate(batches(seed, num_rows=num_rows)):
        keys = np.where(np.arange(batch.num_rows) % 10, 0, batch["k"].to_numpy())
        first = 50_000 * number
        own = np.arange(first, first + batch.num_rows)
        yield pa.record_batch({"k": keys, "j": own, "v": batch["v"]})


@guarantee("reading memory")
@exhaustive()
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_of_an_aggregation_of_pieces_of_a_hot_key(written, workers):
    """What pieces keep is charged as rows that are grouped are."""
    tiny = written("tiny pairs", mostly_of_one_key(0, 100), 2)
    path = written("pairs", mostly_of_one_key(1, 6_000_000), 4)
    check_memory(6_000_000, ALLOWED, OF_PIECES, tiny, path, workers, ALLOWED)
