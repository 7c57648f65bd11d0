"""Operations of operations: threads, processes and Spark's tasks make the rows of a simple model.

Chains are random: selections, joins of all kinds, aggregations, and functions, over small shuffles
of several map outputs, with keys that are null, NaN and of either zero.
"""

import math
import multiprocessing
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.arrays import batches
from arrow_format.errors import ArithmeticOverflowError, OptionError, SchemaError
from arrow_format.options import ReadOptions
from arrow_format.read import estimates
from arrow_shuffle import BroadcastPartitioner, MergePolicy
from connector.operators.spark_run import frame_of
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST

N = 4
NAN = float("nan")
KEYS = [None, NAN, 0.0, -0.0, 1.0, 2.5, -7.0, 2.0**60]
OFTEN = ["join", "aggregate", "select", "groups", "subpartitions", "join", "aggregate"]
NUMBERS = [None, *range(-3, 9)] * 9 + [9]
SPARK = SessionInProcess()
MOST_ROWS = 3_000
LIFE = ["merge", "delete", "rename", "rollback"]
"""What happens to a shuffle after it was written, and before it is read."""

# A model ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Rows that are asked for, and what they must be."""

    rows: arrow_shuffle.Shuffle | arrow_shuffle.Operation
    columns: tuple
    model: tuple
    """Pairs of a subpartition, None for a broadcast row, and a dict with all columns."""
    may_fail: bool = False
    """Whether a function or a sum fails, if it comes to that."""
    own: frozenset = frozenset()
    """Subpartitions that a selection left; empty for all."""
    is_broadcast: bool = False


def same(value):
    """What Spark groups and joins a value as."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def counted(rows, columns):
    return Counter(tuple(same(row[name]) for name in columns) for row in rows)


def greater(value, other):
    """Spark's order: NaN is the largest; None for unknown."""
    return None if value is None else math.isnan(value) or value > other


CONDITIONS = {
    "k IS NULL": lambda row: row["k"] is None,
    "k > 0.5": lambda row: greater(row["k"], 0.5),
    "k = 0": lambda row: row["k"] is not None and row["k"] == 0,
    "k = 0 OR k IS NULL": lambda row: row["k"] is None or row["k"] == 0,
    "{n} > 3": lambda row, n: greater(row[n], 3),
    "NOT ({n} > 3)": lambda row, n: row[n] is not None and row[n] <= 3,
    "{n} IS NOT NULL AND k > -10": lambda row, n: row[n] is not None and greater(row["k"], -10),
}

# Functions, which go to other processes -----------------------------------------------------------


class Refused(ValueError):
    """What a function of these raises."""


def summed(column, failing, rows: pa.Table) -> pa.Table:
    values = rows[column].to_pylist()
    if failing in values:
        raise Refused(f"{failing} is not for me")
    known = [value for value in values if value is not None]
    return pa.table(
        {"k": rows["k"].slice(0, 1), "n": [len(rows)], "s": pa.array([sum(known)], pa.int64())}
    )


def known_rows(column, _, reader):
    for batch in reader:
        yield batch.filter(pc.is_valid(batch[column]))


def sizes(subpartition, *readers):
    numbers = [sum(batch.num_rows for batch in reader) for reader in readers]
    yield pa.record_batch({"subpartition": [subpartition], "n": [str(numbers)]})


# Chains -------------------------------------------------------------------------------------------


def source(draw, path, name, *, broadcast):
    """Write a shuffle of some map outputs, sorted or not, and let it live: see :data:`LIFE`."""
    how = {"partitioner": BroadcastPartitioner()} if broadcast else {"keys": "k"}
    if draw(st.booleans()):
        how["sort_by"] = name
    tables = []
    for number in range(draw(st.integers(1, 3))):
        many, chance = draw(st.sampled_from([3, 40, 150, 0])), Random(draw(st.integers(0, 999)))
        # Each key once in some, so that passes have something to divide.
        floats = KEYS if draw(st.booleans()) else [*KEYS, *map(float, range(200))]
        keys, numbers = (chance.choices(some, k=many) for some in (floats, NUMBERS))
        columns = {"k": pa.array(keys, pa.float64(), from_pandas=False)}
        columns |= {name: pa.array(numbers, pa.int64())}
        texts = [f"{name}{number}-{i % 7}" for i in range(many)]
        columns |= {f"{name}t": pa.array(texts, pa.string())}
        tables.append(pa.table(columns))
    shuffle = written(path, tables[0], n=N, **how)
    for table in tables[1:]:
        shuffle.append(table, options=FAST)
    rows = pa.concat_tables(tables).to_pylist()
    for what in draw(st.lists(st.sampled_from(LIFE), max_size=3, unique=True)):
        rows = lived(draw, shuffle, what, rows, name, broadcast=broadcast)
    shuffle = shuffle.newest()
    placed = [None if broadcast else shuffle.subpartition_of(k=row["k"]) for row in rows]
    model = tuple(zip(placed, rows, strict=True))
    return Asked(shuffle, tuple(shuffle.schema.names), model, is_broadcast=broadcast)


