"""What operations ask of an object store, counted by the store itself."""

import uuid
from collections import Counter
from datetime import timedelta
from functools import partial
from urllib.parse import unquote

import pytest

from arrow_format import collect_garbage, merge_shuffle, open_shuffle, rename_columns
from arrow_format.errors import CorruptShuffleError
from arrow_format.jobs.commit import LISTED_OUTPUTS, commit_job
from arrow_format.jobs.release import DueRelease
from arrow_format.jobs.rescale import rescale_shuffle
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import CHECKPOINT_INTERVAL, entry_path, segment_of
from arrow_format.log.reader import LogReader
from arrow_format.options import WriteOptions
from arrow_format.storage.object_store import MAX_REQUESTS
from arrow_format.storage.open import open_storage
from arrow_shuffle import consume
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, N, begin, collect, run
from tests.support.store_server import most_at_once

NONE = timedelta(0)


def write(storage, start=0, mode="append", tasks=1, options=FAST):
    job = begin(storage, options=options, partitioner=HashPartitioner("p"))
    statuses = [run(job, task, range(N), start=start + N * task) for task in range(tasks)]
    return commit_job(job, statuses, mode=mode)


@pytest.fixture
def slow(s3):
    """A storage on a bucket that answers late, and the bucket's name."""
    bucket = s3.new_bucket("slow")
    return open_storage(f"s3://{bucket}/a", s3.options), bucket


def of_log(requests):
    """Listings, reads and puts of the log, without those that a process asks a store first."""
    found = Counter()
    for request in requests:
        if "commit_log/probes" in unquote(request.path):
            continue
        if "prefix=" in request.path and "commit_log" in request.path:
            found["LIST"] += 1
        elif "commit_log" in request.path:
            found[request.method] += 1
    return dict(found)


PIPELINED = WriteOptions(sync=False, result_type="PIPELINED")


def alter(storage):
    rename_columns(storage, {"v": "w"})


def release(storage):
    DueRelease("a test", through=2).carry_out(storage)


def take(storage):
    with consume(storage, consumer="a") as consumption:
        consumption.shuffle.read().read_all()


OPERATIONS = {
    # Listings of the log, its segments and of what expired; reads of its files; puts.
    "append": (lambda storage: write(storage, 50, options=PIPELINED), 2, 2, 1),
    "open": (open_shuffle, 2, 5, 0),
    "merge": (partial(merge_shuffle, by="map_output"), 4, 11, 1),
    "alter": (alter, 2, 2, 1),
    "rescale": (lambda storage: rescale_shuffle(storage, 2 * N), 2, 5, 1),
    "release": (release, 2, 5, 1),
    # It looks for overdue rows first.
    "gc": (collect_garbage, 8, 10, 0),
    "consume": (take, 4, 7, 0),
}
"""Of each operation on a result of four versions, how many requests of the log at most."""


@guarantee("few requests")
def test_a_commit_of_many_map_outputs_looks_at_a_listing_and_not_at_each_file(s3):
    bucket = s3.new_bucket()
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    with s3.requests(bucket) as requests:
        assert write(storage, tasks=LISTED_OUTPUTS).num_map_outputs == LISTED_OUTPUTS
    looked_at = [request.path for request in requests if request.method == "HEAD"]
    assert not [path for path in looked_at if ".shuffle." in path]


def test_a_file_that_the_listing_lacks_is_missed(s3):
    storage = open_storage(f"s3://{s3.new_bucket()}/a", s3.options)
    job = begin(storage)
    statuses = [run(job, task, range(N), start=N * task) for task in range(LISTED_OUTPUTS)]
    (file,) = statuses[3].output.files
    storage.delete(file.index_path)
    with pytest.raises(CorruptShuffleError, match=r"map task 3, attempt 0\): is not there"):
        commit_job(job, statuses)


@guarantee("few requests")
@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_of_the_log_by_each_operation(s3, name):
    act, most_lists, most_reads, most_puts = OPERATIONS[name]
    bucket = s3.new_bucket()
    for start in range(4):
        write(open_storage(f"s3://{bucket}/a", s3.options), start, options=PIPELINED)
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    with s3.requests(bucket) as requests:
        act(storage)
    found = of_log(requests)
    assert found.get("LIST", 0) <= most_lists, found
    assert found.get("GET", 0) <= most_reads, found
    assert found.get("PUT", 0) <= most_puts, found


@guarantee("few requests")
@pytest.mark.parametrize("name", ["append", "open", "merge"])
def test_a_shuffle_with_a_log_is_known_by_it_and_not_by_a_listing_of_all_its_files(s3, name):
    bucket = s3.new_bucket()
    for start in range(3):
        write(open_storage(f"s3://{bucket}/a", s3.options), start, options=PIPELINED)
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    with s3.requests(bucket) as requests:
        OPERATIONS[name][0](storage)
    assert len(requests) > 3
    asked = [unquote(one.path).removeprefix(f"/{bucket}") for one in requests]
    assert not [path for path in asked if path in ("/a?", "?list-type=2&prefix=a/")]


def test_an_append_costs_the_same_however_many_versions_there_are(s3):
    """And never more than two listings of the log."""
    bucket = s3.new_bucket()
    seen = []
    for start in range(6):
        with s3.requests(bucket) as requests:
            write(open_storage(f"s3://{bucket}/a", s3.options), start)
        seen.append(of_log(requests))
    assert all(found["LIST"] <= 2 for found in seen)
    assert len({tuple(sorted(found.items())) for found in seen[1:]}) == 1


