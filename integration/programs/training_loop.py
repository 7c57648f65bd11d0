"""Training on a shuffle without Spark: ``python -m integration.programs.training_loop [SHUFFLE]``.

In every epoch each worker process reads its share of the rows, in an order that the epoch draws,
and fits a linear model to the batches as NumPy arrays that are views of Arrow's memory. No Spark
and no JVM takes part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arrow_shuffle import WriteOptions, open_shuffle, write_shuffle
from integration.programs.datasets import flights

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from arrow_shuffle import Shuffle

    Floats = npt.NDArray[np.float64]

FEATURES = ("dep_delay", "distance")
LABEL = "arr_delay"
NUM_SHARDS = 16


def write_shards(path: Path) -> None:
    """Write the flights that arrived as a shuffle, spread over shards by tail number."""
    table = pq.read_table(flights(), columns=[*FEATURES, LABEL, "tailnum"]).drop_null()
    for i, name in enumerate((*FEATURES, LABEL)):
        table = table.set_column(i, name, pc.cast(table[name], "float64"))
    write_shuffle(
        table, path, num_subpartitions=NUM_SHARDS, keys="tailnum", options=WriteOptions(sync=False)
    )


def batches_of(shards: Shuffle, epoch: int, worker: int, workers: int) -> Iterator[pa.RecordBatch]:
    """Batches of this worker's rows of an epoch, in the order that the epoch draws."""
    epochs = shards.epochs([*FEATURES, LABEL], batch_size=4_096, rank=worker, world_size=workers)
    epochs.set_epoch(epoch)
    yield from epochs


def sums(shards: Shuffle, epoch: int, workers: int, worker: int) -> tuple[Floats, Floats, int]:
    """Return what a worker contributes to the normal equations, and its number of rows."""
    size = len(FEATURES) + 1
    products, targets, num_rows = np.zeros((size, size)), np.zeros(size), 0
    for batch in batches_of(shards, epoch, worker, workers):
        # Views of Arrow's memory: to_numpy() refuses to copy.
        columns = [batch[name].to_numpy() for name in FEATURES]
        label = batch[LABEL].to_numpy()
        x = np.stack([np.ones(batch.num_rows), *columns])
        products += x @ x.T
        targets += x @ label
        num_rows += batch.num_rows
    return products, targets, num_rows


def train(path: Path, *, epochs: int = 2, workers: int = 2) -> tuple[Floats, int]:
    """Return the weights (intercept first) and the rows seen in each epoch."""
    shards = open_shuffle(path)  # pickled by name: each worker opens this very version itself
    weights: Floats = np.zeros(len(FEATURES) + 1)
    seen = 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for epoch in range(epochs):
            parts = pool.map(partial(sums, shards, epoch, workers), range(workers))
            products = sum(part[0] for part in parts)
            targets = sum(part[1] for part in parts)
            weights = np.asarray(np.linalg.solve(products, targets))
            seen = sum(part[2] for part in parts)
    return weights, seen


def main() -> None:
    """Write shards unless some are given, train on them, and print the model."""
    parser = argparse.ArgumentParser(
        prog="python -m integration.programs.training_loop", description=__doc__
    )
    parser.add_argument("shuffle", nargs="?", type=Path, help="a shuffle that is there already")
    given = parser.parse_args().shuffle
    with tempfile.TemporaryDirectory() as scratch:
        path = given or Path(scratch) / "shards"
        if given is None:
            write_shards(path)
        weights, seen = train(path)
    terms = " + ".join(f"{w:.4f} {name}" for w, name in zip(weights[1:], FEATURES, strict=True))
    print(f"{seen:,} flights: {LABEL} = {weights[0]:.2f} + {terms}")


if __name__ == "__main__":
    main()
