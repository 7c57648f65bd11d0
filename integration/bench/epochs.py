"""One epoch of training, as tensors in batches of 1,024: against Parquet, Lance and MDS.

Six million rows at scale 1 of 16 columns, from a source that is sorted by one of 100 labels, kept
by a unique id. Parquet's row groups come in a random order, and a window of them is permuted, of as
many rows as a reader of ours has in memory. Lance's sampler reads fragments in a random order; MDS
reads samples, of a hundredth of the rows, since it takes minutes for all. Those that are installed:
``mosaicml-streaming`` pins older packages, so give the benchmark an environment of its own.

*Quality* is the distance of the labels of a batch from those of all rows, as a multiple of that of
a random permutation. It is measured where rows are 20 times what a reader has in memory, with
chunks that are as small in proportion.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_format.arrays.batches import in_batches_of
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.results import Part, amount_line, compare
from integration.bench.rounds import check_rows, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from integration.bench.rounds import Settings

NUM_ROWS, NUM_LABELS, NUM_FEATURES = 6_000_000, 100, 14
BATCH = 1_024
ROW_GROUP = 1 << 16
MDS_SHARE = 100
OPTIONS = arrow_shuffle.WriteOptions(sync=False)

OURS, PARQUET, LANCE, MDS = "ours", "Parquet", "Lance", "MDS"
PEERS = {LANCE: ("lance", "pylance"), MDS: ("streaming", "mosaicml-streaming")}

COLUMNS = {"16 columns": None, "2 columns": ["label", "x0"]}

SMALL_MEMORY = 12 << 20
"""Memory of a reader where quality is measured: a 32nd, and so are chunks and row groups."""
SMALL_ROWS = 12_000_000
SMALL_CHUNKS = arrow_shuffle.WriteOptions(
    sync=False, chunk_bytes=8 << 10, sort_buffer_bytes=24 << 20
)


def rows_of(num_rows: int, num_features: int) -> pa.Table:
    """Return rows by label, with a unique id."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "id": np.arange(num_rows),
        "label": np.repeat(np.arange(NUM_LABELS, dtype=np.int32), -(-num_rows // NUM_LABELS))[
            :num_rows
        ],
    }
    for i in range(num_features):
        columns[f"x{i}"] = random.normal(size=num_rows).astype(np.float32)
    return pa.table(columns)


def write_all(
    directory: str, num_rows: int, num_subpartitions: int, *, mds: bool, lance: bool
) -> dict[str, Any]:
    """Write the same rows for each contender; return the bytes in Arrow."""
    table = rows_of(num_rows, NUM_FEATURES)
    path = f"{directory}/{OURS}"
    arrow_shuffle.write_shuffle(
        table, path, num_subpartitions=num_subpartitions, keys="id", options=OPTIONS
    )
    pq.write_table(table, f"{directory}/{PARQUET}", compression="zstd", row_group_size=ROW_GROUP)
    if lance:
        import lance as peer

        peer.write_dataset(table, f"{directory}/{LANCE}")
    if mds:
        from streaming import MDSWriter

        few = table.slice(0, num_rows).take(np.arange(0, num_rows, MDS_SHARE))
        kinds = {field.name: str(field.type).replace("float", "float32") for field in few.schema}
        kinds = {name: "float32" if "float" in kind else kind for name, kind in kinds.items()}
        with MDSWriter(out=f"{directory}/{MDS}", columns=kinds) as writer:
            names = few.schema.names
            for row in zip(*(column.to_numpy() for column in few.columns), strict=True):
                writer.write(dict(zip(names, row, strict=True)))
    return {"num_bytes": table.nbytes}


# Contenders ---------------------------------------------------------------------------------------


def _ours(directory: str, columns: Sequence[str] | None, _: int) -> Iterator[Any]:
    dataset = arrow_shuffle.open_shuffle(f"{directory}/{OURS}").to_torch(columns, batch_size=BATCH)
    yield from dataset.loader()