class TestLog:
    @guarantee("few requests")
    def test_entries_are_fetched_concurrently_under_a_bound(self, s3, slow):
        storage, bucket = slow
        count = CHECKPOINT_INTERVAL - 1
        for start in range(count):
            write(storage, start)
        log = LogReader(storage)
        view = log.view()
        with s3.requests(bucket) as requests:
            snapshot = log.snapshot_of(view)
        assert len(snapshot.map_outputs) == count
        assert of_log(requests)["GET"] == count - 1, "each entry once; the newest was read before"
        assert 1 < most_at_once(requests) <= MAX_REQUESTS
        with s3.requests(bucket) as requests:
            assert len(log.ended_jobs(view)) == count
            log.snapshot_of(view)
        assert not requests

    def test_an_overwritten_shuffle_is_opened_by_its_newest_entry(self, s3, slow):
        storage, bucket = slow
        for start in range(5):
            write(storage, start, "overwrite")
        log = LogReader(storage)
        view = log.view()
        with s3.requests(bucket) as requests:
            assert len(log.snapshot_of(view).map_outputs) == 1
        assert of_log(requests).get("GET", 0) <= 5

    @guarantee("few requests")
    def test_damage_is_damage_where_the_version_needs_it_and_only_there(self, s3):
        bucket = s3.new_bucket()
        storage = open_storage(f"s3://{bucket}/a", s3.options)
        for start in range(5):
            write(storage, start)
        write(storage, 5, "overwrite")
        write(storage, 6)

        def put(number, body):
            s3.client().put_object(Bucket=bucket, Key=f"a/{entry_path(number)}", Body=body)

        kept = storage.read(entry_path(3))
        put(3, kept[:-10])
        with pytest.raises(CorruptShuffleError, match=r"0003\.entry"):
            LogReader(storage).snapshot(5)
        with pytest.raises(CorruptShuffleError, match=r"0003\.entry"):
            collect(f"s3://{bucket}/a", storage_options=s3.options)
        put(3, kept)
        assert len(LogReader(storage).snapshot(5).map_outputs) == 5
        s3.client().delete_object(Bucket=bucket, Key=f"a/{entry_path(7)}")
        assert len(LogReader(storage).snapshot().map_outputs) == 1, "as before that commit"


class TestCollection:
    def collected(self, s3, versions, tasks=1, **how):
        """Return the requests of a collection of as many versions, and the bucket."""
        bucket = s3.new_bucket()
        storage = open_storage(f"s3://{bucket}/a", s3.options)
        for start in range(versions):
            write(storage, start, "overwrite", tasks)
        storage.put_if_absent(f"map_outputs/{uuid.uuid4().hex}/x.shuffle.data", b"x", sync=False)
        with s3.requests(bucket) as requests:
            report = collect_garbage(
                f"s3://{bucket}/a", retention=NONE, storage_options=s3.options, **how
            )
        assert len(report.expired_versions) == versions - 1
        assert len(report.fenced_jobs) == 1
        assert report.num_files == 2 * tasks * (versions - 1) + 1
        return requests, bucket

    @guarantee("few requests")
    def test_sizes_and_times_come_from_listings_and_many_go_by_one_request(self, s3):
        few, _ = self.collected(s3, 3)
        many, bucket = self.collected(s3, 6, tasks=3)
        for requests in (few, many):
            deletes = [one for one in requests if one.path.endswith("?delete")]
            assert 1 <= len(deletes) <= 6
        looks = [sum(one.method == "HEAD" for one in requests) for requests in (few, many)]
        assert looks[1] <= looks[0] + 4, "none per object; few entries are looked at for their age"
        assert open_shuffle(f"s3://{bucket}/a", storage_options=s3.options).verify().ok

    def test_a_dry_run_changes_nothing(self, s3):
        requests, _ = self.collected(s3, 3, dry_run=True)
        assert {one.method for one in requests} <= {"GET", "HEAD"}


class TestHierarchicalNamespace:
    """Directories that stay when they are empty, as in ADLS Gen2, imitated."""

    def place(self, gs):
        return open_storage(f"gs://{gs.new_bucket('hierarchical')}/a", gs.options)

    def dead_jobs(self, storage, count):
        for start in range(count):
            write(storage, start)
        merge_shuffle(storage, by="map_output")
        assert collect(storage).num_files == 2 * count
        assert len(storage.list("map_outputs")) == count + 1, "their directories stay"

    @guarantee("few requests")
    def test_a_collection_costs_what_is_there_and_not_what_ever_was(self, gs):
        seen = []
        for count in (3, 12):
            storage = self.place(gs)
            self.dead_jobs(storage, count)
            bucket = storage.root.split("/")[2]
            with gs.requests(bucket) as requests:
                report = collect(storage)
            assert report.num_files == 0
            seen.append([one for one in requests if "prefix=a/map_outputs" in one.path])
        assert len(seen[0]) == len(seen[1]) == 1

    @pytest.mark.usefixtures("small_log")
    def test_segments_of_the_log_that_were_removed_are_gone(self, gs):
        storage = self.place(gs)
        for start in range(12):
            write(storage, start, "overwrite")
        collect(storage, 3)
        log = CommitLog(storage)
        view = log.view()
        assert segment_of(view.state.base) > 0
        assert "0" * 18 in storage.list("commit_log"), "its directory stays"
        assert log.segments_before(view) == []
        bucket = storage.root.split("/")[2]
        with gs.requests(bucket) as requests:
            assert collect(storage).num_files == 0
        assert not [one for one in requests if f"/{0:018d}/" in one.path]
