"""A key that has half of the rows: its subpartition is read in pieces, and no row comes twice."""

import multiprocessing
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import OptionError, SchemaError
from arrow_format.operators.aggregate_functions import ALL_FUNCTIONS
from arrow_format.operators.description import ANY_PLACE
from arrow_format.operators.local_run import Capacity
from arrow_format.operators.task_plan import GroupResults, TaskPlan
from arrow_format.read.chunk_plan import Piece
from arrow_format.read.estimates import Shard
from arrow_shuffle import BroadcastPartitioner, MergePolicy, WriteOptions, open_shuffle
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST

N, ROWS = 8, 24_000
SMALL = WriteOptions(sync=False, chunk_bytes=4096, sort_buffer_bytes=2 << 20)
TARGET = 8 << 10
KINDS = ["inner", "left", "right", "full", "semi", "anti"]


def rows(name, hot, rng, num_rows=ROWS):
    """Half of the rows have the key, if it is hot; the others are numbered up to 4,000."""
    keys = rng.integers(1, 4_000, num_rows)
    if hot is not None:
        keys[rng.random(num_rows) < 0.5] = hot
    values = rng.permutation(num_rows)
    nulls = rng.random(num_rows) < 0.01
    return pa.table({"k": pa.array(keys, mask=nulls), name: values})


