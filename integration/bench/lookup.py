"""What is wanted of very many map outputs, on one core: the rows of a key, and one subpartition.

Each round is a fresh process that has looked up keys in a small shuffle before. Goals are times of
the machine that is written down with each run, so compare ratios of one run with another's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import HashPartitioner, WriteOptions, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.read import bytes_read
from integration.bench.results import Line, Part, Timing, amount_line

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

KEY = "k"
LARGE_OUTPUTS, LARGE_ROWS, LARGE_SUBPARTITIONS = 200, 26_000, 20_000
SMALL_OUTPUTS, SMALL_ROWS, SMALL_SUBPARTITIONS = 10_000, 400, 200
WARM_OUTPUTS = 2
NOTHING, OPEN = "from nothing", "of an open shuffle"
FIRST, AGAIN = "the first time", "again"


def batch_of(map_task: int, num_rows: int) -> pa.RecordBatch:
    """Return the rows of a map task: keys that hardly repeat, and seven columns of some types."""
    random = np.random.default_rng(map_task)
    words = pa.array([f"word number {i}" for i in range(3_000)])
    days = pa.array(random.integers(0, 9_000, num_rows), pa.int32())
    return pa.record_batch(
        {
            KEY: random.integers(0, 1 << 40, num_rows),
            "number": random.integers(0, 1_000, num_rows),
            "share": random.random(num_rows),
            "text": words.take(pa.array(random.integers(0, 3_000, num_rows))),
            "day": days.cast(pa.date32()),
            "price": np.round(random.random(num_rows) * 100, 2),
            "flag": random.integers(0, 5, num_rows).astype(np.int8),
            "wide": random.integers(0, 1 << 30, num_rows),
        }
    )


def write_outputs(out: str, num_outputs: int, num_rows: int, n: int) -> dict[str, Any]:
    """Write a shuffle of so many map outputs."""
    job = begin_job(
        out,
        batch_of(0, 1).schema,
        num_subpartitions=n,
        partitioner=HashPartitioner(KEY),
        options=WriteOptions(sync=False),
    )
    tasks = range(num_outputs)
    commit_job(job, [run_map_task(job, task, 0, [batch_of(task, num_rows)]) for task in tasks])
    return {}


def look_up(path: str, warm: str, *, opens: bool) -> dict[str, Any]:
    """Read the rows of a key, with opening the shuffle for it or of one that is open."""
    keys = batch_of(0, LARGE_ROWS)[KEY].to_pylist()[:3]
    for key in keys:  # loads the code
        open_shuffle(warm).lookup({KEY: key}).read_all()
    shuffle = None
    if not opens:
        shuffle = open_shuffle(path)
        shuffle.lookup({KEY: keys[1]}).read_all()
    before = bytes_read()
    with timed() as answer:
        shuffle = open_shuffle(path) if shuffle is None else shuffle
        num_rows = shuffle.lookup({KEY: keys[0]}).read_all().num_rows
    return {**answer, "num_rows": num_rows, "num_bytes": bytes_read() - before}


def read_one(path: str, warm: str, *, again: bool) -> dict[str, Any]:
    """Read one subpartition of an open shuffle, for the first time or again."""
    open_shuffle(warm).subpartition(0).read_all()  # loads the code
    shuffle = open_shuffle(path)
    if again:
        shuffle.subpartition(7).read_all()
    with timed() as answer:
        num_rows = shuffle.subpartition(7).read_all().num_rows
    return {**answer, "num_rows": num_rows}


def run(settings: Settings) -> Part:
    """Measure what is wanted of many map outputs."""
    part = Part("lookup", "Engine, few rows of many map outputs")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    small = max(round(SMALL_OUTPUTS * min(settings.scale, 1)), WARM_OUTPUTS)
    paths = {name: str(settings.scratch / f"{name}-outputs") for name in ("warm", "large", "small")}
    for name, shape in (
        ("warm", (WARM_OUTPUTS, LARGE_ROWS, LARGE_SUBPARTITIONS)),
        ("large", (LARGE_OUTPUTS, LARGE_ROWS, LARGE_SUBPARTITIONS)),
        ("small", (small, SMALL_ROWS, SMALL_SUBPARTITIONS)),
    ):
        settings.report(f"writing {shape[0]:,} map outputs")
        num_outputs, num_rows, n = shape
        run_in_child(
            write_outputs, out=paths[name], num_outputs=num_outputs, num_rows=num_rows, n=n
        )
    case = f"a key in {LARGE_OUTPUTS} map outputs, n = {LARGE_SUBPARTITIONS:,}"
    found = partial(run_in_child, look_up, path=paths["large"], warm=paths["warm"])
    timings = settings.measure(
        part, case, {NOTHING: partial(found, opens=True), OPEN: partial(found, opens=False)}
    )
    part.lines += [_line(case, timings[label], targets.KEY_MS[label]) for label in timings]
    case = f"one subpartition of {small:,} map outputs"
    one = partial(run_in_child, read_one, path=paths["small"], warm=paths["warm"])
    timings = settings.measure(
        part, case, {FIRST: partial(one, again=False), AGAIN: partial(one, again=True)}
    )
    goal = targets.ONE_OF_MANY_MS * small / SMALL_OUTPUTS
    part.lines.append(_line(case, timings[AGAIN], goal))
    return part


def _line(case: str, timing: Timing, goal_ms: float) -> Line:
    ours = timing.label, 1e3 * min(timing.cpu_seconds)
    goal = "goal", goal_ms
    return amount_line(case, "processor time, goal = 1", ours, goal, "ms", targets.GOAL)
