"""A partitioner describes itself, and nothing else."""

import pickle
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
)
from arrow_format.jobs.job import begin_job
from arrow_format.keys.partitioner import as_described, key_columns
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import shuffle_of, write_rows

TABLE = pa.table({"name": [f"User{i}" for i in range(100)], "p": np.arange(100) % 4})


class CaseBlind(HashPartitioner):
    """ "Ann" and "ann" together: what a user writes, and forgets describe()."""

    def bind(self, schema, num_subpartitions, map_task):
        inner = super().bind(schema, num_subpartitions, map_task)
        return lambda batch: inner(batch.set_column(0, "name", pc.utf8_lower(batch["name"])))


class FirstLetter(RangePartitioner):
    def bind(self, schema, num_subpartitions, map_task):
        del schema, map_task
        return lambda batch: np.zeros(batch.num_rows, np.int32) + num_subpartitions - 1


class Modulo(ColumnPartitioner):
    def bind(self, schema, num_subpartitions, map_task):
        del schema, map_task
        return lambda batch: batch[self.column].to_numpy() % num_subpartitions


class OtherKeys(HashPartitioner):
    @property
    def keys(self):
        return ("p",)


class Fits(RangePartitioner):
    def fitted(self, schema, num_subpartitions=None):
        return RangePartitioner("p", bounds=[1]).fitted(schema, num_subpartitions)


class Mixed:
    def bind(self, schema, num_subpartitions, map_task):
        del schema, num_subpartitions, map_task
        return lambda batch: np.zeros(batch.num_rows, np.int32)


class MixedIn(Mixed, RoundRobinPartitioner):
    pass


class NotForAll(BroadcastPartitioner):
    def bind(self, schema, num_subpartitions, map_task):
        return RoundRobinPartitioner().bind(schema, num_subpartitions, map_task)


class Takes(Mixed):
    """No class of ours, with a name of ours."""

    def describe(self):
        return {"kind": "hash", "keys": ["name"], "seed": 42}

    def check(self, schema):
        pass


REFUSED = [
    CaseBlind("name"),
    FirstLetter("name", bounds=["User5"]),
    Modulo("p"),
    Fits("name", bounds=["a"]),
    MixedIn(),
    NotForAll(),
]


@guarantee("exact partitioners")
@pytest.mark.parametrize("partitioner", REFUSED, ids=lambda each: type(each).__name__)
def test_a_class_that_describes_itself_as_another_is_refused(path, partitioner):
    message = "with its own .*Let its describe\\(\\) return a kind of its own"
    with pytest.raises(OptionError, match=message):
        write_rows(path, TABLE, n=4, partitioner=partitioner)
    with pytest.raises(OptionError, match=message):
        begin_job(path, TABLE.schema, num_subpartitions=4, partitioner=partitioner)
    assert not path.exists()


def test_a_property_in_the_place_of_the_keys_is_refused():
    odd = OtherKeys.__new__(OtherKeys)
    with pytest.raises(OptionError, match="with its own keys"):
        as_described(odd)


def test_a_kind_that_is_taken():
    with pytest.raises(OptionError, match="kind 'hash' is taken"):
        as_described(Takes())


class ByName(HashPartitioner):
    """Always by the name; places rows as its base does."""

    def __init__(self):
        super().__init__("name")

    def __repr__(self):
        return "by name"


@dataclass(frozen=True)
class Noted(ColumnPartitioner):
    note: str = ""


@pytest.mark.parametrize(
    ("partitioner", "exactly"),
    [(ByName(), HashPartitioner("name")), (Noted("p", "mine"), ColumnPartitioner("p"))],
)
def test_a_class_that_changes_nothing_is_what_it_is_derived_from(tmp_path, partitioner, exactly):
    assert type(as_described(partitioner)) is type(exactly)
    shuffle = shuffle_of(tmp_path, TABLE, n=4, partitioner=partitioner)
    assert shuffle.partitioner == exactly
    assert shuffle.map_outputs.placed.all()
    assert shuffle.verify().placement == "checked"


class Honest(CaseBlind):
    def describe(self):
        return {"kind": "case_blind", "keys": list(self.keys)}


class HonestRanges(FirstLetter):
    def describe(self):
        return {"kind": "first_letter"}


@pytest.mark.parametrize("partitioner", [Honest("name"), HonestRanges("name", bounds=["a"])])
def test_a_class_that_describes_itself_is_a_users_own(tmp_path, partitioner):
    own = as_described(partitioner)
    assert key_columns(own) is None
    assert pickle.loads(pickle.dumps(own)) == own
    assert repr(own) == repr(partitioner)
    shuffle = shuffle_of(tmp_path, TABLE, n=4, partitioner=partitioner)
    assert shuffle.partitioner == partitioner.describe()
    assert not shuffle.map_outputs.placed.any()
    assert shuffle.read(filter="name = 'User7'").read_all()["p"].to_pylist() == [3]
    (row,) = (
        i for i in range(4) if "User7" in shuffle.subpartition(i).read_all()["name"].to_pylist()
    )
    assigned = partitioner.bind(TABLE.schema, 4, 0)(TABLE.slice(7, 1).to_batches()[0])
    assert row == assigned[0]
