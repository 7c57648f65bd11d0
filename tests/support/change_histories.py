"""Random histories of a change feed: what is done to a shuffle, and two models of its rows.

A history is upserts of changes in any order, with deletions, repeats and late ones, by one task or
several, some of which die and are repeated, or meet another in their commit; and in between merges,
erasures, masking deletions, rollbacks, other numbers of subpartitions and collections. One model is
a dictionary, the other DuckDB's ``MERGE``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pyarrow as pa

import arrow_shuffle
from arrow_format import WriteOptions
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.model import Transaction
from arrow_format.write.merge_policy import MergePolicy
from tests.support.interrupted_storage import CHANGES, before_first_entry, dies_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from arrow_format.options import MergeBy
    from arrow_shuffle import Shuffle

SMALL = WriteOptions(sync=False, sort_buffer_bytes=4096, chunk_bytes=64)
ALWAYS = MergePolicy(rewrite="always")
KEYS, NUMBERS, SEQUENCES = 5, 2, 14
BY: tuple[MergeBy, ...] = ("map_output", "subpartition")

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int32()), ("lsn", pa.int64()), ("v", pa.string())])

Key = tuple[int, int]
Row = tuple[int, int, int, str]
"""Its key, its sequence and its value, which follow from each other but for who wrote it."""


class Change(NamedTuple):
    """One change of a feed."""

    key: Key
    lsn: int
    op: str

    @property
    def row(self) -> Row:
        """The row that it leaves; the value says by which change."""
        return (*self.key, self.lsn, f"{self.key}@{self.lsn}")

    @property
    def is_deletion(self) -> bool:
        """Whether it leaves none."""
        return self.op == "d"


@dataclass
class Model:
    """Rows by their keys, and when keys were deleted last."""

    rows: dict[Key, Row] = field(default_factory=dict)
    gone: dict[Key, int] = field(default_factory=dict)

    def copy(self) -> Model:
        """Return an equal one."""
        return Model(dict(self.rows), dict(self.gone))

    def upsert(self, changes: Sequence[Change]) -> None:
        """Apply changes in any order: the newest counts, and a row before a deletion."""
        for key, lsn, op in changes:
            if op == "d":
                self.gone[key] = max(lsn, self.gone.get(key, lsn))
            elif op != "-U" and (key not in self.rows or lsn >= self.rows[key][2]):
                self.rows[key] = Change(key, lsn, op).row
        self.rows = {
            key: row for key, row in self.rows.items() if row[2] >= self.gone.get(key, row[2])
        }

    def delete(self, keys: Sequence[int], *, erase: bool) -> None:
        """Take the rows of keys; an erasure takes what says that there were some too."""
        self.rows = {key: row for key, row in self.rows.items() if key[0] not in keys}
        if erase:
            self.gone = {key: lsn for key, lsn in self.gone.items() if key[0] not in keys}


class Merged:
    """The same in tables of DuckDB, which its ``MERGE`` changes."""

    def __init__(self) -> None:
        self._db = duckdb.connect()
        self._db.sql("CREATE TABLE t (k BIGINT, n INTEGER, lsn BIGINT, v VARCHAR)")
        self._db.sql("CREATE TABLE gone (k BIGINT, n INTEGER, lsn BIGINT)")
        self._kept: dict[int, tuple[pa.Table, pa.Table]] = {}

    def upsert(self, changes: Sequence[Change]) -> None:
        """Merge the newest row and the newest deletion of each key."""
        feed = table_of(changes)
        self._db.register("feed", feed)
        for statement in (
            """MERGE INTO gone USING (
                 SELECT k, n, max(lsn) AS lsn FROM feed WHERE op = 'd' GROUP BY ALL) AS s
               ON gone.k = s.k AND gone.n = s.n
               WHEN MATCHED AND s.lsn > gone.lsn THEN UPDATE SET lsn = s.lsn
               WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.n, s.lsn)""",
            """MERGE INTO t USING (
                 SELECT k, n, max(lsn) AS lsn, arg_max(v, lsn) AS v
                 FROM feed WHERE op NOT IN ('d', '-U') GROUP BY k, n) AS s
               ON t.k = s.k AND t.n = s.n
               WHEN MATCHED AND s.lsn >= t.lsn THEN UPDATE SET lsn = s.lsn, v = s.v
               WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.n, s.lsn, s.v)""",
            """MERGE INTO t USING gone ON t.k = gone.k AND t.n = gone.n AND t.lsn < gone.lsn
               WHEN MATCHED THEN DELETE""",
        ):
            self._db.sql(statement)

    def delete(self, keys: Sequence[int], *, erase: bool) -> None:
        """As :meth:`Model.delete`."""
        for name in ("t", *(["gone"] if erase else [])):
            self._db.execute(f"DELETE FROM {name} WHERE k IN (SELECT unnest(?))", [list(keys)])

    def keep(self, version: int) -> None:
        """Say which version the tables are of now."""
        self._kept[version] = tuple(
            self._db.sql(f"FROM {name}").to_arrow_table() for name in ("t", "gone")
        )

    def roll_back(self, version: int) -> None:
        """Return to the tables of a version."""
        for name, kept in zip(("t", "gone"), self._kept[version], strict=True):
            self._db.register("kept", kept)
            self._db.sql(f"DELETE FROM {name}")
            self._db.sql(f"INSERT INTO {name} FROM kept")

    @property
    def rows(self) -> list[Row]:
        """The rows in order."""
        return self._db.sql("FROM t ORDER BY ALL").fetchall()

    def close(self) -> None:
        """Close the tables."""
        self._db.close()


def table_of(changes: Sequence[Change]) -> pa.Table:
    """Return a feed; a deletion has a key and a sequence alone."""
    rows = [
        dict(zip(SCHEMA.names, one.row, strict=True))
        | {"op": one.op}
        | ({"v": None} if one.is_deletion else {})
        for one in changes
    ]
    return pa.Table.from_pylist(rows, SCHEMA.append(pa.field("op", pa.string())))


class History:
    """A random history of a shuffle at a path, with its models; ``seed`` decides all of it.

    In a store no process dies, and none meets another in its commit.
    """

    def __init__(self, seed: int, path: Path | str) -> None:
        self._random = random.Random(seed)
        self.path = path
        self.model = Model()
        self.merged = Merged()
        self.versions: dict[int, Model] = {}
        """What each version has."""
        self._batches = 0
        self._told: list[Change] = []
        """What was said before, and may be said again."""

    def run(self, look: Callable[[History, str], None]) -> None:
        """Go through the history; after each step ``look`` is told what was done."""
        chance = self._random
        arrow_shuffle.write_shuffle(
            SCHEMA.empty_table(),
            self.path,
            keys="k",
            unique=chance.choice([["k", "n"], ["n", "k"]]),
            sequence_by="lsn",
            sort_by=chance.choice([(), ("v",), ("lsn",)]),
            num_subpartitions=chance.choice([1, 2, 3, 4]),
            options=SMALL,
        )
        self._committed("created")
        look(self, "created")
        steps: dict[Callable[[], str], int] = {
            self._feed: 48,
            self._feed_beside_another: 8,
            self._merge: 16,
            self._delete: 12,
            self._roll_back: 5,
            self._rescale: 6,
            self._collect: 5,
        }
        for step in chance.choices([*steps], [*steps.values()], k=chance.randint(4, 12)):
            what = step()
            self._committed(what)
            look(self, what)
        self.merged.close()

    @property
    def shuffle(self) -> Shuffle:
        """The newest version."""
        return arrow_shuffle.open_shuffle(self.path)

    @property
    def rows(self) -> list[Row]:
        """The rows of the dictionary, in order."""
        return sorted(self.model.rows.values())

    def _committed(self, what: str) -> None:
        version = self.shuffle.version
        assert version not in self.versions or self.versions[version] == self.model, what
        self.versions[version] = self.model.copy()
        self.merged.keep(version)

    def _changes(self) -> list[Change]:
        chance = self._random
        new = [
            Change(
                (chance.randrange(KEYS), chance.randrange(NUMBERS)),
                chance.randrange(SEQUENCES),
                chance.choice(["c", "u", "u", "d", "d", "-U"]),
            )
            for _ in range(chance.randint(0, 8))
        ]
        again = chance.sample(self._told, min(len(self._told), chance.choice([0, 0, 1, 3])))
        changes = [*new, *again]
        chance.shuffle(changes)
        self._told += new
        return changes

    def _upsert(self, changes: list[Change]) -> Callable[[], object]:
        """Return an upsert of changes, once however often it is called."""
        self._batches += 1
        once = ("feed", self._batches)
        tasks = self._random.choice([1, 1, 2, 3])
        if tasks == 1:
            return lambda: self.shuffle.upsert(
                table_of(changes), row_kind="op", options=SMALL, transaction=once
            )

        def act() -> None:
            job = begin_job(
                str(self.path),
                table_of(changes).schema,
                num_subpartitions=self.shuffle.snapshot.newest.shape.new_subpartitions,
                partitioner=HashPartitioner("k"),
                sort_by=self.shuffle.sort_by,
                row_kind="op",
                options=SMALL,
            )
            parts = (table_of(changes[number::tasks]) for number in range(tasks))
            statuses = [
                run_map_task(job, number, 0, part.to_batches()) for number, part in enumerate(parts)
            ]
            commit_job(job, statuses, mode="upsert", transaction=Transaction(*once))

        return act

    def _apply(self, changes: list[Change]) -> None:
        self.model.upsert(changes)
        self.merged.upsert(changes)

    def _feed(self) -> str:
        changes = self._changes()
        act = self._upsert(changes)
        deaths = 0
        if self._random.random() < 0.4:
            while dies_after(self._random.randrange(6), act, CHANGES):
                deaths += 1
        act()
        self._apply(changes)
        return f"feed of {len(changes)} after {deaths} deaths"

    def _feed_beside_another(self) -> str:
        ours, theirs = self._changes(), self._changes()
        first, second = self._upsert(theirs), self._upsert(ours)

        def meanwhile() -> None:
            first()
            self._apply(theirs)
            self._committed("another feed")

        with before_first_entry(meanwhile):
            second()
        self._apply(ours)
        return "two feeds at once"

    def _merge(self) -> str:
        by = self._random.choice(BY)
        policy = self._random.choice([None, ALWAYS, ALWAYS])
        dies_after(
            self._random.choice([0, 2, 4, 99, 99]),
            lambda: self.shuffle.merge(by, policy=policy, options=SMALL),
            CHANGES,
        )
        return f"merge by {by}"

    def _delete(self) -> str:
        keys = self._random.sample(range(KEYS), self._random.choice([1, 1, 2]))
        erase = self._random.random() < 0.5
        self._batches += 1
        once = ("delete", self._batches)

        def act() -> None:
            values = {"k": pa.array(keys, pa.int64())}
            self.shuffle.delete(values, erase=erase, transaction=once, options=SMALL)

        while dies_after(self._random.choice([0, 2, 4, 99]), act, CHANGES):
            pass
        self.model.delete(keys, erase=erase)
        self.merged.delete(keys, erase=erase)
        return f"{'erasure' if erase else 'deletion'} of {keys}"

    def _roll_back(self) -> str:
        version = self._random.choice([*self.versions])
        self.shuffle.rollback(version, undo_deletions=True)
        self.model = self.versions[version].copy()
        self.merged.roll_back(version)
        return f"rollback to {version}"

    def _rescale(self) -> str:
        n = self._random.choice([1, 2, 3, 4, 6, 8])
        self.shuffle.rescale(n)
        return f"rescale to {n}"

    def _collect(self) -> str:
        self.shuffle.collect_garbage()
        return "collection"


def readings(shuffle: Shuffle, rows: Sequence[Row]) -> Iterator[tuple[str, object, object]]:
    """Yield how a shuffle is read, without Spark: the name, what is read, and what is expected."""
    names = SCHEMA.names
    yield "table", _in_order(shuffle.to_table()), list(rows)
    counted = sum(shuffle.subpartition_rows.to_pylist())
    yield "count", (shuffle.num_rows, counted), (len(rows), len(rows))
    late = [row for row in rows if row[2] >= SEQUENCES // 2]
    yield "filter", _in_order(shuffle.select(filter=f"lsn >= {SEQUENCES // 2}").to_table()), late
    of_keys = [row for row in rows if row[0] in (1, 3)]
    yield "lookup", _in_order(shuffle.select(key_values={"k": [1, 3]}).to_table()), of_keys
    dataset = shuffle.to_dataset()
    query = f"SELECT {', '.join(names)} FROM dataset ORDER BY ALL"
    yield "DuckDB", duckdb.connect().execute(query).fetchall(), list(rows)
    assert dataset is not None  # the query has its name
    polars = shuffle.to_polars().select(names).sort(names).collect()
    yield "Polars", polars.rows(), list(rows)
    few = [(row[0], row[2]) for row in rows]
    yield "columns", _in_order(shuffle.select("k", "lsn").to_table()), sorted(few)
    ranks = [EpochBatches(shuffle, names, Epochs(3), rank=rank, world_size=2) for rank in range(2)]
    batches = [batch for rank in ranks for batch in rank]
    yield "epochs", _in_order(pa.Table.from_batches(batches, shuffle.schema)), list(rows)


def _in_order(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
