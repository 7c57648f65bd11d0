"""PyTorch reads a shuffle: the real loader, its workers, ranks, and a training that goes on.

Runs where torch is installed (`pip install 'arrow-shuffle[torch]'`), which is too large for CI.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_shuffle import WriteOptions, merge_states, open_shuffle, write_shuffle
from arrow_shuffle.errors import OptionError, SchemaError
from integration.test_documents import run_snippets, split
from tests.support.waiting import wait_until

torch = pytest.importorskip("torch", reason="torch is not installed: arrow-shuffle[torch]")
loaders = pytest.importorskip("torch.utils.data")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more than there are cores
]

NUM_ROWS = 5_003


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "s"
    table = pa.table(
        {
            "k": np.arange(NUM_ROWS),
            "x": np.arange(NUM_ROWS, dtype=np.float32) / 2,
            "even": [i % 2 == 0 for i in range(NUM_ROWS)],
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(3 * NUM_ROWS, dtype=np.float32)), 3
            ),
            "maybe": pa.array([None if i % 100 == 0 else i for i in range(NUM_ROWS)]),
            "ragged": [[i] * (i % 3) for i in range(NUM_ROWS)],
            "text": [f"row {i}" for i in range(NUM_ROWS)],
        }
    )
    write_shuffle(table, path, num_subpartitions=64, keys="k", options=WriteOptions(sync=False))
    return open_shuffle(path)


def loader(dataset, workers=0, **options):
    context = "fork" if workers else None
    return dataset.loader(workers, multiprocessing_context=context, **options)


def keys(batches):
    return [batch["k"].tolist() for batch in batches]


def test_batches_are_tensors_of_the_rows(shuffle):
    dataset = shuffle.to_torch(["k", "x", "even", "vector"], batch_size=128, seed=1)
    batches = list(loader(dataset))
    assert {name: tensor.dtype for name, tensor in batches[0].items()} == {
        "k": torch.int64,
        "x": torch.float32,
        "even": torch.bool,
        "vector": torch.float32,
    }
    assert batches[0]["vector"].shape == (128, 3)
    rows = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    order = rows["k"].argsort()
    assert rows["k"][order].tolist() == list(range(NUM_ROWS))
    assert torch.equal(rows["x"], rows["k"] / 2)
    assert torch.equal(rows["even"], rows["k"] % 2 == 0)
    assert torch.equal(rows["vector"][:, 1], 3.0 * rows["k"] + 1)
    batches[0]["k"].zero_()  # its own memory


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_each_row_once(shuffle, workers, context):
    dataset = shuffle.to_torch(["k"], batch_size=100)
    batches = loaders.DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
    )
    assert sorted(k for batch in keys(batches) for k in batch) == list(range(NUM_ROWS))


def test_ranks_get_equally_many_batches(shuffle):
    of_ranks = [
        keys(
            loader(shuffle.to_torch(["k"], batch_size=50, drop_last=True, rank=r, world_size=3), 2)
        )
        for r in range(3)
    ]
    assert len({len(batches) for batches in of_ranks}) == 1
    assert {len(batch) for batches in of_ranks for batch in batches} == {50}
    seen = [k for batches in of_ranks for batch in batches for k in batch]
    assert len(seen) == len(set(seen)) > NUM_ROWS - 3 * 2 * 51


def test_ranks_of_a_process_group(shuffle, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    try:
        dataset = shuffle.to_torch(["k"], batch_size=10)
        assert dataset.state_dict()["world_size"] == 1
        shuffle.append(pa.table({"k": [NUM_ROWS]}))
        try:
            dataset.set_epoch(1)
            assert dataset.version == shuffle.version + 1
        finally:
            shuffle.newest().rollback(shuffle.version)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_differ_and_repeat(shuffle, workers):
    dataset = shuffle.to_torch(["k"], batch_size=100)
    batches = loader(dataset, workers, persistent_workers=workers > 0)
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(keys(batches))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("taken", [1, 7, 20, 50])
def test_a_training_goes_on_where_it_stopped(shuffle, workers, taken):
    def made():
        return shuffle.to_torch(["k"], batch_size=100)

    dataset = made()
    dataset.set_epoch(3)
    whole = keys(loader(dataset, workers))

    iterator = iter(loader(dataset, workers))
    found = [next(iterator)["k"].tolist() for _ in range(taken)]
    state = json.loads(json.dumps(dataset.state_dict()))
    iterator.close()

    again = made()
    again.load_state_dict(state)
    assert again.epoch == 3
    for epoch in (3, 4):
        again.set_epoch(epoch)
        batches = keys(loader(again, workers))
        if epoch == 3 and taken < 45:  # then workers end, at times that are not those of before
            assert found + batches == whole
        seen = found + batches if epoch == 3 else batches
        assert sorted(k for batch in seen for k in batch) == list(range(NUM_ROWS))


def test_a_training_goes_on_with_others(shuffle):
    """Two ranks with two workers, then three with one, then one that reads itself."""
    found, state = [], None
    for ranks, workers, stop in [(2, 2, 5), (3, 1, 4), (1, 0, 10_000)]:
        states = []
        for rank in range(ranks):
            dataset = shuffle.to_torch(["k"], batch_size=100, rank=rank, world_size=ranks)
            if state is not None:
                dataset.load_state_dict(state)
            batches = loader(dataset, workers)
            iterator = iter(batches)
            of_rank = [batch["k"].tolist() for _, batch in zip(range(stop), iterator, strict=False)]
            found += [k for batch in of_rank for k in batch]
            states.append(dataset.state_dict())
            iterator.close()
        state = json.loads(json.dumps(merge_states(states)))
    assert sorted(found) == list(range(NUM_ROWS))


def test_workers_that_are_kept_read_the_newest_version(tmp_path):
    def table(first, end):
        return pa.table({"k": range(first, end)})

    write_shuffle(table(0, 1_000), tmp_path / "s", num_subpartitions=8, keys="k")
    dataset = open_shuffle(tmp_path / "s").to_torch(["k"], batch_size=100)
    batches = loader(dataset, 2, persistent_workers=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        seen = [k for batch in keys(batches) for k in batch]
        expected = [k for k in range(1_000 + 500 * epoch) if k >= epoch]
        assert sorted(seen) == expected
        newest = open_shuffle(tmp_path / "s")
        newest.append(table(1_000 + 500 * epoch, 1_500 + 500 * epoch))
        newest.delete({"k": [epoch]}, erase=True)


def test_workers_that_are_kept_read_the_version_of_an_epoch_that_comes_again(tmp_path):
    write_shuffle(pa.table({"k": range(1_000)}), tmp_path / "s", num_subpartitions=8, keys="k")
    dataset = open_shuffle(tmp_path / "s").to_torch(["k"], batch_size=100)
    batches = loader(dataset, 2, persistent_workers=True)
    assert len([k for batch in keys(batches) for k in batch]) == 1_000
    dataset.set_epoch(1)
    open_shuffle(tmp_path / "s").append(pa.table({"k": range(1_000, 1_500)}))
    dataset.set_epoch(0)
    assert sorted(k for batch in keys(batches) for k in batch) == list(range(1_500))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_that_pad_go_on_with_equally_many_batches(shuffle, workers):
    """At the end some reader has no rows of its own left."""

    def made():
        return [
            shuffle.to_torch(["k"], batch_size=7, pad=True, lanes=16, rank=i, world_size=3)
            for i in range(3)
        ]

    before = made()
    count = len(loader(before[0], workers))
    iterators = [iter(loader(each, workers)) for each in before]
    for _ in range(count - 1):
        last = [next(iterator) for iterator in iterators]
    states = [each.state_dict() for each in before]
    expected = [next(iterator)["k"].tolist() for iterator in iterators]
    assert {len(batch["k"]) for batch in last} == {7}
    for again in (states, [merge_states(states)] * 3):
        after = made()
        for each, state in zip(after, again, strict=True):
            each.load_state_dict(json.loads(json.dumps(state)))
        found = [keys(loader(each, workers)) for each in after]
        assert found == [[batch] for batch in expected]


def test_a_loader_that_does_not_count_is_told_of(shuffle):
    dataset = shuffle.to_torch(["k"], batch_size=1000)
    list(loaders.DataLoader(dataset, batch_size=None, num_workers=2))
    with pytest.raises(OptionError, match=r"make it by dataset.loader\(num_workers=...\)"):
        dataset.state_dict()
    with pytest.raises(OptionError, match=r"loader\(batch_size=...\): the dataset makes"):
        dataset.loader(batch_size=5)


def test_a_loader_knows_its_length(shuffle):
    dataset = shuffle.to_torch(["k"], batch_size=100)
    assert "5,003 rows" in repr(dataset)
    for workers in (0, 2):
        batches = loader(dataset, workers)
        assert len(batches) == len(list(batches))


def test_a_position_of_other_rows_is_refused(shuffle):
    state = shuffle.to_torch(["k"], batch_size=100).state_dict()
    for options, message in [
        ({"batch_size": 99}, "batch_size 100, and this one has 99"),
        ({"batch_size": 100, "seed": 5}, "seed 0, and this one has 5"),
        ({"batch_size": 100, "filter": "k < 5"}, "filter None"),
    ]:
        with pytest.raises(OptionError, match=message):
            shuffle.to_torch(["k"], **options).load_state_dict(state)
    with pytest.raises(OptionError, match="is not one of state_dict"):
        shuffle.to_torch(["k"], batch_size=100).load_state_dict({"epoch": 1})


def test_columns_that_are_no_tensors(shuffle):
    with pytest.raises(SchemaError, match="'text' has type string: a tensor takes numbers"):
        shuffle.to_torch(batch_size=10)
    with pytest.raises(SchemaError, match="'maybe' has nulls"):
        list(shuffle.to_torch(["maybe"], batch_size=NUM_ROWS))
    with pytest.raises(SchemaError, match="'ragged' has lists of several lengths"):
        list(shuffle.to_torch(["ragged"], batch_size=NUM_ROWS))
    some = shuffle.to_torch(["maybe"], batch_size=NUM_ROWS, filter="maybe IS NOT NULL")
    assert some.num_rows == NUM_ROWS - 51
    assert next(iter(some))["maybe"].shape == (some.num_rows,)
    texts = shuffle.to_torch(["text"], batch_size=10, convert=lambda batch: batch["text"][0])
    assert str(next(iter(texts))).startswith("row ")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_yields_what_was_converted(shuffle, workers):
    dataset = shuffle.to_torch(["k"], batch_size=1_000, convert=lambda rows: rows["k"].to_numpy())
    (first, *_) = loader(dataset, workers)
    assert isinstance(first, np.ndarray)


def test_lists_of_fixed_length(tmp_path):
    values = pa.FixedSizeListArray.from_arrays(pa.array(range(40)), 2)
    table = pa.table({"k": range(10), "m": pa.FixedSizeListArray.from_arrays(values, 2)})
    write_shuffle(table, tmp_path / "s", num_subpartitions=3, keys="k", for_spark=False)
    (batch,) = open_shuffle(tmp_path / "s").to_torch(batch_size=10)
    assert batch["m"].shape == (10, 2, 2)
    assert batch["m"][:, 1, 0].tolist() == [4 * k + 2 for k in batch["k"].tolist()]


def test_bad_arguments(shuffle):
    with pytest.raises(OptionError, match="give both, or none"):
        shuffle.to_torch(["k"], batch_size=1, rank=0)
    with pytest.raises(OptionError, match="rank=2"):
        shuffle.to_torch(["k"], batch_size=1, rank=2, world_size=2)
    with pytest.raises(OptionError, match="epoch=-1"):
        shuffle.to_torch(["k"], batch_size=1).set_epoch(-1)


def test_snippets_of_the_guide_print_what_is_below_them(tmp_path):
    ran, differing = run_snippets("docs/guide/torch.md", tmp_path, {})
    assert ran >= 1
    assert not differing, "\n\n".join(differing)


KEPT = '"weights": weights.tolist()'
OBSERVED = {
    KEPT: KEPT + ', "seen": PRIOR + [row for each in gathered for row in each]',
    "    states = [None]": "    gathered = [None] * dist.get_world_size()\n"
    "    dist.all_gather_object(gathered, SEEN)\n    states = [None]",
    "        weights = torch.tensor(": '        PRIOR.extend(state["seen"])\n'
    "        weights = torch.tensor(",
    "            gradient =": '            SEEN.extend([epoch, k] for k in batch["id"].tolist())\n'
    "            gradient =",
    "def save(": "PRIOR, SEEN = [], []\n\n\ndef save(",
}
"""What the program of the guide is given, so that its checkpoint says which rows it has seen."""


def started(program, ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [sys.executable, program],
            env={**os.environ, **names, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with its workers
        )
        for rank in range(ranks)
    ]


def seen_by(checkpoint):
    return json.loads(checkpoint.read_text())["seen"] if checkpoint.exists() else []


def test_the_program_of_the_guide_is_killed_and_goes_on(tmp_path):
    """On two ranks with two workers each, then on three: each row once in an epoch, or padding."""
    num_rows = 20_000
    _, blocks = split(Path("docs/guide/torch.md").read_text(encoding="utf-8"))
    (source,) = [text for _, language, text in blocks if language == "py"]
    for old, new in {
        **OBSERVED,
        "/tmp/shuffles": str(tmp_path),
        "batch_size=500": "batch_size=50",
    }.items():
        assert old in source
        source = source.replace(old, new)
    program, checkpoint = tmp_path / "train.py", tmp_path / "checkpoint.json"
    program.write_text(source)
    points = np.random.default_rng(1).normal(size=(num_rows, 2)).astype(np.float32)
    columns = {"id": range(num_rows), "x": points[:, 0], "y": points[:, 1]}
    table = pa.table({**columns, "z": 3 * points[:, 0] - points[:, 1]})
    write_shuffle(table, tmp_path / "points", num_subpartitions=64, keys="id")
    for ranks, epochs in ((2, 0.4), (3, 1.3)):  # killed in the middle of an epoch, twice
        processes = started(program, ranks)
        wait_until(lambda most=epochs: len(seen_by(checkpoint)) > most * num_rows, 200)
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.communicate()
    assert json.loads(checkpoint.read_text())["data"]["epoch"] == 1
    processes = started(program, 2)
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "[3.0, -1.0]" in printed[0]
    for epoch in range(2):
        rows = [k for number, k in seen_by(checkpoint) if number == epoch]
        assert set(rows) == set(range(num_rows))
        assert len(rows) < 1.1 * num_rows, "the rest pads"