def lived(draw, shuffle, what, rows, name, *, broadcast):
    """Let something happen to a shuffle; return its rows after that."""
    if what == "merge":
        by = draw(st.sampled_from(["map_output", "subpartition"]))
        shuffle.merge(by, policy=MergePolicy(rewrite="auto"), options=FAST)
    elif what == "delete" and not broadcast:
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
        wanted = set(map(same, keys))
        given = {"k": pa.array(keys, pa.float64(), from_pandas=False)}
        shuffle.delete(given, erase=draw(st.booleans()), options=FAST)
        return [row for row in rows if same(row["k"]) not in wanted]
    elif what == "rename":
        shuffle.rename_columns({f"{name}t": f"{name}u"})
        return [{other_name(key, name): row[key] for key in row} for row in rows]
    elif what == "rollback":
        before = shuffle.newest().version
        schema = shuffle.newest().schema
        columns = {field.name: pa.nulls(5, field.type) for field in schema}
        shuffle.append(pa.table(columns, schema=schema), options=FAST)
        shuffle.rollback(before)
    return rows


def other_name(column, name):
    return f"{name}u" if column == f"{name}t" else column


def latest(model, name):
    """The last row of each key by a number that may be null, before every filter."""
    found = {}
    for p, row in model:
        known = found.setdefault(same(row["k"]), (p, row))[1]
        if known[name] is None or (row[name] is not None and row[name] >= known[name]):
            found[same(row["k"])] = (p, row)
    return tuple(found.values())


def selected(draw, given):
    how, model, own = {}, given.model, given.own
    numbers = [name for name in given.columns if name in ("a", "b", "c", "n", "s")]
    is_stored = isinstance(given.rows, arrow_shuffle.Shuffle) and not given.is_broadcast
    if is_stored and draw(st.integers(0, 2)) == 0:
        how["latest_by"] = numbers[0]
        model = latest(model, numbers[0])
    if draw(st.booleans()) and "k" in given.columns:
        text = draw(st.sampled_from(list(CONDITIONS)))
        if "{n}" not in text:
            model = tuple((p, row) for p, row in model if CONDITIONS[text](row))
            how["filter"] = text
        elif numbers and is_number(given, name := draw(st.sampled_from(numbers))):
            model = tuple((p, row) for p, row in model if CONDITIONS[text](row, name))
            how["filter"] = text.replace("{n}", name)
    elif draw(st.booleans()) and not given.is_broadcast and "k" in given.columns:
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
        wanted = set(map(same, keys))
        model = tuple((p, row) for p, row in model if same(row["k"]) in wanted)
        how["key_values"] = {"k": pa.array(keys, pa.float64(), from_pandas=False)}
    if draw(st.integers(0, 3)) == 0 and not given.is_broadcast:
        some = draw(st.sets(st.integers(0, N - 1), min_size=1))
        own = frozenset(some & own if own else some)
        model = tuple((p, row) for p, row in model if p in some)
        how["subpartitions"] = some.pop() if len(some) == 1 else sorted(some)
        if not own:
            return given
    columns = given.columns
    if draw(st.booleans()):
        columns = tuple(draw(st.lists(st.sampled_from(columns), min_size=1, unique=True)))
    rows = given.rows.select(*columns, **how)
    return replace(given, rows=rows, columns=columns, model=model, own=own)


def is_number(given, name):
    return pa.types.is_int64(given.rows.schema.field(name).type)


