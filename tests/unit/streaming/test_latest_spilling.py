"""The latest row of each key in bounded memory: in passes, spilled, and nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import CorruptShuffleError, SchemaError, StorageError, latest_per_key
from arrow_format.errors import ClosedError, OptionError
from arrow_format.storage.scratch import PREFIX, ScratchDirectory
from arrow_format.streaming.latest_in_memory import LatestRows, latest_in_passes
from arrow_format.streaming.latest_spilling import LatestPerKey
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.open_files import open_files
from tests.support.small_shuffles import flip

MEMORY = 1 << 20


def batches_of(num_rows, num_keys, *, batch_rows=5_000, seed=0):
    keys = np.random.default_rng(seed).integers(0, num_keys, num_rows)
    for start in range(0, num_rows, batch_rows):
        stop = min(start + batch_rows, num_rows)
        yield pa.record_batch(
            {
                "k": keys[start:stop],
                "row": np.arange(start, stop),
                "s": keys[start:stop].astype(str),
            }
        )


def latest_in(directory, max_bytes=MEMORY):
    schema = next(batches_of(1, 1)).schema
    return LatestPerKey(schema, ["k"], max_bytes=max_bytes, directory=str(directory))


def put(latest, batch):
    for piece in latest.pieces(batch):
        assert latest.append(piece) is None


def latest_of(batches):
    result = {}
    for batch in batches:
        result.update(zip(batch["k"].to_pylist(), batch["row"].to_pylist(), strict=True))
    return result


@pytest.mark.slow
def test_many_keys_go_to_disk_and_come_back_once_each(tmp_path):
    peak = []

    def seen():
        for batch in batches_of(60_000, 25_000):
            yield batch
            peak.append(len(list(tmp_path.iterdir())))

    result = list(latest_per_key(seen(), ["k"], max_bytes=MEMORY, directory=str(tmp_path)))
    assert max(peak) == 1  # a scratch directory; the test would be of no use without
    rows = [row for batch in result for row in batch["row"].to_pylist()]
    assert len(rows) == len(set(rows))
    assert latest_of(result) == latest_of(batches_of(60_000, 25_000))
    assert all(batch["s"].to_pylist() == list(map(str, batch["k"].to_pylist())) for batch in result)
    assert max(batch.nbytes for batch in result) <= MEMORY // 3
    assert not list(tmp_path.iterdir())


def test_few_keys_stay_in_memory_in_the_order_of_their_last_rows(tmp_path):
    (result,) = latest_per_key(
        batches_of(200_000, 50), ["k"], max_bytes=MEMORY, directory=str(tmp_path / "missing")
    )
    assert result["row"].to_pylist() == sorted(latest_of(batches_of(200_000, 50)).values())


def test_without_keys_it_is_the_last_row():
    (result,) = latest_per_key(batches_of(12_345, 9), [], max_bytes=MEMORY)
    assert result["row"].to_pylist() == [12_344]
    assert result.get_total_buffer_size() < 1_000  # and nothing of its batch


def test_no_rows_are_no_batches():
    assert list(latest_per_key([], ["k"])) == []
    assert list(latest_per_key([next(batches_of(1, 1)).slice(1)], ["k"])) == []


@pytest.mark.slow
def test_memory_is_bounded_however_many_rows_there_are(tmp_path):
    latest = latest_in(tmp_path)
    before, most = pa.total_allocated_bytes(), 0
    for batch in batches_of(times(80_000, 200_000), 10**9):
        put(latest, batch)
        del batch
        most = max(most, pa.total_allocated_bytes() - before)
        assert latest.num_bytes <= MEMORY // 3
    for batch in latest.rows():
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    latest.clear()
    # Reading back holds decoded chunks as well.
    assert most < 2 * MEMORY, most


@pytest.mark.slow
def test_rows_can_be_given_out_again_and_cleared(tmp_path):
    latest = latest_in(tmp_path)
    for seed in (1, 2):
        for batch in batches_of(30_000, 30_000, seed=seed):
            put(latest, batch)
        assert not latest.is_empty
        next(iter(latest.rows()))  # left half read
        first, second = list(latest.rows()), list(latest.rows())
        assert latest_of(first) == latest_of(second)
        assert latest_of(first) == latest_of(batches_of(30_000, 30_000, seed=seed))
        with pytest.raises(ClosedError, match="clear"):
            latest.append(first[0])
        latest.clear()
        assert latest.is_empty
        assert not list(tmp_path.iterdir())
    assert latest.spilled_bytes > 0


def test_one_row_larger_than_memory_is_taken(tmp_path):
    large = pa.record_batch({"k": [1, 2, 1], "s": ["x" * (2 << 20), "y", "z" * (3 << 20)]})
    result = list(
        latest_per_key([large, large], ["k"], max_bytes=64 << 10, directory=str(tmp_path))
    )
    values = {k: s for batch in result for k, s in zip(*batch.to_pydict().values(), strict=True)}
    assert values == {1: "z" * (3 << 20), 2: "y"}


@pytest.mark.slow
def test_passes_part_keys_that_do_not_fit_together():
    read = 0

    def rows():
        nonlocal read
        read += 1
        return batches_of(50_000, 20_000)

    schema = next(batches_of(1, 1)).schema
    result = list(
        latest_in_passes(rows, schema, ["k"], capacity_bytes=MEMORY // 4, num_rows=50_000)
    )
    assert read > 4
    assert sum(batch.num_rows for batch in result) == len(latest_of(result))
    assert latest_of(result) == latest_of(batches_of(50_000, 20_000))
    assert max(batch.nbytes for batch in result) < MEMORY // 4


@pytest.mark.parametrize("type_", [pa.struct({"x": pa.int64()}), pa.list_(pa.int64())])
def test_passes_part_nested_keys_too(type_):
    values = [{"x": i} if pa.types.is_struct(type_) else [i] for i in range(5_000)]
    batch = pa.record_batch({"k": pa.array(values, type_), "row": range(5_000)})
    result = list(
        latest_in_passes(
            lambda: [batch, batch], batch.schema, ["k"], capacity_bytes=64 << 10, num_rows=10_000
        )
    )
    assert len(result) > 4
    assert sorted(row for batch in result for row in batch["row"].to_pylist()) == list(range(5_000))


def test_rows_that_no_pass_can_part_are_held():
    # Two rows of which each fills the memory have different keys; more passes would not help.
    batch = pa.record_batch({"k": ["a", "b", "a"], "s": ["x" * 90_000] * 3})
    result = list(
        latest_in_passes(lambda: [batch], batch.schema, ["k"], capacity_bytes=64 << 10, num_rows=3)
    )
    assert sorted(k for batch in result for k in batch["k"].to_pylist()) == ["a", "b"]


def test_replaced_rows_are_dropped_before_others_are_refused():
    schema = next(batches_of(1, 1)).schema
    held = LatestRows(schema, ["k"], 100_000)
    for batch in batches_of(60_000, 100, batch_rows=700):
        assert held.append(batch) is None
        assert held.num_bytes <= 100_000
    rest = None
    for batch in batches_of(60_000, 10**9, batch_rows=700):
        rest = held.append(batch)
        if rest is not None:
            break
    assert 0 < rest.num_rows <= 700
    assert 50_000 < held.num_bytes <= 100_000


def test_behind_a_row_larger_than_memory_nothing_fits():
    large = pa.record_batch({"k": [0], "s": ["x" * 90_000]})
    held = LatestRows(large.schema, ["k"], 64 << 10)
    assert held.append(large) is None
    small = pa.record_batch({"k": [1, 2], "s": ["y", "z"]})
    assert held.append(small).num_rows == 2
    assert held.take().num_rows == 1
    assert held.append(small) is None


def test_bad_keys_and_options_are_named():
    batch = next(batches_of(5, 5))
    with pytest.raises(SchemaError, match="'nope'"):
        list(latest_per_key([batch], ["nope"]))
    with pytest.raises(SchemaError, match=r"'m'.*maps"):
        list(latest_per_key([pa.record_batch({"m": pa.array([[]], pa.map_("i8", "i8"))})], ["m"]))
    with pytest.raises(OptionError, match="max_bytes=10"):
        list(latest_per_key([batch], ["k"], max_bytes=10))
    with pytest.raises(SchemaError, match="row"):
        list(latest_per_key([batch, batch.select(["k", "s"])], ["k"]))


# What stays on disk: nothing ---------------------------------------------------------------------


def spilling(directory):
    latest = latest_in(directory, 64 << 10)
    for batch in batches_of(5_000, 5_000, batch_rows=1_000):
        put(latest, batch)
    assert len(list(directory.iterdir())) == 1
    return latest


@pytest.mark.slow
def test_nothing_is_left_when_the_iterator_is_left(tmp_path):
    rows = latest_per_key(
        batches_of(20_000, 20_000), ["k"], max_bytes=64 << 10, directory=str(tmp_path)
    )
    next(rows)
    assert list(tmp_path.iterdir())
    rows.close()
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_when_the_input_fails(tmp_path):
    def failing():
        yield from batches_of(20_000, 20_000)
        assert list(tmp_path.iterdir())
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(latest_per_key(failing(), ["k"], max_bytes=64 << 10, directory=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@guarantee("spilled rows")
@pytest.mark.parametrize("finished", [False, True])
def test_nothing_is_left_of_an_object_that_is_dropped(tmp_path, finished):
    gc.collect()
    files = open_files()
    latest = spilling(tmp_path)
    if finished:
        next(latest.rows())
    gone = weakref.ref(latest)
    del latest
    gc.collect()
    assert gone() is None
    assert not list(tmp_path.iterdir())
    assert open_files() == files


@pytest.mark.slow
@guarantee("spilled rows")
def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path):
    script = (
        "import sys, time\n"
        "from arrow_format.storage.scratch import ScratchDirectory\n"
        "kept = ScratchDirectory(sys.argv[1])\n"
        "print(kept.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        left = process.stdout.readline().strip()
        mine = ScratchDirectory(str(tmp_path))
        assert Path(left).is_dir(), "the directory of a process that lives was removed"
        mine.remove()
        process.send_signal(signal.SIGKILL)
    assert [str(path) for path in tmp_path.iterdir()] == [left]
    mine = ScratchDirectory(str(tmp_path))
    assert [str(path) for path in tmp_path.iterdir()] == [mine.path]
    mine.remove()
    mine.remove()
    assert not list(tmp_path.iterdir())


def test_directories_of_others_are_left_alone(tmp_path):
    (tmp_path / f"{PREFIX}not-locked-yet").mkdir()
    (tmp_path / "mine").mkdir()
    ScratchDirectory(str(tmp_path)).remove()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_forked_process_leaves_its_parents_files(tmp_path):
    latest = spilling(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Arrow's threads, which do not matter
        child = os.fork()
    if not child:
        latest.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert latest_of(latest.rows()) == latest_of(batches_of(5_000, 5_000))
    latest.clear()


def test_a_place_that_takes_no_files_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"missing.*scratch directory"):
        spilling(tmp_path / "missing")


def test_damage_to_what_was_spilled_is_an_error_and_nothing_is_left(tmp_path):
    latest = spilling(tmp_path)
    next(latest.rows())
    for file in tmp_path.rglob("*.data"):
        flip(file)
    with pytest.raises(CorruptShuffleError):
        list(latest.rows())
    assert latest.is_empty
    assert not list(tmp_path.iterdir())


def test_one_key_may_be_given_by_its_name():
    """A text is a sequence of texts too: its letters are no keys."""
    batch = pa.record_batch({"a": [1, 1], "b": [1, 1], "ab": [1, 2]})
    (latest,) = latest_per_key([batch], "ab")
    assert latest.num_rows == 2


def test_what_is_no_batch_is_named():
    with pytest.raises(SchemaError, match="hold a Table: expected"):
        list(latest_per_key([pa.table({"k": [1]})], "k"))
