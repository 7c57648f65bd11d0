"""Two targets in one pass, against each written alone and against both after each other.

In one process from Parquet files, each round a fresh process on two cores; and by Spark from a
DataFrame, all in one session after a round that does not count. Goals are of processor time: of the
best rounds, against the mean of the two targets alone.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_format import WriteOptions
from arrow_shuffle import Target
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY
from integration.bench.results import Line, Part, amount_line, compare
from integration.bench.rounds import check_rows
from integration.bench.spark import NOTE, measure_actions, session
from integration.programs.datasets import lineitem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from integration.bench.results import Timing
    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

KEYS = (KEY, "l_partkey")
"""Rows come in the order of the first, and in none of the second."""
TOGETHER, IN_TURN = "both in one pass", "both after each other"
CONTENDERS: dict[str, list[tuple[str, ...]]] = {
    TOGETHER: [KEYS],
    IN_TURN: [(key,) for key in KEYS],
    **{f"by {key}": [(key,)] for key in KEYS},
}
"""The keys that each pass of a contender writes by, by label."""

CORES = 2
OPTIONS = {"sync": False, "sort_buffer_bytes": WriteOptions().sort_buffer_bytes // len(KEYS)}
"""Each write has the memory of a target that shares the default with the other."""


def write(source: Any, label: str, out: Path, n: int, **options: Any) -> list[int]:  # noqa: ANN401
    """Let a contender write; return the rows of each target."""
    how = WriteOptions(**OPTIONS, **options)
    return [
        receipt.num_rows
        for keys in CONTENDERS[label]
        for receipt in arrow_shuffle.write_shuffles(
            source(),
            [Target(out / key, keys=key, num_subpartitions=n, options=how) for key in keys],
        )
    ]


def write_once(
    label: str, files: Sequence[str], scratch: str, num_subpartitions: int
) -> dict[str, Any]:
    """Let one contender write Parquet files, and time it.

    ``scratch`` is a directory that does not exist. The first file is written once before, so that
    no contender's time has loading of code.
    """
    root = Path(scratch)
    try:
        for name, some in (("warm", files[:1]), ("out", files)):
            source = partial(ds.dataset, list(some))
            with timed() as answer:
                found = write(source, label, root / name, num_subpartitions, threads=CORES)
        for num_rows in found:
            check_rows(num_rows, sum(pq.read_metadata(file).num_rows for file in files))
        return answer
    finally:
        shutil.rmtree(root, ignore_errors=True)


def lines(case: str, timings: Mapping[str, Timing], kind: str) -> list[Line]:
    """Lines on one source."""
    ours, alone = timings[TOGETHER], [timings[f"by {key}"] for key in KEYS]
    one = sum(min(timing.cpu_seconds) for timing in alone) / len(alone)
    goal = targets.TWO_TARGETS_AGAINST_ONE[kind]
    both = TOGETHER, min(ours.cpu_seconds)
    return [
        amount_line(case, "processor time, one = 1", both, ("mean of one", one), "s", goal),
        compare(case, "time", "after each other", ours, timings[IN_TURN]),
        *(compare(case, "time", "one", ours, timing) for timing in alone),
    ]


def run(settings: Settings) -> Part:
    """Measure writes to two targets."""
    settings.report("making the input")
    source = lineitem(settings.scale)
    files = [str(path) for path in sorted(source.glob("*.parquet"))]
    title = f"Two targets in one pass, lineitem SF {settings.scale:g} by {' and '.join(KEYS)}"
    part = Part("several", title, notes=[NOTE, "no fsync, 64 MiB of sort buffer for each target"])
    for n in settings.numbers:
        case = f"dataset, one process, n = {n:,}"
        measures = {
            label: partial(
                run_in_child,
                write_once,
                cores=CORES,
                label=label,
                files=files,
                scratch=str(settings.scratch / "several"),
                num_subpartitions=n,
            )
            for label in CONTENDERS
        }
        part.lines += lines(case, settings.measure(part, case, measures), "dataset")
    with session(settings) as spark:
        num_rows = spark.read.parquet(str(source)).count()

        def action(label: str, n: int) -> Action:
            def write_frame(out: Path) -> None:
                for found in write(lambda: spark.read.parquet(str(source)), label, out, n):
                    check_rows(found, num_rows)

            return write_frame

        for n in settings.numbers:
            case = f"DataFrame, local[2], n = {n:,}"
            actions = {label: action(label, n) for label in CONTENDERS}
            timings = measure_actions(settings, part, case, actions)
            part.lines += lines(case, timings, "DataFrame")
    return part
