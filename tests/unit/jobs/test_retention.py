"""When what was consumed goes, and what stays: beside checkpoints, merges, restarts and bounds."""

import threading
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from arrow_format import (
    MergePolicy,
    WriteOptions,
    collect_garbage,
    delete_rows,
    flush_pending,
    forget_consumer,
    list_consumers,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.errors import (
    BackPressureTimeoutError,
    CorruptShuffleError,
    RequestTimeoutError,
)
from arrow_format.jobs.release import DueRelease
from arrow_format.jobs.retention import (
    RELEASED_TOGETHER,
    find_abandoned,
    owners_are_gone,
    release_consumed,
)
from arrow_format.log.consumers import record_path
from arrow_format.log.result import describe_result
from arrow_format.process_identity import ProcessIdentity, this_process
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.lease import LEASE_SECONDS
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of, put
from tests.support.results import rows, take, write
from tests.support.small_shuffles import FAST, collect, files_below, write_rows

NONE = timedelta(0)


BOUNDED = {
    "result_type": "PIPELINED_BOUNDED",
    "max_unconsumed_versions": 3,
    "back_pressure_timeout": 0.05,
}


ELSEWHERE = ProcessIdentity("another host", "another boot", 1, 1)


def data_files(path):
    return len(list(path.glob("map_outputs/*/*.data")))


def write_each(path, *values, **options):
    for value in values:
        write(path, value, **options)


@pytest.mark.slow
@guarantee("consumed versions")
@pytest.mark.parametrize("collects", [False, True])
def test_what_a_slow_consumer_has_consumed_goes_however_far_behind_it_is(
    tmp_path, small_log, collects
):
    """A checkpoint has more versions than it has before it."""
    write_each(tmp_path, *range(1, 40), result_type="PIPELINED")
    consumer = Consumer(open_storage(tmp_path), "slow")
    consumer.register(0)
    ConsumerRegistry(open_storage(tmp_path)).register("fast", 39)
    try:
        if collects:
            ConsumerRegistry(open_storage(tmp_path)).advance("slow", 12)
            collect(tmp_path)
        else:
            consumer.commit(12)
    finally:
        consumer.close()
    assert rows(open_shuffle(tmp_path)) == list(range(13, 40))
    assert take(tmp_path, "slow") == list(range(13, 40))
    write(tmp_path, 40)
    collect(tmp_path)
    assert rows(open_shuffle(tmp_path)) == [40]
    assert data_files(tmp_path) == 1


@pytest.mark.slow
def test_consumed_versions_are_released_together(tmp_path):
    write(tmp_path, 0, result_type="PIPELINED")
    for value in range(1, 4 * RELEASED_TOGETHER):
        take(tmp_path, "a")
        write(tmp_path, value)
    log = log_of(tmp_path)
    operations = [log.record(number).operation for number in range(1, log.newest_version() + 1)]
    assert 2 <= operations.count("release") <= 4
    assert operations.count("expire") <= 4


@pytest.mark.slow
@guarantee("consumed versions")
@pytest.mark.parametrize("more", [False, True])
def test_what_was_merged_after_it_was_read_goes_once_it_is_consumed(tmp_path, more):
    write_each(tmp_path, *range(12), result_type="PIPELINED")
    with consume(tmp_path, consumer="a") as consumption:
        assert rows(consumption.shuffle) == list(range(12))
        merge_shuffle(tmp_path, options=FAST, by="map_output")
        if more:
            write(tmp_path, 12)
    collect(tmp_path)
    assert rows(open_shuffle(tmp_path)) == [12] * more
    assert list_consumers(tmp_path)[0].unconsumed_versions == more
    assert data_files(tmp_path) == 2 * more, "the file before what is new goes with the next"
    if more:
        assert take(tmp_path, "a") == [12]
        collect(tmp_path)
        assert data_files(tmp_path) == 0


@pytest.mark.slow
def test_what_was_merged_stays_until_all_of_it_is_consumed(tmp_path):
    write_each(tmp_path, *range(3), result_type="PIPELINED")
    with consume(tmp_path, consumer="a"):
        write(tmp_path, 3)
        merge_shuffle(tmp_path, options=FAST, by="map_output")
    collect(tmp_path)
    assert rows(open_shuffle(tmp_path)) == [0, 1, 2, 3], "in one file with what is not consumed"
    assert take(tmp_path, "a") == [3]
    collect(tmp_path)
    assert rows(open_shuffle(tmp_path)) == []


@guarantee("partial totals")
@pytest.mark.parametrize("before", ["nothing", "merge", "deletion", "expiry"])
def test_the_log_has_the_totals_of_what_a_release_left(tmp_path, before):
    """By its entries; of what these no longer have, the release reads the indexes."""
    write_each(tmp_path, *range(4), result_type="PIPELINED")
    if before == "merge":
        merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
        for value in range(5, 8):
            write(tmp_path, value)
    if before == "deletion":
        delete_rows(tmp_path, {"k": [3]}, options=FAST)
    if before == "expiry":
        merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
        write(tmp_path, 5)
        collect(tmp_path)
        merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
        write(tmp_path, 6)
    through = int(open_shuffle(tmp_path)._snapshot.map_outputs.last_versions.min())
    DueRelease("a test", through=through).carry_out(open_storage(tmp_path), sync=False)
    shuffle = open_shuffle(tmp_path)
    assert shuffle.verify().num_rows == shuffle.num_rows
    assert sum(shuffle.subpartition_rows.to_pylist()) == shuffle.num_rows > 0
    assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes


@pytest.mark.parametrize("consumed", [0, 1])
def test_consumers_keep_nothing_of_what_was_released_as_a_whole(tmp_path, consumed):
    write_each(tmp_path, *range(3), result_type="PIPELINED")
    ConsumerRegistry(open_storage(tmp_path)).register("a", consumed)
    DueRelease("a process that died then").carry_out(open_storage(tmp_path))
    write(tmp_path, 3, result_type="PIPELINED")
    collect(tmp_path)
    assert data_files(tmp_path) == 1
    assert take(tmp_path, "a") == [3]


@pytest.mark.slow
@guarantee("back pressure")
@pytest.mark.parametrize("consumed", [None, 2])
def test_a_collection_makes_no_room_in_a_bounded_result(tmp_path, consumed):
    """Without consumers, and where the only one was forgotten after a release."""
    write_each(tmp_path, *range(3), **BOUNDED)
    registry = ConsumerRegistry(open_storage(tmp_path))
    if consumed:
        registry.register("a", consumed)
        collect(tmp_path)
        write(tmp_path, 3, **BOUNDED)
        write(tmp_path, 4, **BOUNDED)
        assert forget_consumer(tmp_path, "a")
    for _ in range(2):
        collect(tmp_path)
        with pytest.raises(BackPressureTimeoutError, match="3 versions of"):
            write(tmp_path, 9, **BOUNDED)
    assert rows(open_shuffle(tmp_path)) == ([2, 3, 4] if consumed else [0, 1, 2])


@pytest.mark.parametrize("consumed", [0, 1])
def test_versions_of_another_shape_are_consumed_apart(tmp_path, consumed):
    write_each(tmp_path, *range(2), result_type="PIPELINED")
    if consumed:
        assert take(tmp_path, "a") == [0, 1]
        write(tmp_path, 2)
    options = WriteOptions(result_type="PIPELINED", sync=False)
    for n in (5, 7):
        write_rows(tmp_path, pa.table({"k": ["x"]}), "k", n=n, mode="overwrite", options=options)
    for expected in ([2] if consumed else [0, 1], ["x"], ["x"]):
        assert take(tmp_path, "a") == expected
    with pytest.raises(RequestTimeoutError):
        take(tmp_path, "a")


def test_what_is_overwritten_before_anybody_comes_expires_and_counts_no_more(tmp_path):
    write_each(tmp_path, *range(6), mode="overwrite", **BOUNDED)
    collect(tmp_path)
    assert data_files(tmp_path) == 1
    write(tmp_path, 6, **BOUNDED)
    write(tmp_path, 7, **BOUNDED)
    with pytest.raises(BackPressureTimeoutError, match="3 versions of"):
        write(tmp_path, 8, **BOUNDED)


def test_what_a_bounded_result_took_the_place_of_counts_no_more(tmp_path):
    write_each(tmp_path, *range(6))
    write(tmp_path, 6, mode="overwrite", **BOUNDED)
    assert write(tmp_path, 7, **BOUNDED).version == 8


@pytest.mark.slow
@pytest.mark.parametrize("retention", [NONE, timedelta(days=1)])
def test_a_merge_makes_no_room_in_a_bounded_result(tmp_path, retention):
    write_each(tmp_path, *range(6))
    collect(tmp_path)  # what it takes the place of has expired
    write(tmp_path, 6, mode="overwrite", **BOUNDED)
    for value in (7, 8):
        write(tmp_path, value, **BOUNDED)
        merge_shuffle(tmp_path, options=FAST, by="map_output")
        collect_garbage(tmp_path, retention=retention)
    with pytest.raises(BackPressureTimeoutError, match="3 versions of"):
        write(tmp_path, 9, **BOUNDED)
    assert rows(open_shuffle(tmp_path)) == [6, 7, 8]


def test_bounds_are_those_of_who_wrote_last(tmp_path):
    """A flush makes a version of what came before, and sets nothing."""
    for bound, pending in ((3, False), (5, True), (9, False)):
        put(
            tmp_path, [(bound, bound)], pending=pending, result_type="PIPELINED_BOUNDED",
            max_unconsumed_versions=bound,
        )  # fmt: skip
    assert flush_pending(tmp_path, options=FAST).version == 4
    assert open_shuffle(tmp_path).result.max_unconsumed_versions == 9
    put(tmp_path, [(7, 7)], result_type="PIPELINED_BOUNDED", max_unconsumed_versions=7)
    flush_pending(tmp_path, options=FAST)
    assert open_shuffle(tmp_path).result.max_unconsumed_versions == 7


@pytest.mark.parametrize("kind", ["BLOCKING", "PIPELINED"])
def test_who_comes_while_it_is_released_has_it_before_it_still(tmp_path, kind):
    """Another writer was faster, so that the release is decided once more, and rows are needed."""
    write_each(tmp_path, *range(2), result_type=kind)
    come = []

    def meanwhile():
        log_of(tmp_path).give_up("lost", after=0, sync=False)
        come.append(Consumer(open_storage(tmp_path), "b"))
        come[0].register(0)

    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("a", 2)
    with before_first_entry(meanwhile) as puts:
        assert release_consumed(open_storage(tmp_path)) is None
    come[0].close()
    assert puts
    assert rows(open_shuffle(tmp_path)) == [0, 1]
    assert take(tmp_path, "b") == [0, 1]


@pytest.mark.slow
@guarantee("blocking results")
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("kind", ["BLOCKING", None])
def test_a_result_stays_while_one_of_those_that_wrote_it_runs(tmp_path, dead, pending, kind):
    """As a stream does that goes on in another application after a restart."""
    how = {"pending": pending}
    put(tmp_path, [(1, 1)], owner=dead, result_type="BLOCKING", **how)
    put(tmp_path, [(2, 2)], result_type="BLOCKING" if pending else kind, **how)
    put(tmp_path, [(3, 3)], owner=dead, result_type="BLOCKING", **how)
    collect(tmp_path)
    if pending:
        assert flush_pending(tmp_path, options=FAST).num_rows == 3
        collect(tmp_path)
    assert sorted(open_shuffle(tmp_path).read().read_all()["k"].to_pylist()) == [1, 2, 3]
    assert set(open_shuffle(tmp_path).result.owners) == {dead, this_process()}


def test_what_one_that_runs_has_pending_keeps_what_a_dead_one_wrote(tmp_path, dead):
    put(tmp_path, [(1, 1)], owner=dead, result_type="BLOCKING", pending=False)
    put(tmp_path, [(2, 2)], result_type="BLOCKING")
    collect(tmp_path)
    assert flush_pending(tmp_path, options=FAST).num_rows == 1
    assert sorted(open_shuffle(tmp_path).read().read_all()["k"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("kinds", [(None, "BLOCKING"), ("BLOCKING", "BLOCKING_PERSISTENT")])
def test_what_belongs_to_nobody_stays_beside_what_a_dead_one_wrote(tmp_path, dead, kinds):
    """As a stream's first flush overwrites what another had written, of another type."""
    before, waits = kinds
    put(tmp_path, [(1, 1)], owner=dead, result_type=before, mode="overwrite", pending=False)
    put(tmp_path, [(2, 2)], owner=dead, result_type=waits, mode="overwrite")
    collect(tmp_path)
    assert rows(open_shuffle(tmp_path)) == [1]
    assert flush_pending(tmp_path, options=FAST).num_rows == 1
    assert rows(open_shuffle(tmp_path)) == [2]


@pytest.mark.parametrize("kind", ["PIPELINED", "BLOCKING", "pending"])
def test_a_dry_run_says_what_would_be_released_and_releases_nothing(tmp_path, dead, kind):
    """Of a consumer that died before it released what it had consumed, or of a dead application."""
    if kind == "pending":
        put(tmp_path, [(1, 1)], owner=dead, result_type="BLOCKING")
    else:
        for value in range(3):
            write(tmp_path, value, result_type=kind)
        ConsumerRegistry(open_storage(tmp_path)).register("a", 3)
    before = files_below(tmp_path)
    said = collect(tmp_path, dry_run=True)
    assert files_below(tmp_path) == before
    expected = {
        "PIPELINED": "what came up to version 3, consumed by a",
        "BLOCKING": "the result, consumed by a",
        "pending": f"the result, the application that made it has ended: {dead}",
    }
    assert said.released == expected[kind]
    assert f"  result    would be released: {said.released}" in str(said).splitlines()
    done = collect(tmp_path)
    assert done.released == done.as_json()["released"] == said.released
    assert f"  result    released: {said.released}" in str(done).splitlines()
    assert collect(tmp_path).released is None


def test_what_was_consumed_is_not_released_while_more_is_pending(tmp_path):
    put(tmp_path, [(1, 1)], pending=False, result_type="BLOCKING")
    ConsumerRegistry(open_storage(tmp_path)).register("a", 1)
    put(tmp_path, [(2, 2)], result_type="BLOCKING")
    for dry_run in (True, False):
        assert collect(tmp_path, dry_run=dry_run).released is None


def test_owners_that_cannot_be_told_from_here_have_the_time_of_the_retention(dead):
    assert not owners_are_gone([], lambda: True)
    assert owners_are_gone([dead], lambda: False)
    assert owners_are_gone([dead, ELSEWHERE], lambda: True)
    assert not owners_are_gone([dead, ELSEWHERE], lambda: False)
    assert not owners_are_gone([dead, ELSEWHERE, this_process()], lambda: True)


def test_owners_are_all_that_wrote_the_last_one_last():
    there = None
    for number in (*range(40), 7):
        owner = ProcessIdentity("a", "b", number, 0)
        there = describe_result(WriteOptions(result_type="BLOCKING"), (owner,), there)
    assert [one.pid for one in there.owners] == [*(one for one in range(40) if one != 7), 7]


@pytest.mark.slow
@pytest.mark.parametrize("pending", [False, True])
def test_however_many_write_a_result_it_stays_while_one_of_them_runs(tmp_path, dead, pending):
    """As where a job that is still at work has others append to it, one after the other."""
    how = {"pending": pending, "result_type": "BLOCKING"}
    put(tmp_path, [(0, 0)], **how)
    put(tmp_path, [(1, 1)], owner=ELSEWHERE, **how)
    for value in range(2, 20):
        other = replace(dead, started=dead.started + value)
        put(tmp_path, [(value, value)], owner=other, **how)
    collect(tmp_path)
    if pending:
        flush_pending(tmp_path, options=FAST)
    assert rows(open_shuffle(tmp_path)) == list(range(20))
    assert open_shuffle(tmp_path).result.owners == (this_process(), ELSEWHERE, other)


def test_a_batch_that_runs_again_is_no_failure_of_its_producer(tmp_path):
    """What it has pending comes; who waits for it is told nothing else."""
    found = []

    def wait():
        with consume(tmp_path, consumer="a", request_timeout=30) as consumption:
            found.extend(rows(consumption.shuffle))

    put(tmp_path, [(1, 1)], batch=0, result_type="PIPELINED")
    waiting = threading.Thread(target=wait)
    waiting.start()
    while not (tmp_path / "consumers" / "a").is_dir() or not list_consumers(tmp_path):
        assert waiting.is_alive()
    put(tmp_path, [(1, 1)], batch=0, result_type="PIPELINED")
    flush_pending(tmp_path, options=FAST)
    waiting.join(30)
    assert found == [1]


@pytest.mark.parametrize("left", [b"", b"{}", b"\0" * 300])
def test_a_consumer_whose_record_is_damaged_can_only_be_forgotten(tmp_path, left):
    write(tmp_path, 1, result_type="PIPELINED")
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("a", 0)
    (tmp_path / record_path("a", 2)).write_bytes(left)
    for ask in (lambda: take(tmp_path, "a"), lambda: list_consumers(tmp_path)):
        with pytest.raises(CorruptShuffleError, match=r"a/0+2\.json: .* or forget the consumer"):
            ask()
    assert forget_consumer(tmp_path, "a")
    assert not list_consumers(tmp_path)
    assert take(tmp_path, "a") == [1]


def test_a_holder_elsewhere_is_shown_while_its_last_record_is_recent(tmp_path):
    write(tmp_path, 1, result_type="PIPELINED")
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("a", 0)
    elsewhere = ProcessIdentity("another host", "another boot", 7, 1)
    taken = registry.newest("a").taken_by(elsewhere)
    registry.put("a", taken)
    assert list_consumers(tmp_path)[0].held_by == "process 7 on another host"
    old = replace(taken.next(), at_ms=taken.at_ms - int(2000 * LEASE_SECONDS))
    registry.put("a", old)
    assert list_consumers(tmp_path)[0].held_by is None


@pytest.mark.parametrize("pending", [False, True])
def test_a_result_of_another_host_is_released_once_all_of_it_is_old(tmp_path, pending):
    """Nobody here can say whether its application runs, so the time of its last commits does."""
    put(tmp_path, [(1, 1)], owner=ELSEWHERE, result_type="BLOCKING", pending=False)
    if pending:
        put(tmp_path, [(2, 2)], owner=ELSEWHERE, result_type="BLOCKING")
    log = log_of(tmp_path)
    view = log.view()
    last = view.newest

    def found(*old):
        return log.read_at(view, lambda view: find_abandoned(log, view, lambda e: e.version in old))

    assert found(*range(1, last)) is None
    assert found(*range(2, last + 1)) is None
    assert "the application that made it has ended" in str(found(*range(1, last + 1)))
    assert collect_garbage(tmp_path, retention=timedelta(hours=1)).released is None
    assert rows(open_shuffle(tmp_path)) == [1]
    assert "another host" in collect(tmp_path).released


@pytest.mark.parametrize("how", [{}, {"max_unconsumed_versions": 9}])
def test_what_was_merged_goes_where_no_consumer_is_to_come(tmp_path, how):
    kind = "PIPELINED_BOUNDED" if how else "PIPELINED"
    write(tmp_path, 1, result_type=kind, **how)
    write(tmp_path, 2, result_type=kind, **how)
    if how:
        assert take(tmp_path, "a") == [1, 2]
    merge_shuffle(tmp_path, options=FAST, by="map_output")
    collect(tmp_path)
    assert data_files(tmp_path) == (0 if how else 1)


def test_an_overwrite_waits_for_no_consumer_that_does_not_exist(tmp_path):
    how = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 1}
    write(tmp_path, 1, **how)
    assert write(tmp_path, 2, mode="overwrite", back_pressure_timeout=0.1, **how).version == 2
