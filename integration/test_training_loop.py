"""The training loop: every row once per epoch, no copy, and no Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from arrow_shuffle import open_shuffle
from integration.programs.datasets import flights
from integration.programs.training_loop import (
    FEATURES,
    LABEL,
    NUM_SHARDS,
    batches_of,
    train,
    write_shards,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "shards"
    write_shards(path)
    return path


def test_workers_find_the_model_that_all_rows_give(shards: Path) -> None:
    columns = [*FEATURES, LABEL]
    table = pq.read_table(flights(), columns=[*columns, "tailnum"]).drop_null()
    x = np.stack([np.ones(table.num_rows), *(table[name].to_numpy() for name in FEATURES)], axis=1)
    expected, *_ = np.linalg.lstsq(x, table[LABEL].to_numpy().astype(float))
    weights, seen = train(shards)
    assert seen == table.num_rows
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_an_epoch_shuffles_the_shards_and_has_each_row_once(shards: Path) -> None:
    shuffle = open_shuffle(shards)
    firsts = []
    for epoch in range(3):
        parts = [list(batches_of(shuffle, epoch, worker, 3)) for worker in range(3)]
        assert sum(b.num_rows for part in parts for b in part) == shuffle.num_rows
        firsts.append(parts[0][0]["distance"][0].as_py())
    assert len(set(firsts)) > 1
    assert shuffle.num_subpartitions == NUM_SHARDS


def test_batches_are_views_in_numpy(shards: Path) -> None:
    batches = list(open_shuffle(shards).subpartition(3, [*FEATURES]))
    assert sum(batch.num_rows for batch in batches) > 0
    for batch in batches:
        for column in batch.columns:
            view = column.to_numpy()
            buffer = column.buffers()[1]
            address = view.__array_interface__["data"][0]
            assert buffer.address <= address < buffer.address + buffer.size


def test_the_example_runs_without_spark(shards: Path) -> None:
    program = (
        "import sys; sys.argv[1:] = [sys.argv[1]];"
        "from integration.programs.training_loop import main;"
        "main() if __name__ == '__main__' else None;"
        "assert 'pyspark' not in sys.modules and 'pandas' not in sys.modules"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(shards)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "327,346 flights: arr_delay = " in found.stdout