def joined(draw, left, right):
    kinds = ["inner", "left", "right", "full", "semi", "anti"]
    if right.is_broadcast:
        kinds = ["inner", "left", "semi", "anti"]
    if left.is_broadcast:
        kinds = ["inner", "right"]
    how = draw(st.sampled_from(kinds))
    rows = left.rows.join(right.rows, how=how, suffixes=("", "_2"))
    own = left.own & right.own if left.own and right.own else left.own | right.own

    def here(given):
        return [(p, row) for p, row in given.model if p is None or not own or p in own]

    by_key = defaultdict(list)
    for p, row in here(right):
        by_key[same(row["k"])].append((p, row))
    by_key.pop(None, None)
    own_columns = [name for name in left.columns if name != "k"]
    others = {name: name + "_2" * (name in own_columns) for name in right.columns if name != "k"}
    matched, model = set(), []
    nothing = dict.fromkeys(own_columns)
    for p, row in here(left):
        found = by_key.get(same(row["k"]), [])
        if found:
            matched.add(same(row["k"]))
        if how in ("semi", "anti"):
            model += [(p, row)] if bool(found) == (how == "semi") else []
            continue
        model += [
            (q if p is None else p, row | {new: other[old] for old, new in others.items()})
            for q, other in found
        ]
        if not found and how in ("left", "full"):
            model.append((p, row | dict.fromkeys(others.values())))
    if how in ("right", "full"):
        model += [
            (p, nothing | {"k": row["k"]} | {new: row[old] for old, new in others.items()})
            for p, row in here(right)
            if same(row["k"]) not in matched
        ]
    columns = ("k", *own_columns)
    if how not in ("semi", "anti"):
        columns += tuple(others.values())
    may_fail = left.may_fail or right.may_fail
    return Asked(rows, columns, tuple(model), may_fail, own)


def overflows(values):
    return not -(1 << 63) <= sum(value for value in values if value is not None) < 1 << 63


OF_VALUES = {
    "sum": lambda known: sum(known) if known else None,
    "min": lambda known: min(known, default=None),
    "max": lambda known: max(known, default=None),
    "count": len,
    "count_distinct": lambda known: len(set(known)),
}


def groups_of(model, by):
    groups = defaultdict(list)
    for p, row in model:
        groups[tuple(same(row[name]) for name in by)].append((p, row))
    return groups.values()


def aggregated(draw, given):
    by = ["k"]
    numbers = [name for name in given.columns if name != "k" and is_number(given, name)]
    texts = [name for name in given.columns if name not in ("k", *numbers)]
    if texts and draw(st.booleans()):
        by.append(draw(st.sampled_from(texts)))
    pairs = st.tuples(st.sampled_from(numbers), st.sampled_from(list(OF_VALUES)))
    asked = draw(st.lists(pairs, max_size=3, unique=True)) if numbers else []
    named = {f"{column}_{function}": (column, function) for column, function in asked}
    rows = given.rows.aggregate(by, {"n": ("*", "count")} | named)
    model = []
    for group in groups_of(given.model, by):
        p, first = group[0]
        row = {name: first[name] for name in by}
        row["n"] = len(group)
        for name, (column, function) in named.items():
            known = [row[column] for _, row in group if row[column] is not None]
            row[name] = OF_VALUES[function](known)
        model.append((p, row))
    return replace(given, rows=rows, columns=(*by, "n", *named), model=tuple(model))


def of_groups(draw, given):
    numbers = [name for name in given.columns if name != "k" and is_number(given, name)]
    if not numbers or "k" not in given.columns:
        return given
    column = draw(st.sampled_from(numbers))
    failing = draw(st.sampled_from([None, None, 9]))
    function = partial(summed, column, "none" if failing is None else failing)
    model, may_fail = [], given.may_fail
    for group in groups_of(given.model, ["k"]):
        values = [row[column] for _, row in group if row[column] is not None]
        may_fail |= failing in values or overflows(values)
        p, first = group[0]
        model.append((p, {"k": first["k"], "n": len(group), "s": sum(values)}))
    rows = given.rows.map_groups(function, "k double, n bigint, s bigint")
    return Asked(rows, ("k", "n", "s"), tuple(model), may_fail, given.own)


def of_subpartitions(draw, given, other):
    numbers = [name for name in given.columns if name != "k" and is_number(given, name)]
    if not numbers or draw(st.integers(0, 3)) == 0:
        rows = given.rows.map_subpartitions(
            sizes, "subpartition bigint, n string", others=other.rows
        )
        own = given.own & other.own if given.own and other.own else given.own | other.own
        counts = [Counter(p for p, _ in each.model) for each in (given, other)]
        everywhere = [count.pop(None, 0) for count in counts]
        model = []
        for p in sorted(own or range(N)):
            sized = [c[p] + e for c, e in zip(counts, everywhere, strict=True)]
            model.append((p, {"subpartition": p, "n": str(sized)}))
        may_fail = given.may_fail or other.may_fail
        return Asked(rows, ("subpartition", "n"), tuple(model), may_fail, own)
    column = draw(st.sampled_from(numbers))
    rows = given.rows.map_subpartitions(partial(known_rows, column), given.rows.schema)
    kept = tuple((p, row) for p, row in given.model if row[column] is not None)
    return replace(given, rows=rows, model=kept)


