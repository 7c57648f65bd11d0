"""A table that grew by many small appends, on one core: reading it, merging it, a key of it.

Against Lance and Delta, which compact what they appended, where ``pylance`` and ``deltalake`` are
installed. Each round is a fresh process and a copy of its own. Processor time.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format import WriteOptions, merge_shuffle, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import BATCH_ROWS, KEY, ipc_stream, read_batches
from integration.bench.results import Part, cpu_line
from integration.bench.rounds import installed

if TYPE_CHECKING:
    from integration.bench.results import Target
    from integration.bench.rounds import Settings

APPENDS, ROWS = 300, 2_000
OURS, LANCE, DELTA = "this", "Lance", "Delta"
PEERS = {LANCE: ("lance", "pylance"), DELTA: ("deltalake", "deltalake")}
READ, MERGE, LOOKUP, READ_MERGED = "read all", "merge", "a key", "read all, merged"


def append_all(rows: str, out: str, label: str, num_subpartitions: int) -> dict[str, Any]:
    """Write a table by appends of a few rows each."""
    batches = read_batches(Path(rows), APPENDS * ROWS // BATCH_ROWS)
    table = pa.Table.from_batches(batches).combine_chunks()  # Lance takes no other decimals
    for start in range(0, table.num_rows, ROWS):
        some = table.slice(start, ROWS)
        if label == LANCE:
            import lance as peer

            peer.write_dataset(some, out, mode="append" if start else "create")
        elif label == DELTA:
            import deltalake

            deltalake.write_deltalake(out, some, mode="append")
        else:
            write_shuffle(
                some,
                out,
                keys=KEY,
                num_subpartitions=num_subpartitions,
                mode="append",
                options=WriteOptions(sync=False),
            )
    return {"num_rows": table.num_rows}


def measure(source: str, warm: str, label: str, what: str, key: int) -> dict[str, Any]:
    """Do one of four things with a copy, after the same with a smaller table."""
    num_rows = 0
    for original in (warm, source):  # the first loads the code
        path = f"{original}-copy"
        # Neither a merge nor a compaction changes a file that is there: links are copies enough.
        shutil.copytree(original, path, copy_function=os.link)
        if what == READ_MERGED:
            _do(path, label, MERGE, key)
        with timed() as answer:
            num_rows = _do(path, label, what, key)
        shutil.rmtree(path)
    return {**answer, "num_rows": num_rows}


def _do(path: str, label: str, what: str, key: int) -> int:
    """Return the rows that were read."""
    if label == LANCE:
        import lance as peer

        dataset = peer.dataset(path)
        if what == MERGE:
            dataset.optimize.compact_files()
            return 0
        wanted = f"{KEY} = {key}" if what == LOOKUP else None
        return int(dataset.to_table(filter=wanted).num_rows)
    if label == DELTA:
        import deltalake

        table = deltalake.DeltaTable(path)
        if what == MERGE:
            table.optimize.compact()
            return 0
        condition = f" WHERE {KEY} = {key}" if what == LOOKUP else ""
        query = deltalake.QueryBuilder().register("t", table).execute(f"SELECT * FROM t{condition}")
        return int(pa.table(query.read_all()).num_rows)
    if what == MERGE:
        merge_shuffle(path, options=WriteOptions(sync=False), by="map_output")
        return 0
    shuffle = open_shuffle(path)
    if what == LOOKUP:
        return int(shuffle.lookup({KEY: key}).read_all().num_rows)
    return int(shuffle.to_table(ordered=False).num_rows)


def run(settings: Settings) -> Part:
    """Measure a table of many appends."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("appends", f"Engine, {APPENDS} appends of {ROWS:,} rows")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    labels = [OURS, *installed(part, PEERS)]
    key = read_batches(Path(rows), 1)[0][KEY][17].as_py()
    goals: dict[str, Target | None] = {
        READ: targets.READ_AFTER_APPENDS,
        MERGE: targets.MERGE_OF_APPENDS,
        LOOKUP: None,
        READ_MERGED: None,
    }
    for n in settings.numbers:
        warm, out = (str(settings.scratch / f"{name}-{n}") for name in ("warm", "appends"))
        small = str(ipc_stream(0.01))
        for label in labels:
            settings.report(f"n = {n:,}: appending, {label}")
            for of, path in ((small, warm), (rows, out)):
                run_in_child(
                    append_all, rows=of, out=f"{path}-{label}", label=label, num_subpartitions=n
                )
        for what, target in goals.items():
            case = f"{what}, n = {n:,}"
            measures = {
                label: partial(
                    run_in_child,
                    measure,
                    source=f"{out}-{label}",
                    warm=f"{warm}-{label}",
                    label=label,
                    what=what,
                    key=key,
                )
                for label in labels
            }
            timings = settings.measure(part, case, measures)
            if len({timing.num_rows for timing in timings.values()}) > 1:
                msg = f"{case}: {timings} disagree on the rows"
                raise RuntimeError(msg)
            part.lines += [cpu_line(case, timings, OURS, peer, target) for peer in labels[1:]]
    return part
