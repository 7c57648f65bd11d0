"""Net changes against multisets: old rows and changes are new rows, whatever was in between."""

import contextlib
import tempfile
from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    CommitConflictError,
    HashPartitioner,
    WriteOptions,
    delete_rows,
    merge_shuffle,
    rename_columns,
    rollback_shuffle,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.model import BROADCAST
from arrow_shuffle import open_shuffle, write_shuffle
from tests.support.exhaustive import examples
from tests.support.foreign_writer import written_by
from tests.support.guarantees import guarantee
from tests.support.merges import merge_by
from tests.support.small_shuffles import begin

N = 3
OPTIONS = WriteOptions(
    sync=False, sort_buffer_bytes=4_096, chunk_bytes=64, schema_evolution=True, statistics="all"
)
NAMES = ("v", "w")
KEYS = st.none() | st.integers(0, 4)
ROWS = st.lists(st.tuples(KEYS, st.sampled_from([None, 0.0, float("nan"), 1.5])), max_size=9)
APPEND = st.tuples(
    st.sampled_from(["append", "append", "append", "overwrite"]),
    st.tuples(st.lists(ROWS, min_size=1, max_size=3), st.integers(0, 2)),
)
OTHERS = st.one_of(
    st.tuples(st.sampled_from(["mask", "mask", "erase"]), st.lists(KEYS, max_size=2)),
    st.tuples(st.just("merge"), st.sampled_from(["never", "always", "subpartition", "chosen"])),
    st.tuples(st.just("rollback"), st.integers(0, 9)),
    st.tuples(st.just("rename"), st.none()),
)
STEPS = st.one_of(APPEND, APPEND, OTHERS)
UPSERT = st.tuples(
    st.just("upsert"),
    st.dictionaries(
        st.integers(0, 5), st.tuples(st.sampled_from([None, 0.0, 1.5]), st.booleans()), max_size=5
    ),
)
"""Values by key, and whether the key is deleted."""


def every_third_for_all(ids, batch):
    ids[::3] = BROADCAST
    return ids


def write(path, mode, tasks, columns, name, broadcasts):
    """Append rows with one, two or three columns; ``columns`` is how many they have beyond two."""
    types = [pa.field("k", pa.int64()), pa.field(name, pa.float64()), pa.field("c", pa.int8())]
    if columns == 2:
        types[2] = pa.field("c", pa.int32())
    schema = pa.schema(types[: 3 if columns else 2])
    job = begin(path, schema, N, HashPartitioner("k"), OPTIONS)
    if broadcasts:
        job = written_by(job, every_third_for_all)
    open_target(job, mode)
    statuses = []
    for task, rows in enumerate(tasks):
        wide = [(*row, None if row[0] is None else row[0] % 2)[: len(schema)] for row in rows]
        batch = pa.RecordBatch.from_arrays(
            [pa.array([row[i] for row in wide], field.type) for i, field in enumerate(schema)],
            schema=schema,
        )
        parts = [batch.slice(at, 4) for at in range(0, len(rows), 4)]
        statuses.append(run_map_task(job, task, 0, parts))
    return commit_job(job, statuses, mode=mode)


def feed(rows, name):
    """A change feed that says of some keys what they are now, or that they are gone."""
    values = [value for value, _ in rows.values()]
    op = ["d" if is_gone else "u" for _, is_gone in rows.values()]
    types = (pa.int64(), pa.float64(), pa.string())
    return pa.table([*map(pa.array, (list(rows), values, op), types)], ["k", name, "op"])


def rows_of(table):
    """Rows, whatever their columns are called: a NaN equals a NaN, and what is missing is null."""
    rows = [tuple("nan" if v != v else v for v in row.values()) for row in table.to_pylist()]
    return [(*row, *[None] * (3 - len(row))) for row in rows]


def as_of(rows, ids, later):
    """Return rows with the columns of a later version: a column that it has not is none of them."""
    if len(ids) == 3 and ids != later:
        return Counter((*row[:2], None) for row in rows.elements())
    return rows