def windows(
    path: str, columns: Sequence[str] | None, window: int, batch_size: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of Parquet's row groups in a random order, a window of them permuted."""
    random, file = np.random.default_rng(0), pq.ParquetFile(path)
    groups = (
        batch
        for group in random.permutation(file.num_row_groups).tolist()
        for batch in file.read_row_group(group, columns=columns).combine_chunks().to_batches()
    )
    for rows in in_batches_of(groups, window):
        mixed = rows.take(pa.array(random.permutation(rows.num_rows)))
        for start in range(0, mixed.num_rows, batch_size):
            yield mixed.slice(start, batch_size)


def _parquet(directory: str, columns: Sequence[str] | None, window: int) -> Iterator[Any]:
    from arrow_format.epochs.torch_dataset import tensors_of

    yield from map(tensors_of, windows(f"{directory}/{PARQUET}", columns, window, BATCH))


def _lance(directory: str, columns: Sequence[str] | None, _: int) -> Iterator[Any]:
    from lance.sampler import ShardedFragmentSampler
    from lance.torch.data import LanceDataset

    sampler = ShardedFragmentSampler(0, 1, randomize=True, seed=0)
    yield from LanceDataset(
        f"{directory}/{LANCE}", batch_size=BATCH, columns=columns, sampler=sampler
    )


def _mds(directory: str, columns: Sequence[str] | None, _: int) -> Iterator[Any]:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(
        local=f"{directory}/{MDS}", shuffle=True, batch_size=BATCH, num_canonical_nodes=1
    )
    del columns  # a sample has all of them
    yield from DataLoader(dataset, batch_size=BATCH)


CONTENDERS: dict[str, Callable[[str, Sequence[str] | None, int], Iterator[Any]]] = {
    OURS: _ours,
    PARQUET: _parquet,
    LANCE: _lance,
    MDS: _mds,
}


def read_once(label: str, directory: str, columns: list[str] | None, window: int) -> dict[str, Any]:
    """Let one contender read an epoch; return the time of as many rows as all others read."""
    contender = CONTENDERS[label]
    for _, _ in zip(range(3), contender(directory, columns, window), strict=False):
        pass  # loads its code
    with timed() as answer:
        num_rows = sum(len(batch["label"]) for batch in contender(directory, columns, window))
    if label == MDS:
        answer = {name: MDS_SHARE * seconds for name, seconds in answer.items()}
        num_rows *= MDS_SHARE
    return {**answer, "num_rows": num_rows}


# Quality ------------------------------------------------------------------------------------------


def distance(batches: Iterable[pa.RecordBatch]) -> float:
    """Return how far the labels of whole batches are from even, against random ones."""
    labels = [batch["label"] for batch in batches if batch.num_rows == BATCH]
    counts = np.array([np.bincount(each, minlength=NUM_LABELS) for each in labels])
    random = np.random.default_rng(1).multinomial(BATCH, [1 / NUM_LABELS] * NUM_LABELS, 20_000)
    even = BATCH / NUM_LABELS
    return float(np.abs(counts - even).sum(1).mean() / np.abs(random - even).sum(1).mean())


def quality(directory: str, num_rows: int) -> dict[str, Any]:
    """Return the distances of what orders there are, where memory has room for few rows."""
    table = rows_of(num_rows, 2)
    row_bytes, found = table.nbytes / num_rows, {}
    window = int(SMALL_MEMORY / row_bytes)
    arrow_shuffle.write_shuffle(
        table, f"{directory}/{OURS}", num_subpartitions=256, keys="id", options=SMALL_CHUNKS
    )
    rows = arrow_shuffle.open_shuffle(f"{directory}/{OURS}")
    for num_ranks in (1, 16):
        ranks = [
            rows.epochs(
                batch_size=BATCH,
                memory_bytes=SMALL_MEMORY,
                rank=rank,
                world_size=num_ranks,
                hold=False,
            )
            for rank in range(num_ranks)
        ]
        found[f"{OURS}, {num_ranks} ranks"] = sum(map(distance, ranks)) / num_ranks
    path = f"{directory}/small"
    pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP // 32)
    found[PARQUET] = distance(windows(path, None, window, BATCH))
    return found


def run(settings: Settings) -> Part:
    """Measure epochs."""
    num_rows = int(NUM_ROWS * settings.scale)
    part = Part("epochs", f"One epoch of {num_rows:,} rows by id, batches of {BATCH:,} tensors")
    part.notes.append("no fsync; tensors by torch; two cores")
    there = installed(part, PEERS)
    for n in settings.numbers:
        directory = settings.scratch / f"epochs-{n}"
        directory.mkdir()
        settings.report("writing")
        run_in_child(
            write_all,
            cores=2,
            directory=str(directory),
            num_rows=num_rows,
            num_subpartitions=n,
            mds=MDS in there,
            lance=LANCE in there,
        )
        for case, columns in COLUMNS.items():
            labels = [OURS, PARQUET, *(label for label in there if label != MDS or not columns)]
            measures = {
                label: partial(
                    run_in_child,
                    read_once,
                    cores=2,
                    label=label,
                    directory=str(directory),
                    columns=columns,
                    window=1 << 20,
                )
                for label in labels
            }
            timings = settings.measure(part, f"{case}, n = {n:,}", measures)
            for label in labels:
                check_rows(timings[label].num_rows or 0, num_rows)
            for label in labels[1:]:
                part.lines.append(
                    compare(
                        case,
                        "speed",
                        label,
                        timings[OURS],
                        timings[label],
                        targets.EPOCH_AGAINST_PEERS,
                    )
                )
        shutil.rmtree(directory)
    directory = settings.scratch / "quality"
    directory.mkdir()
    settings.report("quality")
    found = run_in_child(
        quality, cores=2, directory=str(directory), num_rows=int(SMALL_ROWS * settings.scale)
    )
    for label, value in found.items():
        goal = None if label == PARQUET else targets.EPOCH_DISTANCE
        one = label, value
        part.lines.append(amount_line("", "distance of labels", one, ("random", 1.0), "", goal))
    shutil.rmtree(directory)
    return part