def merged(path, table, **how):
    """Write in three appends, and merge them to one region of each subpartition."""
    part = -(-len(table) // 3)
    shuffle = written(path, table.slice(0, part), "k", n=N, options=SMALL, **how)
    for start in (part, 2 * part):
        shuffle.append(table.slice(start, part), options=SMALL)
    always = MergePolicy(rewrite="always")
    shuffle.newest().merge("subpartition", policy=always, options=SMALL)
    return shuffle.newest()


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Chunks of a few KiB where a subpartition has more, else one of a MiB."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("arrow_format.write.clustering.SPLIT_CHUNK_BYTES", 4096)
        yield


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Two shuffles, the first with a hot key, which the other has too, once or not at all."""
    path, rng = tmp_path_factory.mktemp("hot"), np.random.default_rng(43)
    few = rows("w", None, rng, 3_000)
    return {
        "hot": merged(path / "hot", rows("v", 0, rng)),
        "other": merged(path / "other", pa.concat_tables([few, pa.table({"k": [0], "w": [-1]})])),
        "without": merged(path / "without", few),
    }


def planned(asked, target=TARGET) -> GroupResults:
    plan = asked._description.bind(ANY_PLACE)
    assert isinstance(plan, TaskPlan)
    return plan.in_groups(target_partition_bytes=target)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Tasks of a few KiB."""
    monkeypatch.setattr("arrow_format.read.estimates.MIN_PARTITION_BYTES", 1)


def pieces_of(asked):
    """Numbers of pieces of each task that has one, in their order."""
    return [shard.piece for shard in planned(asked).groups if shard.piece is not None]


def expected(how, left, right):
    """The join of two tables by DuckDB."""
    kind = {"full": "FULL OUTER"}.get(how, how.upper())
    names = "l.*" if how in ("semi", "anti") else "coalesce(l.k, r.k) AS k, v, w"
    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        query = f"SELECT {names} FROM l {kind} JOIN r ON l.k = r.k"
        return connection.sql(query).arrow().read_all()


def counted(table):
    columns = [table[name].to_pylist() for name in sorted(table.schema.names)]
    return Counter(zip(*columns, strict=True))


@guarantee("pieces")
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("other", ["other", "without"])
@pytest.mark.parametrize("is_left", [True, False], ids=["hot left", "hot right"])
def test_a_join_has_each_row_once(sides, how, other, is_left, tmp_path):
    pair = sides["hot"], sides[other]
    left, right = pair if is_left else pair[::-1]
    joined = left.join(right, on="k", how=how)
    model = expected(how, left.to_table(), right.to_table())
    found = joined.read(target_partition_bytes=TARGET).read_all()
    assert counted(found) == counted(model)
    cuts = {"inner": True, "full": False, "right": not is_left}.get(how, is_left)
    assert (len(pieces_of(joined)) > 2) == cuts
    assert planned(joined).hot
    if how in ("left", "anti"):
        joined.write(tmp_path / "out", target_partition_bytes=TARGET, options=FAST)
        kept = open_shuffle(tmp_path / "out")
        assert counted(kept.to_table()) == counted(model)
        assert kept.verify().problems == ()
        tasks = [output.map_task for output in kept.map_outputs]
        assert tasks == sorted(tasks)


def test_pieces_stand_in_the_place_of_their_subpartition(sides):
    hot = sides["hot"].subpartition_of(k=0)
    groups = planned(sides["hot"].join(sides["other"], on="k")).groups
    ranges = [bounds for shard in groups for bounds in shard.ranges]
    flat = [number for bounds in ranges for number in range(*bounds)]
    assert flat == sorted(flat)
    assert sorted({*flat}) == [*range(N)]
    results = planned(sides["hot"].join(sides["other"], on="k", how="left"))
    sizes = [
        sum(batch.num_rows for batch in results.batches(number))
        for number, shard in enumerate(results.groups)
        if shard.piece is not None
    ]
    assert max(sizes) < 1.3 * sum(sizes) / len(sizes)
    own = [shard for shard in groups if shard.piece is not None]
    assert own == [Shard(((hot, hot + 1),), Piece(i, len(own))) for i in range(len(own))]


@guarantee("pieces")
def test_rows_come_in_the_order_of_the_shuffle(sides, tmp_path):
    shuffle = sides["hot"]
    selected = shuffle.select("k", "v")
    assert len(pieces_of(selected)) > 2
    in_order = shuffle.to_table()
    with ThreadPoolExecutor(3) as pool:
        read = selected.read(executor=pool, target_partition_bytes=TARGET).read_all()
    assert read.equals(in_order)
    selected.write(tmp_path / "out", target_partition_bytes=TARGET, options=FAST)
    assert open_shuffle(tmp_path / "out").to_table().equals(in_order)
    spark = made(selected.join(sides["without"], on="k", how="anti"), spark=SessionInProcess())
    absent = {*sides["without"].to_table()["k"].to_pylist()} - {None}
    kept = [row for row in in_order.to_pylist() if row["k"] not in absent]
    assert Counter(r["v"] for r in spark.to_pylist()) == Counter(r["v"] for r in kept)


def test_sorted_rows_of_several_regions_are_put_in_order_together(tmp_path):
    table = rows("v", 0, np.random.default_rng(1))
    shuffle = written(tmp_path / "s", table, "k", n=N, options=SMALL, sort_by="v")
    shuffle.append(table, options=SMALL)
    few = written(tmp_path / "few", pa.table({"k": [0, 1]}), "k", n=N)
    shuffle = shuffle.newest()
    selected = shuffle.select("k", "v")
    assert not pieces_of(selected)
    assert "read in one: its rows are put in order together" in "\n".join(notes(selected))
    assert len(pieces_of(selected.join(few, on="k", how="semi"))) > 2
    always = MergePolicy(rewrite="always")
    shuffle.merge("subpartition", policy=always, options=SMALL)
    merged = shuffle.newest().select("k", "v")
    assert len(pieces_of(merged)) > 2
    with ThreadPoolExecutor(2) as pool:
        read = merged.read(executor=pool, target_partition_bytes=TARGET).read_all()
    assert read.equals(shuffle.newest().to_table())


def notes(asked):
    from arrow_format.operators.explanation import explain_plan

    plan = asked._description.bind(replace(ANY_PLACE))
    return explain_plan("here", plan, plan.in_groups(target_partition_bytes=TARGET)).notes


def test_what_cannot_be_cut_says_so(sides):
    shuffle, other = sides["hot"], sides["other"]
    hot = shuffle.subpartition_of(k=0)

    def group(rows: pa.Table) -> pa.Table:
        return rows

    def both(left: pa.Table, right: pa.Table) -> pa.Table:
        return left

    def each(number, reader):
        return reader

    schema = "k bigint, v bigint"
    said = f"subpartition {hot} is much heavier than others, and read in "
    (note,) = notes(shuffle.join(other, on="k"))
    assert note.startswith(said)
    assert note.endswith(" pieces, by a task each")
    assert notes(shuffle.map_groups(group, schema)) == (
        f"{said}one: its function takes the rows of a key together",
    )
    assert notes(shuffle.cogroup(other).map_groups(both, schema)) == (
        f"{said}one: its function takes the rows of a key together",
    )
    assert notes(shuffle.map_subpartitions(each, schema)) == (
        f"{said}one: its function takes the rows of a subpartition together",
    )
    assert notes(shuffle.join(other, on="k", how="full")) == (
        f"{said}one: a full join keeps rows of both sides that match nothing, each once",
    )
    assert notes(other.join(shuffle, on="k", how="left")) == (
        f"{said}one: of a left join the left is cut, and has little there",
    )


def test_a_key_that_is_hot_on_both_sides_is_not_read_again_and_again(sides, tmp_path):
    """The larger is cut, into as many pieces as each have what the other side has."""
    rng = np.random.default_rng(2)
    third = merged(tmp_path / "s", rows("w", 0, rng, ROWS // 3))
    pieces = pieces_of(sides["hot"].join(third, on="k", how="semi"))
    assert 2 <= len(pieces) <= 4
    assert not pieces_of(third.join(sides["hot"], on="k", how="semi"))
    table = sides["hot"].join(third, on="k", how="semi").read(target_partition_bytes=TARGET)
    absent = {*third.to_table()["k"].to_pylist()} - {None}
    model = [row["v"] for row in sides["hot"].to_table().to_pylist() if row["k"] in absent]
    assert Counter(table.read_all()["v"].to_pylist()) == Counter(model)


def test_chains_and_broadcast_sides_are_cut_too(sides, tmp_path, monkeypatch):
    everyone = written(
        tmp_path / "e", pa.table({"k": [0, 1, 2], "x": [7, 8, 9]}),
        partitioner=BroadcastPartitioner(), n=3,
    )  # fmt: skip
    chain = (
        sides["hot"]
        .join(sides["other"], on="k")
        .select(filter="v >= 10")
        .join(everyone, on="k", how="left")
        .join(sides["without"].select("k"), on="k", how="anti")
    )
    assert len(pieces_of(chain)) > 2
    found = chain.read(target_partition_bytes=TARGET).read_all()
    monkeypatch.setattr("arrow_format.read.estimates.MIN_PARTITION_BYTES", 1 << 30)
    assert not planned(chain, 1 << 40).hot
    assert counted(found) == counted(chain.to_table())
    assert found["x"].to_pylist() == [7] * found.num_rows
    assert found.num_rows > ROWS // 3


def count(joined):
    for batch in joined:
        yield pa.record_batch({"n": [batch.num_rows]})


def test_pieces_go_to_processes_and_functions_of_joined_rows(sides):
    counts = sides["hot"].join(sides["other"], on="k", then=count, schema="n bigint")
    model = sides["hot"].join(sides["other"], on="k").to_table().num_rows
    assert len(pieces_of(counts)) > 2
    spawned = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=spawned) as pool:
        found = counts.read(executor=pool, target_partition_bytes=TARGET).read_all()
    assert sum(found["n"].to_pylist()) == model


def test_equal_subpartitions_are_not_cut(sides):
    """However large they are, and where there is one alone."""
    without = sides["without"]
    assert not planned(without.join(without.select("k"), on="k"), target=1).hot
    alone = sides["hot"].select(subpartitions=sides["hot"].subpartition_of(k=0))
    assert len(pieces_of(alone.join(without, on="k"))) > 2


ALL_KINDS = {
    "rows": ("*", "count"), "n": ("v", "count"), "total": ("v", "sum"), "mean": ("v", "avg"),
    "least": ("v", "min"), "most": ("v", "max"), "first": ("v", "first"), "last": ("v", "last"),
    "known": ("w", "first", pc.ScalarAggregateOptions(skip_nulls=True)),
    "list": ("v", "collect_list"), "text": ("t", "collect_list"),
    "other": ("w", "array_agg"), "any": ("is_even", "any"),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows of a hot key and of others, with a column that is null in its first half."""
    rng = np.random.default_rng(7)
    table = rows("v", 0, rng)
    numbers = table["v"].to_numpy()
    nulls = (np.arange(ROWS) < ROWS // 2) | (rng.random(ROWS) < 0.3)
    table = table.append_column("w", pa.array(numbers, mask=nulls))
    table = table.append_column("t", pa.array(numbers).cast(pa.string()))
    table = table.append_column("is_even", pa.array(numbers % 2 == 0))
    return merged(tmp_path_factory.mktemp("measured") / "s", table)


def by_key(table):
    return {row.pop("k"): row for row in table.to_pylist()}


def modelled(shuffle):
    """What is to be found of each key, in the order of the shuffle."""
    groups = {}
    for row in shuffle.to_table().to_pylist():
        groups.setdefault(row["k"], []).append(row)
    found = {}
    for key, group in groups.items():
        values = [row["v"] for row in group]
        known = [row["w"] for row in group if row["w"] is not None]
        found[key] = {
            "rows": len(group), "n": len(group), "total": sum(values),
            "mean": sum(values) / len(values), "least": min(values), "most": max(values),
            "first": values[0], "last": values[-1], "known": known[0] if known else None,
            "list": values, "text": [str(value) for value in values], "other": known,
            "any": any(value % 2 == 0 for value in values),
        }  # fmt: skip
    return found


def joined_here(asked, target=TARGET):
    plan = asked._description.bind(replace(ANY_PLACE, merges_pieces=True))
    return plan.in_groups(target_partition_bytes=target)


@guarantee("pieces")
@pytest.mark.parametrize("in_processes", [False, True], ids=["threads", "processes"])
def test_groups_of_pieces_are_made_one_in_the_order_of_the_shuffle(measured, in_processes):
    asked = measured.aggregate("k", ALL_KINDS)
    assert len([shard for shard in joined_here(asked).groups if shard.piece]) > 4
    spawned = {"mp_context": multiprocessing.get_context("forkserver")} if in_processes else {}
    pool = ProcessPoolExecutor if in_processes else ThreadPoolExecutor
    with pool(3, **spawned) as executor:
        table = asked.read(executor=executor, target_partition_bytes=TARGET).read_all()
    assert table.schema == asked.schema
    assert len(by_key(table)) == table.num_rows
    assert by_key(table) == modelled(measured)
    distinct = measured.aggregate("k").read(target_partition_bytes=TARGET).read_all()
    assert Counter(distinct["k"].to_pylist()) == Counter(by_key(table).keys())


def test_many_groups_of_pieces_are_made_again_by_one_task(measured, monkeypatch):
    """What pieces keep of them would take more than there is."""
    whole = []
    of_whole = GroupResults.of_whole
    monkeypatch.setattr(
        GroupResults,
        "of_whole",
        lambda self, number: whole.append(number) or of_whole(self, number),
    )
    asked = measured.aggregate(["k", "v"], {"n": ("*", "count")})
    rows_read = asked.read(target_partition_bytes=TARGET).read_all()
    assert not whole
    assert len([shard for shard in joined_here(asked).groups if shard.piece]) > 4
    monkeypatch.setattr(Capacity, "waiting_bytes", 400_000)
    again = asked.read(target_partition_bytes=TARGET).read_all()
    assert len(whole) == 1
    assert counted(again) == counted(rows_read)
    assert again.num_rows == ROWS
    assert set(again["n"].to_pylist()) == {1}
    # Few groups are merged as they come.
    few = measured.aggregate("k", {"n": ("*", "count")})
    monkeypatch.setattr(Capacity, "waiting_bytes", 800_000)
    counts = few.read(target_partition_bytes=TARGET).read_all()
    assert len(whole) == 1
    assert sum(counts["n"].to_pylist()) == ROWS


def test_aggregations_that_are_not_cut_say_so(measured, tmp_path):
    spread = measured.aggregate("k", {"s": ("v", "stddev"), "n": ("*", "count")})
    assert not [shard for shard in joined_here(spread).groups if shard.piece]
    plan = spread._description.bind(replace(ANY_PLACE, merges_pieces=True))
    assert plan.why_whole == "stddev(v) needs the rows of a group together"
    counts = measured.aggregate("k", {"n": ("*", "count")})
    (note,) = notes(counts)
    assert note.endswith(
        "in one: a group is made by one task where results are written, and in Spark"
    )
    assert not pieces_of(counts)
    model = {key: row["n"] for key, row in modelled(measured).items()}
    counts.write(tmp_path / "out", target_partition_bytes=TARGET, options=FAST)
    in_spark = made(counts, spark=SessionInProcess())
    again = counts.aggregate("k", {"n": ("n", "sum")})
    read = again.read(target_partition_bytes=TARGET).read_all()
    for table in (open_shuffle(tmp_path / "out").to_table(), in_spark, read):
        found = zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True)
        assert dict(found) == model


def test_the_order_of_sorted_runs_is_that_of_one_task(tmp_path):
    table = rows("v", 0, np.random.default_rng(9))
    shuffle = written(tmp_path, table, "k", n=N, options=SMALL, sort_by="v")
    shuffle.append(table, options=SMALL)
    shuffle = shuffle.newest()
    in_order = shuffle.aggregate("k", {"l": ("v", "collect_list")})
    assert not [shard for shard in joined_here(in_order).groups if shard.piece]
    sums = shuffle.aggregate("k", {"s": ("v", "sum")})
    assert len([shard for shard in joined_here(sums).groups if shard.piece]) > 4
    found = by_key(in_order.read(target_partition_bytes=TARGET).read_all())
    totals = by_key(sums.read(target_partition_bytes=TARGET).read_all())
    for key, row in found.items():
        assert row["l"] == sorted(row["l"])
        assert totals[key]["s"] == sum(row["l"])


TYPES = {
    "i8": pa.int8(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(),
    "d": pa.decimal128(12, 2), "wide": pa.decimal128(30, 4), "b": pa.bool_(), "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"), "s": pa.string(), "x": pa.binary(), "none": pa.null(),
    "list": pa.list_(pa.int32()),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_all_functions_of_all_types_give_what_one_task_does(tmp_path, name):
    """Of numbers that floats add exactly, with nulls."""
    rng = np.random.default_rng(3)
    signs = rng.choice([1, -1], ROWS)
    given = pa.array(np.where(signs < 0, 1, 0) if name in ("b", "day", "at") else signs, pa.int32())
    if name == "none":
        column = pa.nulls(ROWS)
    elif name == "list":
        column = pa.array([[sign] for sign in signs.tolist()], TYPES[name])
    elif name in ("day", "d"):
        column = given.cast(TYPES[name])
    elif name in ("s", "x"):
        column = given.cast(pa.string()).cast(TYPES[name])
    else:
        column = given.cast(pa.int64()).cast(TYPES[name])
    valid = pa.array(rng.random(ROWS) < 0.8)
    column = pc.if_else(valid, column, pa.nulls(ROWS, column.type))
    keys = rows("v", 0, rng)["k"]
    padding = rng.integers(0, 1 << 60, ROWS)  # so that there is something to cut
    shuffle = merged(tmp_path, pa.table({"k": keys, "c": column, "p": padding}))
    asked = {"rows": ("*", "count")}
    for function in ALL_FUNCTIONS:
        try:
            one = shuffle.aggregate("k", {function: ("c", function)})
        except (OptionError, SchemaError):
            continue
        if not one._plan.details.whole_groups:
            asked[function] = "c", function
    assert {"count", "first", "last", "collect_list"} <= {*asked}
    cut, whole = (shuffle.aggregate("k", asked) for _ in range(2))
    assert len([shard for shard in joined_here(cut).groups if shard.piece]) > 4
    found = cut.read(target_partition_bytes=TARGET).read_all()
    results = planned(whole)
    batches = [batch for number in range(len(results.groups)) for batch in results.batches(number)]
    expected = pa.Table.from_batches(batches)
    assert found.schema == expected.schema
    assert by_key(found) == by_key(expected)


def test_a_reader_that_stops_within_pieces_stops_the_tasks(measured):
    before = threading.active_count()
    reader = measured.aggregate("k", ALL_KINDS).read(target_partition_bytes=TARGET)
    next(iter(reader))
    reader.close()
    assert threading.active_count() <= before


@pytest.mark.parametrize("sort_by", [(), ("k", "v")])
def test_labels_of_a_hot_key_are_joined_as_of_their_time_in_pieces(sides, tmp_path, sort_by):
    labels = sides["hot"]
    if sort_by:
        labels = merged(tmp_path / "sorted", labels.to_table(), sort_by=sort_by)
    times = {"w": np.arange(0, ROWS, 7), "k": np.zeros(-(-ROWS // 7), np.int64)}
    features = written(tmp_path / "features", pa.table(times), "k", n=N)
    joined = labels.join(features, how="asof", time=("v", "w"))
    assert len(pieces_of(joined)) > 2
    found = joined.read(target_partition_bytes=TARGET).read_all()
    assert found.select(["k", "v"]) == labels.read(columns=["k", "v"]).read_all()
    values = zip(*(found[name].to_pylist() for name in ("k", "v", "w")), strict=True)
    assert all(w == (v // 7 * 7 if k == 0 else None) for k, v, w in values)


def test_what_goes_on_from_labels_in_order_has_their_order(tmp_path):
    """Sorted in several regions they are merged as they are read, and not cut."""
    for start in range(3):
        values = np.arange(start, ROWS, 3)
        table = pa.table({"k": np.where(values % 4, 0, values), "v": values})
        written(
            tmp_path / "labels", table, "k", n=N, mode="append", sort_by="v", options=SMALL
        )  # fmt: skip
    labels = open_shuffle(tmp_path / "labels")
    times = {"w": np.arange(0, ROWS, 7), "k": np.zeros(-(-ROWS // 7), np.int64)}
    features = written(tmp_path / "features", pa.table(times), "k", n=N)
    joined = labels.join(features, how="asof", time=("v", "w"))
    expected = labels.to_table()["v"]
    assert joined.read(target_partition_bytes=TARGET).read_all()["v"] == expected
    selected = joined.select("k", "v", "w").read(target_partition_bytes=TARGET)
    assert selected.read_all()["v"] == expected


def test_an_error_of_merging_pieces_ends_the_threads(sides, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    before = threading.active_count()
    monkeypatch.setattr("arrow_format.operators.aggregate.GroupsOfPieces.finished", fails)
    summed = sides["hot"].aggregate("k", {"n": ("*", "count")})
    reader = summed.read(target_partition_bytes=TARGET)
    with pytest.raises(ZeroDivisionError):
        reader.read_all()
    assert threading.active_count() == before