def check(path, since, now, before, after, erased):
    table = open_shuffle(path, now).changes(since).read_all()
    kinds = table["_change_type"].to_pylist()
    rows = rows_of(table.drop_columns("_change_type"))
    of = {
        kind: Counter(row for row, its in zip(rows, kinds, strict=True) if its == kind)
        for kind in ("insert", "delete", "erase")
    }
    assert sum(map(Counter.total, of.values())) == len(table)
    assert of["insert"] == after - before
    gone = before - after
    assert of["delete"] <= gone
    assert all(row[1:] == (None, None) for row in of["erase"])
    hidden = Counter({})
    for row, count in (gone - of["delete"]).items():
        hidden[row[0]] += count
    assert Counter({row[0]: count for row, count in of["erase"].items()}) == hidden
    keys = {key for number, keys in erased for key in keys if number >= since}
    assert not {row[0] for row in of["delete"]} & keys
    if not erased and not open_shuffle(path).snapshot.newest.state.deleted > since:
        assert not of["erase"]


@guarantee("net changes")
@settings(max_examples=examples(40, 600))
@given(APPEND, st.lists(STEPS, max_size=7), st.booleans())
def test_old_rows_and_changes_are_the_new_rows(first, steps, broadcasts):
    with tempfile.TemporaryDirectory() as path:
        history = History(path)
        for what, argument in [("append", first[1]), *steps]:
            if what in ("append", "overwrite"):
                write(path, what, *argument, history.name, broadcasts)
            else:
                history.do(what, argument)
            history.note()
        history.check()


@guarantee("net changes")
@settings(max_examples=examples(30, 400))
@given(UPSERT, st.lists(UPSERT | UPSERT | OTHERS, max_size=7))
def test_rows_that_were_replaced_are_deleted_and_inserted(first, steps):
    with tempfile.TemporaryDirectory() as path:
        history = History(path)
        for what, rows in [first, *steps]:
            if what == "upsert":
                changes = feed(rows, history.name)
                if history.versions:
                    open_shuffle(path).upsert(changes, row_kind="op", options=OPTIONS)
                else:
                    write_shuffle(
                        changes.drop_columns("op"), path, keys="k", unique="k", num_subpartitions=N,
                        options=OPTIONS,
                    )  # fmt: skip
            else:
                history.do(what, rows)
            history.note()
        history.check()


class History:
    """A shuffle, and the rows of each of its versions."""

    def __init__(self, path):
        self.path = path
        self.versions, self.ids = {}, {0: []}
        self.erased = []
        self.name = "v"

    def do(self, what, argument):
        path = self.path
        if what in ("mask", "erase"):
            keys = pa.table({"k": pa.array(argument, pa.int64())})
            delete_rows(path, keys, erase=what == "erase", options=OPTIONS)
            if what == "erase":
                self.erased.append((max(self.versions), argument))
        elif what == "merge" and argument == "chosen":
            merge_shuffle(path, by="map_output", options=OPTIONS)
        elif what == "merge":
            with contextlib.suppress(CommitConflictError):
                merge_by(path, argument, OPTIONS)
        elif what == "rollback":
            to = [*self.versions][argument % len(self.versions)]
            rollback_shuffle(path, to, undo_deletions=True)
        else:
            rename_columns(path, {self.name: NAMES[1 - NAMES.index(self.name)]})

    def note(self):
        shuffle = open_shuffle(self.path)
        self.versions[shuffle.version] = Counter(rows_of(shuffle.to_table()))
        self.ids[shuffle.version] = [*shuffle.snapshot.newest.columns.by_name.values()]
        self.name = shuffle.schema.names[1]

    def check(self):
        """Compare each version with each before."""
        for now, after in self.versions.items():
            for since, before in {0: Counter(), **self.versions}.items():
                if since <= now:
                    seen = as_of(before, self.ids[since], self.ids[now])
                    check(self.path, since, now, seen, after, self.erased)
