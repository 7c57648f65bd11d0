"""What a row costs: with more subpartitions, and in longer streams. One core, codec by codec."""

from __future__ import annotations

import gc
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrow_format import WriteOptions, write_shuffle
from integration.bench.child import run_in_child
from integration.bench.contenders import write_once
from integration.bench.cost_lines import (
    MILLIONS,
    NUMBERS,
    number_label,
    number_lines,
    rows_label,
    rows_lines,
)
from integration.bench.engine import profiles_of, timings_of
from integration.bench.engine_lines import OURS
from integration.bench.narrow import KEY, MILLION, narrow_batches
from integration.bench.results import Line, Part, Profile, Timing, turns
from integration.bench.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

STREAM_SUBPARTITIONS = 200
WARM_ROWS = 640_000


def stream_rows(num_rows: int, scratch: str, codec: str) -> dict[str, Any]:
    """Write generated rows of the narrow table, batch after batch; runs in a fresh process.

    The time of making the batches is measured apart, inside the iterator, and taken off.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds`` without making the batches; ``num_bytes``, ``num_rows``;
        ``counters``.
    """
    options = WriteOptions(codec=codec, sync=False)
    root = Path(scratch)
    root.mkdir(parents=True)
    making, making_cpu = 0.0, 0.0

    def arrive(wanted: int) -> Iterator[pa.RecordBatch]:
        nonlocal making, making_cpu
        batches = narrow_batches(wanted)
        while True:
            cpu_before, started = time.process_time(), time.perf_counter()
            batch = next(batches, None)
            making += time.perf_counter() - started
            making_cpu += time.process_time() - cpu_before
            if batch is None:
                return
            yield batch

    def write(wanted: int, where: Path) -> Any:  # noqa: ANN401
        return write_shuffle(
            arrive(wanted),
            where,
            num_subpartitions=STREAM_SUBPARTITIONS,
            keys=KEY,
            options=options,
        )

    try:
        write(min(num_rows, WARM_ROWS), root / "warm")
        shutil.rmtree(root / "warm")
        gc.collect()
        making = making_cpu = 0.0
        cpu_before, started = time.process_time(), time.perf_counter()
        receipt = write(num_rows, root / "out")
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_before
        return {
            "seconds": seconds - making,
            "cpu_seconds": cpu_seconds - making_cpu,
            "num_bytes": receipt.num_bytes,
            "num_rows": receipt.num_rows,
            "counters": dict(receipt.counters),
        }
    finally:
        shutil.rmtree(root)


def run(
    scale: float,
    *,
    tables: Iterable[str],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> Part:
    """Measure what a row costs; ``step`` is told what comes next."""
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    profiles: list[Profile] = []

    def keep(case: str, answers: dict[str, list[dict[str, Any]]]) -> dict[str, Timing]:
        found = timings_of(answers)
        timings[case] = tuple(found.values())
        profiles.extend(profiles_of(case, answers))
        return found

    for table in tables:
        case = f"{table}, more subpartitions"
        step(f"making the input: {table}")
        rows = str(TABLES[table].stream(scale))
        measures = {
            number_label(codec, n): _writing(codec, n, rows, TABLES[table].key, scratch)
            for codec in codecs
            for n in NUMBERS
        }
        found = keep(case, _in_turns(case, measures, repeat, step))
        for codec in codecs:
            lines += number_lines(case, codec, found)
    case = f"narrow, longer streams, n = {STREAM_SUBPARTITIONS}"
    measures = {
        rows_label(codec, num_rows): _streaming(codec, num_rows, scratch)
        for codec in codecs
        for num_rows in (round(MILLION * millions * scale) for millions in MILLIONS)
    }
    found = keep(case, _in_turns(case, measures, repeat, step))
    for codec in codecs:
        lines += rows_lines(case, codec, found)
    notes = (
        "one core, a fresh process per round, in turns; ratios of the best rounds; ours throughout",
        "streams: batches are made while they are asked for, and the time of making them, measured "
        "around each, is taken off",
    )
    title = f"Time per row, one core, scale {scale:g}"
    return Part("cost", title, tuple(lines), timings, notes, tuple(profiles))


def _writing(
    codec: str, n: int, rows: str, key: str, scratch: Path
) -> Callable[[], dict[str, Any]]:
    return lambda: run_in_child(
        write_once,
        contender=OURS[codec],
        rows=rows,
        key=key,
        scratch=str(scratch / "out"),
        num_subpartitions=n,
    )


def _streaming(codec: str, num_rows: int, scratch: Path) -> Callable[[], dict[str, Any]]:
    return lambda: run_in_child(
        stream_rows, num_rows=num_rows, scratch=str(scratch / "stream"), codec=codec
    )


def _in_turns(
    case: str,
    measures: dict[str, Callable[[], dict[str, Any]]],
    repeat: int,
    step: Callable[[str], None],
) -> dict[str, list[dict[str, Any]]]:
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in measures}
    for number, order in enumerate(turns(list(measures), repeat), 1):
        for label in order:
            step(f"cost, {case}, round {number}: {label}")
            answers[label].append(measures[label]())
    return answers
