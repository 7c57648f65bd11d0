"""What opening, committing and collecting ask of an object store, counted by the store itself."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from arrow_format import collect_garbage, open_shuffle
from arrow_format.errors import CorruptShuffleError
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import entry_path
from arrow_format.log.pending import pending_numbers
from arrow_format.log.reader import LogReader
from arrow_format.log.record import PendingNumbers, encode_record
from arrow_format.storage.object_store import MAX_REQUESTS
from arrow_format.storage.open import open_storage
from tests.support.guarantees import guarantee
from tests.support.s3_server import most_at_once, round_trips
from tests.support.small_shuffles import FAST, SCHEMA, run

N = 5
NONE = timedelta(0)


def write(storage, start=0, mode="append", tasks=1):
    job = begin_job(
        storage, SCHEMA, num_subpartitions=N, partitioner=ColumnPartitioner("p"), options=FAST
    )
    statuses = [run(job, task, range(N), start=start + N * task) for task in range(tasks)]
    return commit_job(job, statuses, mode=mode)


@pytest.fixture
def slow(s3):
    """A storage on a bucket that answers late, and the bucket's name."""
    bucket = s3.new_bucket("slow")
    return open_storage(f"s3://{bucket}/a", s3.options), bucket


def put_entries(s3, bucket, storage, newest):
    """Let the log have as many appends more, all of the same rows, without the time it takes."""
    entry, client = CommitLog(storage).entry(2), s3.client()
    for number in range(3, newest + 1):
        one = replace(entry, version=number, commit_id=uuid.uuid4().hex)
        client.put_object(Bucket=bucket, Key=f"a/{entry_path(number)}", Body=encode_record(one))


def reads_of_log(requests, suffix=".json"):
    return [one for one in requests if one.method == "GET" and suffix in one.path]


class TestLog:
    @guarantee("few requests")
    def test_entries_are_fetched_at_once_under_a_bound(self, s3, slow):
        storage, bucket = slow
        write(storage)
        write(storage, 100)
        put_entries(s3, bucket, storage, 40)
        log = LogReader(storage)
        index = log.index()
        with s3.requests(bucket) as requests:
            snapshot = log.content_at(index, 40)
        assert [entry.version for entry in snapshot.entries] == list(range(1, 41))
        assert len(requests) == 40, "each entry once, and no question before"
        assert round_trips(requests) <= 20, "6 where nothing holds up a thread"
        assert 1 < most_at_once(requests) <= MAX_REQUESTS
        with s3.requests(bucket) as requests:
            log.totals(snapshot)
        assert len(requests) == 40
        assert round_trips(requests) <= 20
        with s3.requests(bucket) as requests:
            assert len(LogReader(storage).all_ends(index, 40)) == 2
        assert len(requests) == 40
        assert round_trips(requests) <= 20
        with s3.requests(bucket) as requests:
            assert pending_numbers(LogReader(storage), index) == PendingNumbers()
        assert len(requests) == 40
        assert round_trips(requests) <= 20

    def test_an_overwritten_shuffle_is_opened_by_its_newest_entry(self, s3, slow):
        storage, bucket = slow
        for start in range(5):
            write(storage, start, "overwrite")
        with s3.requests(bucket) as requests:
            open_shuffle(f"s3://{bucket}/a", storage_options=s3.options)
        assert len(reads_of_log(requests)) == 1

    @guarantee("few requests")
    def test_damage_is_damage_where_the_version_needs_it_and_only_there(self, s3, slow):
        storage, bucket = slow
        write(storage)
        for start in range(1, 5):
            write(storage, start)
        write(storage, 5, "overwrite")
        write(storage, 6)

        def put(number, body):
            s3.client().put_object(Bucket=bucket, Key=f"a/{entry_path(number)}", Body=body)

        kept = storage.read(entry_path(3))
        put(3, kept[:-10])
        log = LogReader(storage)
        assert [one.version for one in log.snapshot().entries] == [6, 7]
        with pytest.raises(CorruptShuffleError, match=r"0003\.json"):
            log.snapshot(5)
        with pytest.raises(CorruptShuffleError, match=r"0003\.json"):
            LogReader(storage).find_job("0" * 32)
        with pytest.raises(CorruptShuffleError, match=r"0003\.json"):
            collect_garbage(f"s3://{bucket}/a", retention=NONE, storage_options=s3.options)
        put(3, kept)
        assert [one.version for one in log.snapshot(5).entries] == [1, 2, 3, 4, 5]
        s3.client().delete_object(Bucket=bucket, Key=f"a/{entry_path(4)}")
        with pytest.raises(CorruptShuffleError, match="has version 7 but not 4"):
            LogReader(storage).snapshot()


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
        assert report.num_files >= 4 * (versions - 1) + 1
        return requests, bucket

    @guarantee("few requests")
    def test_sizes_and_times_come_from_listings_and_many_go_by_one_request(self, s3):
        few, _ = self.collected(s3, 3)
        many, bucket = self.collected(s3, 6, tasks=3)
        for requests in (few, many):
            deletes = [one for one in requests if one.path.endswith("?delete")]
            assert 1 <= len(deletes) <= 6, "files, totals, entries, checkpoints; and of a probe"
        looks = [sum(one.method == "HEAD" for one in requests) for requests in (few, many)]
        assert looks[0] == looks[1], "none per object"
        assert len(reads_of_log(many)) - len(reads_of_log(few)) <= 2 * 3, "entries are read"
        assert open_shuffle(f"s3://{bucket}/a", storage_options=s3.options).verify().ok

    def test_a_dry_run_changes_nothing(self, s3):
        requests, _ = self.collected(s3, 3, dry_run=True)
        assert {one.method for one in requests} <= {"GET", "HEAD"}


def test_a_commit_reads_no_entry_twice(s3, slow):
    storage, bucket = slow
    for start in range(3):
        write(storage, start)
    with s3.requests(bucket) as requests:
        write(storage, 10)
    read = [one.path for one in reads_of_log(requests)]
    assert len(read) == len(set(read)) == 3
