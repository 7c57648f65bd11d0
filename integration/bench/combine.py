"""What combining rows on the way in costs and saves: one map task on one core, codec zstd."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import BATCH_ROWS, as_over_ipc
from integration.bench.results import Line, Part, Timing, amount_line, compare, megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from integration.bench.rounds import Settings

COMBINED, PLAIN = "combined", "as they are"
LABELS = (COMBINED, PLAIN)
COMBINE = {"views": "sum", "price": "sum", "at": "max"}
REPEATS = (1, 2, 10, 100)
"""Rows of each key in the task."""
KINDS = ("integers", "texts")
"""Types of keys."""
NUM_SUBPARTITIONS = 200
ROWS_AT_SCALE_1 = 2_000_000


def rows_of(kind: str, repeats: int, num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in random order, of as many keys as give each ``repeats`` of them."""
    random = np.random.default_rng(7)
    keys = random.permutation(np.arange(num_rows) // repeats) * 7_919
    for start in range(0, num_rows, BATCH_ROWS):
        page = keys[start : start + BATCH_ROWS]
        size = len(page)
        batch = pa.record_batch(
            {
                "page": pa.array(page)
                if kind == "integers"
                else pa.array([f"/page/{key}" for key in page.tolist()]),
                "views": random.integers(0, 100, size),
                "price": random.integers(0, 10_000, size) / 100,
                "at": pa.array(np.arange(start, start + size), pa.timestamp("us", "UTC")),
            }
        )
        yield as_over_ipc(batch.serialize(), batch.schema)


def measure_once(
    label: str, kind: str, repeats: int, num_rows: int, scratch: str
) -> dict[str, Any]:
    """Write rows, combined or not; ``num_rows`` and ``num_bytes`` of the answer are stored."""
    batches = list(rows_of(kind, repeats, num_rows))
    path = Path(scratch) / "combine"

    def write(batches: list[pa.RecordBatch]) -> Any:  # noqa: ANN401
        shutil.rmtree(path, ignore_errors=True)
        return write_shuffle(
            batches,
            path,
            keys="page",
            num_subpartitions=NUM_SUBPARTITIONS,
            combine=COMBINE if label == COMBINED else None,
            options=WriteOptions(sync=False),
        )

    write(batches[:2])  # loads the code
    with timed() as answer:
        receipt = write(batches)
    shutil.rmtree(path)
    return {**answer, "num_rows": receipt.num_rows, "num_bytes": receipt.num_bytes}


def combine_lines(case: str, timings: Mapping[str, Timing], repeats: int) -> list[Line]:
    """Lines on rows with so many of each key."""
    ours, plain = timings[COMBINED], timings[PLAIN]
    # Processor time in the place of wall time: others use the machine as well.
    by_cpu = [
        Timing(each.label, each.cpu_seconds or each.seconds, each.num_bytes)
        for each in (ours, plain)
    ]
    target = targets.combined_time(repeats)
    return [
        compare(case, "time", PLAIN, by_cpu[0], by_cpu[1], target, best=True),
        amount_line(
            case,
            f"bytes, {PLAIN} = 1",
            megabytes(ours),
            megabytes(plain),
            "MB",
            targets.combined_bytes(repeats),
        ),
    ]


def run(settings: Settings) -> Part:
    """Measure combined writes."""
    part = Part("combine", f"Combined on the way in, one core, scale {settings.scale:g}")
    part.notes += [
        "one core, a fresh process per round; processor time, ratios of the best rounds",
        f"a row has a key, a long, a double and a timestamp; keys come in random order; codec "
        f"zstd, n = {NUM_SUBPARTITIONS}",
    ]
    num_rows = round(ROWS_AT_SCALE_1 * settings.scale)
    for kind, repeats in product(KINDS, REPEATS):
        case = f"{kind}, {num_rows:,} rows, {repeats} per key"
        measures = {
            label: partial(
                run_in_child,
                measure_once,
                label=label,
                kind=kind,
                repeats=repeats,
                num_rows=num_rows,
                scratch=str(settings.scratch),
            )
            for label in LABELS
        }
        part.lines += combine_lines(case, settings.measure(part, case, measures), repeats)
    return part
