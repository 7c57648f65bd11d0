"""Releases beside appends, merges, collections and results that come in their place."""

from functools import partial

import pyarrow as pa
import pytest

from arrow_format import (
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
    release_shuffle,
)
from arrow_format.errors import RequestTimeoutError
from arrow_format.jobs import retention
from arrow_format.jobs.back_pressure import unconsumed
from arrow_format.jobs.release import DueRelease
from arrow_format.storage.open import PosixStorage, open_storage
from tests.support.consumers import ConsumerRegistry
from tests.support.results import rows, take, write
from tests.support.small_shuffles import collect, write_rows


class Interrupted(PosixStorage):
    """Lets others act just before some puts of log entries."""

    def __init__(self, root, *actions):
        super().__init__(str(root))
        self.actions = list(actions)

    def put_if_absent(self, path, data, *, sync):
        if path.endswith(".entry") and self.actions:
            self.actions.pop(0)()
        super().put_if_absent(path, data, sync=sync)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_what_comes_while_a_consumed_result_is_released_stays(tmp_path, mode):
    write(tmp_path, 1, result_type="BLOCKING")
    ConsumerRegistry(open_storage(tmp_path)).advance("a", 1)
    come = Interrupted(tmp_path, lambda: write(tmp_path, 2, mode=mode, result_type="BLOCKING"))
    assert retention.release_consumed(come, sync=False) is None
    assert take(tmp_path, "a") == ([1, 2] if mode == "append" else [2])


def test_a_result_that_takes_the_place_of_one_whose_application_is_gone_stays(
    tmp_path, monkeypatch
):
    write(tmp_path, 1, result_type="BLOCKING")
    # What a collection finds out about the first holds for the first alone.
    monkeypatch.setattr("arrow_format.jobs.retention.owners_are_gone", lambda *_: True)
    come = Interrupted(
        tmp_path, lambda: write(tmp_path, 2, mode="overwrite", result_type="BLOCKING")
    )
    collect_garbage(come)
    assert rows(open_shuffle(tmp_path)) == [2]


def test_collections_while_a_release_is_put_leave_it_readable(tmp_path):
    """Each takes the number that the release would get."""
    for value in range(3):
        write(tmp_path, value, result_type="PIPELINED")
    ConsumerRegistry(open_storage(tmp_path)).advance("a", 2)

    # The collection itself would release what was consumed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arrow_format.jobs.garbage.find_consumed", lambda *_: None)
        due = DueRelease("a test", through=2)
        due.carry_out(Interrupted(tmp_path, *[partial(collect, tmp_path)] * 2), sync=False)
    assert rows(open_shuffle(tmp_path)) == [2]
    assert open_shuffle(tmp_path).subpartition_rows.to_pylist().count(1) == 1


def test_a_merge_of_what_was_consumed_leaves_room(tmp_path):
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 1}
    write(tmp_path, 1, **bounded)
    assert take(tmp_path, "a") == [1]
    write(tmp_path, 2, **bounded)
    assert take(tmp_path, "a") == [2]
    assert merge_shuffle(tmp_path, by="map_output").version > 2
    with pytest.raises(RequestTimeoutError, match="nothing new"):
        take(tmp_path, "a")
    there = unconsumed(open_storage(tmp_path))
    assert (there.num_versions, there.num_bytes) == (0, 0)
    write(tmp_path, 3, back_pressure_timeout=0)
    assert take(tmp_path, "a") == [3]


def test_a_merge_counts_only_what_is_unconsumed(tmp_path):
    for value in range(4):
        write(tmp_path, value, result_type="PIPELINED")
    ConsumerRegistry(open_storage(tmp_path)).advance("a", 3)
    last = open_shuffle(tmp_path).snapshot.newest.num_bytes
    merge_shuffle(tmp_path, by="map_output")
    there = unconsumed(open_storage(tmp_path))
    assert (there.num_versions, there.num_bytes) == (1, last)


class TestInThePlaceOfOneThatWasReleased:
    """A result that was released as a whole is nothing to those who come later."""

    @staticmethod
    def another(path, **options):
        table = pa.table({"k": [7], "other": ["x"]})
        write_rows(path, table, "k", mode="append", options=WriteOptions(sync=False, **options))

    @pytest.mark.parametrize("collected", [True, False])
    @pytest.mark.parametrize("consumed", [None, 0, 1, 2])
    def test_a_consumer_gets_the_new_one_and_nothing_else(self, tmp_path, consumed, collected):
        storage = open_storage(tmp_path)
        for value in range(2):
            write(tmp_path, value, result_type="PIPELINED")
        if consumed is not None:
            ConsumerRegistry(storage).advance("a", consumed)
        if collected:
            release_shuffle(tmp_path)
        else:
            DueRelease("a test").carry_out(storage, sync=False)
        self.another(tmp_path, result_type="PIPELINED")
        assert take(tmp_path, "a") == [7]

    @pytest.mark.parametrize("collected", [True, False])
    def test_who_follows_from_the_beginning_begins_with_the_new_one(self, tmp_path, collected):
        for value in range(2):
            write(tmp_path, value)
        if collected:
            release_shuffle(tmp_path)
        else:
            DueRelease("a test").carry_out(open_storage(tmp_path), sync=False)
        self.another(tmp_path)
        self.another(tmp_path)
        assert rows(open_shuffle_changes(tmp_path, 0)) == [7, 7]
