"""All columns of the rows of few keys, on one core, against a data set of Lance with a BTREE index.

Of a shuffle that is open, in a process that looked others up before; and in a new process, with
all that it imports. Processor time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.results import Part, cpu_line
from integration.bench.rounds import installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.bench.rounds import Settings

OURS, LANCE = "this", "Lance"
MANY = 100
NEW = {
    OURS: (
        f"import sys, arrow_format as a; "
        f"t = a.open_shuffle(sys.argv[1]).lookup({{{KEY!r}: int(sys.argv[2])}}).read_all(); "
        f"print(t.num_rows)"
    ),
    LANCE: (
        f"import sys, lance; "
        f"t = lance.dataset(sys.argv[1]).to_table(filter={KEY + ' = '!r} + sys.argv[2]); "
        f"print(t.num_rows)"
    ),
}
"""Programs that look a key up in a new process."""


def write_all(rows: str, out: str, num_subpartitions: int, *, lance: bool) -> dict[str, Any]:
    """Write a shuffle, and perhaps a data set of Lance with its index beside it."""
    batches = read_batches(Path(rows))
    options = WriteOptions(sync=False)
    path = f"{out}-{OURS}"
    write_shuffle(batches, path, num_subpartitions=num_subpartitions, keys=KEY, options=options)
    if lance:
        import lance as peer

        aligned = pa.Table.from_batches(batches).combine_chunks()  # Lance takes no other decimals
        peer.write_dataset(aligned, f"{out}-{LANCE}").create_scalar_index(KEY, "BTREE")
    return {}


def keys_of(rows: str) -> list[int]:
    """Return twice as many keys as are looked up at a time."""
    keys = np.concatenate([batch[KEY].to_numpy() for batch in read_batches(Path(rows))])
    chosen = np.random.default_rng(39).choice(np.unique(keys), 2 * MANY, replace=False)
    return [int(key) for key in chosen]


def _ours(path: str) -> Callable[[list[int]], int]:
    shuffle = open_shuffle(path)
    return lambda keys: shuffle.lookup({KEY: keys}).read_all().num_rows


def _lance(path: str) -> Callable[[list[int]], int]:
    import lance

    dataset = lance.dataset(path)
    return lambda keys: dataset.to_table(filter=f"{KEY} IN {*keys, keys[0]}").num_rows


OPENED = {OURS: _ours, LANCE: _lance}


def look_up(path: str, label: str, keys: list[list[int]]) -> dict[str, Any]:
    """Look up lists of keys one after the other; the last one is measured."""
    opened = OPENED[label](path)
    for some in keys:
        with timed() as answer:
            num_rows = opened(some)
    return {**answer, "num_rows": num_rows}


def in_new_process(path: str, label: str, key: int) -> dict[str, Any]:
    """Look a key up in a new process; all of its processor time counts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-c", NEW[label], path, str(key)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "num_rows": int(printed)}


def run(settings: Settings) -> Part:
    """Measure lookups of few keys."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("keys", f"Engine, rows of few keys, scale {settings.scale:g}")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    has_lance = LANCE in installed(part, {LANCE: ("lance", "pylance")})
    keys = keys_of(rows)
    several = {MANY: [keys[MANY:], keys[:MANY]], 1: [keys[MANY : MANY + 1], keys[:1]]}
    for n in settings.numbers:
        settings.report(f"n = {n:,}: writing")
        out = str(settings.scratch / f"keys-{n}")
        run_in_child(write_all, rows=rows, out=out, num_subpartitions=n, lance=has_lance)
        paths = {label: f"{out}-{label}" for label in ((OURS, LANCE) if has_lance else (OURS,))}
        cases = {
            f"{number} key{'s' * (number > 1)}, open, n = {n:,}": partial(
                run_in_child, look_up, keys=some
            )
            for number, some in several.items()
        }
        cases[f"1 key, new process, n = {n:,}"] = partial(run_in_child, in_new_process, key=keys[0])
        goals = targets.KEYS_AGAINST_LANCE
        for (case, measure), target in zip(cases.items(), goals, strict=True):
            measures = {
                label: partial(measure, path=path, label=label) for label, path in paths.items()
            }
            timings = settings.measure(part, case, measures)
            if len({timing.num_rows for timing in timings.values()}) > 1:
                msg = f"{case}: {timings} disagree on the rows"
                raise RuntimeError(msg)
            if has_lance:
                part.lines.append(cpu_line(case, timings, OURS, LANCE, target))
    return part
