"""Deleting the rows of few keys with a mask, and reading what is left, on one core.

Against a deletion that writes the files again; against Lance, whose deletion writes row numbers
too, where ``pylance`` is installed; and against reading everything before. The deletion that writes
again, against that of a Delta table that is partitioned as the shuffle is, where ``deltalake`` is
installed. Each round is a fresh process that has deleted from another copy before. Processor time.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, delete_rows, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.results import Part, amount_line, cpu_line, megabytes
from integration.bench.rounds import installed

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

NUM_KEYS = 50
OPTIONS = WriteOptions(sync=False)
MASK, REWRITE, LANCE, DELTA = "mask", "rewrite", "Lance", "Delta by bucket"
PEERS = {LANCE: ("lance", "pylance"), DELTA: ("deltalake", "deltalake")}
BUCKET = "_subpartition"
"""Column that ``read(with_subpartition=True)`` adds."""
BEFORE, AFTER = "read before", "read after"


def write_all(rows: str, out: str, num_subpartitions: int, peers: list[str]) -> dict[str, Any]:
    """Write a shuffle, the same with rows deleted, and tables of peers, beside it."""
    batches = read_batches(Path(rows))
    for name in (BEFORE, AFTER):
        write_shuffle(
            batches, f"{out}-{name}", num_subpartitions=num_subpartitions, keys=KEY, options=OPTIONS
        )
    delete_rows(f"{out}-{AFTER}", {KEY: keys_of(rows)[0]}, erase=False)
    if LANCE in peers:
        import lance as peer

        aligned = pa.Table.from_batches(batches).combine_chunks()  # Lance takes no other decimals
        peer.write_dataset(aligned, f"{out}-{LANCE}")
    if DELTA in peers:
        import deltalake

        bucketed = open_shuffle(f"{out}-{BEFORE}").read(with_subpartition=True)
        deltalake.write_deltalake(f"{out}-{DELTA}", bucketed, partition_by=BUCKET)
    return {}


def keys_of(rows: str) -> tuple[list[int], list[int]]:
    """Return keys to delete, and others for the first deletion of a process."""
    keys = np.concatenate([batch[KEY].to_numpy() for batch in read_batches(Path(rows))])
    chosen = np.random.default_rng(38).choice(np.unique(keys), 2 * NUM_KEYS, replace=False).tolist()
    return chosen[:NUM_KEYS], chosen[NUM_KEYS:]


def delete(source: str, label: str, deleted: list[int], others: list[int]) -> dict[str, Any]:
    """Delete the rows of keys in one way from a copy; ``num_rows`` are left, and bytes written."""
    num_rows = num_bytes = 0
    for keys in (others, deleted):  # the first loads the code
        copy = f"{source}-copy"
        # No deletion changes a file that is there: links are copies enough.
        shutil.copytree(source, copy, copy_function=os.link)
        condition = _one_of(KEY, keys)
        if label == LANCE:
            import lance as peer

            with timed() as answer:
                peer.dataset(copy).delete(condition)
            num_rows = peer.dataset(copy).count_rows()
        elif label == DELTA:
            import deltalake

            # Ours finds the subpartitions of keys while it is measured; Delta is told them.
            shuffle = open_shuffle(f"{source.removesuffix(DELTA)}{BEFORE}")
            buckets = sorted({shuffle.subpartition_of(**{KEY: key}) for key in keys})
            with timed() as answer:
                table = deltalake.DeltaTable(copy)
                table.delete(f"{_one_of(BUCKET, buckets)} AND {condition}")
            num_rows = table.to_pyarrow_dataset().count_rows()
        else:
            with timed() as answer:
                delete_rows(copy, {KEY: keys}, erase=label == REWRITE, options=OPTIONS)
            num_rows = open_shuffle(copy).num_rows
        files = [path.stat() for path in Path(copy).rglob("*") if path.is_file()]
        num_bytes = sum(file.st_size for file in files if file.st_nlink == 1)
        shutil.rmtree(copy)
    return {**answer, "num_rows": num_rows, "num_bytes": num_bytes}


def _one_of(column: str, values: list[int]) -> str:
    return f"{column} IN ({', '.join(map(str, values))})"


def read(path: str) -> dict[str, Any]:
    """Read all rows, one time before the clock starts."""
    shuffle = open_shuffle(path)
    for _ in range(2):
        with timed() as answer:
            num_rows = sum(batch.num_rows for batch in shuffle.read())
    return {**answer, "num_rows": num_rows}


def run(settings: Settings) -> Part:
    """Measure masks."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("masks", f"Engine, rows deleted with a mask, scale {settings.scale:g}")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    peers = installed(part, PEERS)
    deleted, others = keys_of(rows)
    for n in settings.numbers:
        settings.report(f"n = {n:,}: writing")
        out = str(settings.scratch / f"masked-{n}")
        run_in_child(write_all, rows=rows, out=out, num_subpartitions=n, peers=peers)
        case = f"{NUM_KEYS} keys, n = {n:,}"
        from_copy = partial(run_in_child, delete, deleted=deleted, others=others)
        deletions = {
            label: partial(
                from_copy, source=f"{out}-{label if label in peers else BEFORE}", label=label
            )
            for label in (MASK, REWRITE, *peers)
        }
        reads = {
            label: partial(run_in_child, read, path=f"{out}-{label}") for label in (BEFORE, AFTER)
        }
        timings = settings.measure(part, case, deletions)
        timings |= settings.measure(part, f"{case}: reading", reads)
        left = {timing.num_rows for label, timing in timings.items() if label != BEFORE}
        if len(left) > 1:
            msg = f"{case}: {timings} disagree on the rows that are left"
            raise RuntimeError(msg)
        part.lines.append(cpu_line(case, timings, MASK, REWRITE, None))
        if LANCE in peers:
            part.lines.append(cpu_line(case, timings, MASK, LANCE, targets.MASK_AGAINST_LANCE))
        if DELTA in peers:
            ours, other = timings[REWRITE], timings[DELTA]
            part.lines += [
                cpu_line(case, timings, REWRITE, DELTA, targets.ERASE_AGAINST_DELTA),
                amount_line(
                    case, f"bytes written, {DELTA} = 1", megabytes(ours), megabytes(other), "MB"
                ),
            ]
        part.lines.append(cpu_line(case, timings, AFTER, BEFORE, targets.MASKED_READ))
    return part
