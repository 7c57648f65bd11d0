"""Reading a part of a table that grows by the day: one day of thirty, and the rows of one key.

Against the same rows as Parquet, a file for each subpartition of each day, as Spark's
``repartition(n, key).write.parquet`` leaves them, read by ``pyarrow.dataset``. Each round is a
fresh process with one thread, and opens the table.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from arrow_format import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.read import bytes_read
from integration.bench.results import Part, amount_line, compare, megabytes

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

DAYS = 30
FIRST_DAY = date(2026, 10, 1)
WANTED_DAY = FIRST_DAY + timedelta(days=17)


def write_days(rows: str, out: str, parquet: str, num_subpartitions: int) -> dict[str, Any]:
    """Append day after day to a shuffle, and write the subpartitions of each day as Parquet."""
    batches = read_batches(Path(rows))
    for number in range(DAYS):
        day = FIRST_DAY + timedelta(days=number)
        of_day = pa.Table.from_batches(batches[number::DAYS])
        of_day = of_day.append_column("day", pa.repeat(pa.scalar(day), of_day.num_rows))
        write_shuffle(
            of_day.to_batches(),
            out,
            num_subpartitions=num_subpartitions,
            keys=KEY,
            mode="append",
            options=WriteOptions(sync=False),
        )
        daily = open_shuffle(out).where(pc.field("day") == pa.scalar(day))
        for subpartition in range(num_subpartitions):
            table = daily.subpartition(subpartition).read_all()
            pq.write_table(table, f"{parquet}-{number:02}-{subpartition:05}.parquet")
    return {}


def read_shuffle(path: str, filter: str | None) -> dict[str, Any]:
    """Open the shuffle and read the rows of a filter; ``num_bytes`` are those read from files."""
    open_shuffle(path).where(filter).subpartition(0).read_all()  # loads the code
    before = bytes_read()
    with timed() as answer:
        num_rows = sum(batch.num_rows for batch in open_shuffle(path).read(filter=filter))
    return {**answer, "num_rows": num_rows, "num_bytes": bytes_read() - before}


def look_up(path: str, key: int) -> dict[str, Any]:
    """Open the shuffle and read the rows of one key."""
    open_shuffle(path).lookup({KEY: key + 1}).read_all()  # loads the code
    with timed() as answer:
        num_rows = open_shuffle(path).lookup({KEY: key}).read_all().num_rows
    return {**answer, "num_rows": num_rows}


def read_parquet(directory: str, day: str | None = None, key: int = 0) -> dict[str, Any]:
    """Open the Parquet files as one dataset and read the rows of a day, or else of a key."""
    wanted = pc.field(KEY) == key
    if day is not None:
        wanted = pc.field("day") == date.fromisoformat(day)
    with timed() as answer:
        dataset = ds.dataset(directory, format="parquet")
        table = dataset.to_table(filter=wanted, use_threads=False)
    return {**answer, "num_rows": table.num_rows}


def run(settings: Settings) -> Part:
    """Measure reading a part."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("select", f"Engine, a part of {DAYS} daily appends, scale {settings.scale:g}")
    part.notes += ["one core, a fresh process per round; ratios of the best rounds"]
    key = read_batches(Path(rows), limit=1)[0][KEY][0].as_py()
    for n in settings.numbers:
        case = f"{DAYS} days, n = {n:,}"
        settings.report(f"{case}: writing")
        path, parquet = str(settings.scratch / f"days-{n}"), settings.scratch / f"parquet-{n}"
        parquet.mkdir()
        run_in_child(
            write_days, rows=rows, out=path, parquet=str(parquet / "day"), num_subpartitions=n
        )
        of_day = f"day = DATE '{WANTED_DAY}'"
        peer = partial(run_in_child, read_parquet, directory=str(parquet))
        measures = {
            "all days": partial(run_in_child, read_shuffle, path=path, filter=None),
            "one day": partial(run_in_child, read_shuffle, path=path, filter=of_day),
            "one day, Parquet": partial(peer, day=WANTED_DAY.isoformat()),
            "one key": partial(run_in_child, look_up, path=path, key=key),
            "one key, Parquet": partial(peer, key=key),
        }
        timings = settings.measure(part, case, measures)
        for what in ("one day", "one key"):
            if timings[what].num_rows != timings[f"{what}, Parquet"].num_rows:
                msg = f"{case}: readers disagree on the rows of {what}"
                raise RuntimeError(msg)
        whole, day, found = timings["all days"], timings["one day"], timings["one key"]
        part.lines += [
            compare(case, "time", "all days", day, whole, targets.DAY_TIME, best=True),
            amount_line(
                case, "bytes read, of all days = 1", megabytes(day), megabytes(whole), "MB",
                targets.DAY_BYTES,
            ),
            compare(
                case, "speed", "Parquet", day, timings["one day, Parquet"],
                targets.DAY_AGAINST_PARQUET, best=True,
            ),
            compare(
                case, "speed", "Parquet", found, timings["one key, Parquet"],
                targets.KEY_AGAINST_PARQUET, best=True,
            ),
        ]  # fmt: skip
    return part