@st.composite
def chains(draw, directory):
    """Ask for something; each step is one of what can be asked of what there is."""
    names = iter("abc")

    def leaf():
        name = next(names)
        few = name != "a" and draw(st.integers(0, 3)) == 0
        made = source(draw, directory / name, name, broadcast=few)
        return selected(draw, made) if draw(st.integers(0, 2)) == 2 else made

    first, left = leaf(), 2
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(OFTEN))
        try:
            if step == "select":
                first = selected(draw, first)
            elif step == "join" and left:
                left -= 1
                first = joined(draw, *draw(st.permutations([first, leaf()])))
            elif step == "aggregate":
                first = aggregated(draw, first)
            elif step == "groups":
                first = of_groups(draw, first)
            elif step == "subpartitions" and left:
                left -= 1
                first = of_subpartitions(draw, first, leaf())
        except (OptionError, SchemaError) as error:
            # Rows that cannot be asked for so; the others of the chain stay.
            if not any(text in str(error) for text in REFUSALS):
                raise
        if len(first.model) > MOST_ROWS:
            reject()
    return first


REFUSALS = [
    "was left out by an earlier select",
    "are not known to be in one subpartition. Write it first",
    "restricted to different ones",
    "is restricted to some, and a",
    "is broadcast",
    "are both broadcast",
    "the left is broadcast",
    "lacks the partition key",
    "not co-partitioned",
]
"""Of chains whose rows are not where equal keys are, or not all there."""


# Runners ------------------------------------------------------------------------------------------


def shrink(working_bytes=3_000):
    """Let groups, blocks and batches be small, so that several passes are made."""
    ReadOptions.working_set_bytes = property(lambda _: working_bytes)
    ReadOptions.kept_bytes = property(lambda _: 2_000)
    batches.BATCH_ROWS = 7


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.property.test_chains"])
    with ProcessPoolExecutor(2, mp_context=context, initializer=shrink) as executor:
        yield executor


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name in ("working_set_bytes", "kept_bytes"):
        monkeypatch.setattr(ReadOptions, name, vars(ReadOptions)[name])
    monkeypatch.setattr(batches, "BATCH_ROWS", batches.BATCH_ROWS)
    # Where a task has one byte, a subpartition that is hot is read in pieces of a file each.
    monkeypatch.setattr(estimates, "MIN_PIECE_BYTES", 40)
    shrink()


def outcome(run):
    """Return the rows of a run, or what it raised."""
    try:
        return run()
    except (Refused, ArithmeticOverflowError) as error:
        return type(error), str(error)
    except OptionError as error:
        if "is too large: rows of it" in str(error):
            reject()
        raise


@guarantee("operations in one process")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(30, 400),
    report_multiple_bugs=False,
)
@given(data=st.data(), target=st.sampled_from([None, 1]))
def test_three_runners_make_the_rows_of_a_model(tmp_path_factory, processes, data, target):
    directory = tmp_path_factory.mktemp("chain")
    asked = data.draw(chains(directory))
    rows, how = asked.rows, {"target_partition_bytes": target}
    if isinstance(rows, arrow_shuffle.Shuffle):
        rows = rows.select()
    event(f"{repr(rows).count(' of ')} operations")
    found = [
        outcome(lambda: made(rows, **how)),
        outcome(lambda: made(rows, executor=processes, **how)),
        # Not to_spark: Spark's own scan reads what is a selection only.
        outcome(lambda: frame_of(SPARK, rows._description, **how).toArrow()),
    ]
    if isinstance(found[0], tuple):
        assert asked.may_fail
        assert {each[0] for each in found} == {found[0][0]}, found
        return
    for each in found:
        assert isinstance(each, pa.Table), each
        assert each.schema.equals(rows.schema), (each.schema, rows.schema)
    expected = [row for p, row in asked.model for _ in range(N if p is None else 1)]
    for table in found:
        assert counted(table.to_pylist(), asked.columns) == counted(expected, asked.columns)
    try:
        table = made(rows, directory / "out", **how)
    except OptionError as error:
        if not any(text in str(error) for text in ("keys=None: ", "would have them")):
            raise
    else:
        assert counted(table.to_pylist(), asked.columns) == counted(expected, asked.columns)
    here, spark = (
        [line for line in str(rows.explain(place)).splitlines() if not line.startswith("read in ")]
        for place in (None, SPARK)
    )
    assert here[1:] == spark[1:]
    assert here[0].split(", in")[0].removeprefix("in this process: ") == spark[0].split(", in")[
        0
    ].removeprefix("in Spark: ")
