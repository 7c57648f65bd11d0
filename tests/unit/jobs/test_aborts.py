"""A job is committed or aborted, never both, whatever processes do and wherever one is stopped."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    CommitConflictError,
    CorruptShuffleError,
    MergePolicy,
    ShuffleError,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.errors import StorageError, UnsettledCommitError
from arrow_format.jobs import cleanup, replacement
from arrow_format.jobs import write as write_module
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.names import entry_path
from arrow_format.options import WriteOptions
from arrow_format.storage.local_dirs import ROOT_LIST_NAME
from arrow_format.storage.open import PosixStorage
from tests.support import small_shuffles
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import (
    before_call,
    before_first_entry,
    instead_of_first_entry,
)
from tests.support.logs import log_of
from tests.support.small_shuffles import FAST, files_below, sorted_values, write_rows

ROWS = pa.record_batch({"k": pa.array([0, 1, 2, 3] * 5), "v": pa.array(range(20))})
CALLS = ("put_if_absent", "stat", "list", "read", "delete_all", "prune")
EAGER = MergePolicy(rewrite="always")


def begin(place, **options):
    options = WriteOptions(sync=False, **options)
    job = small_shuffles.begin(place, ROWS.schema, 4, ColumnPartitioner("k"), options)
    return job, [run_map_task(job, 0, 0, [ROWS])]


def write(path):
    return commit_job(*begin(path), mode="append")


def end_of(job):
    return log_of(job.storage).find_job(job.job_id)


def is_whole(path):
    shuffle = open_shuffle(path)
    return shuffle.verify().ok and shuffle.num_rows % 20 == 0


# Two processes -----------------------------------------------------------------------------------


def test_an_aborted_job_cannot_be_committed(tmp_path):
    job, statuses = begin(tmp_path / "x")
    abort_job(job)
    with pytest.raises(CommitConflictError, match=r"was aborted, or given up .*are removed"):
        commit_job(job, statuses)
    assert end_of(job).fenced
    assert log_of(job.storage).view().state.version == 0
    assert [name for name in files_below(tmp_path) if "." in name] == [f"x/{entry_path(1)}"]


@guarantee("fences")
def test_an_abort_after_the_fence_of_a_dead_one_removes_what_that_left(tmp_path, monkeypatch):
    job, statuses = begin(tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "remove_files", dies)
        with pytest.raises(KeyboardInterrupt):
            abort_job(job)
    assert end_of(job).fenced
    assert list((tmp_path / "x" / job.directory).iterdir())
    with pytest.raises(CommitConflictError, match="was aborted"):
        commit_job(job, statuses)
    abort_job(job)
    assert not (tmp_path / "x" / "map_outputs").exists()
    assert log_of(job.storage).newest_version() == 1, "one fence is enough"


def dies(*_, **__):
    raise KeyboardInterrupt


def test_an_abort_after_the_commit_changes_nothing(tmp_path):
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    before = files_below(tmp_path)
    for alone in (False, True):
        abort_job(job, alone=alone)
        assert files_below(tmp_path) == before
    assert is_whole(tmp_path / "x")


@pytest.mark.slow
@guarantee("fences")
@pytest.mark.parametrize("puts_come_late", [False, True])
def test_a_commit_and_an_abort_at_each_step_of_the_other(tmp_path, puts_come_late):
    """Whoever gets the number of the log wins: all rows are there, or none and no file."""
    outcomes = set()
    for step in count():
        path = tmp_path / str(step)
        write(path)
        job, statuses = begin(path)
        other = pickle.loads(pickle.dumps(job))
        object.__setattr__(other.storage, "puts_may_come_late", puts_come_late)
        came, refused = abort_within(step, other, partial(commit_job, job, statuses, mode="append"))
        outcomes.add(check_outcome(path, job, refused=refused))
        if not came:
            break
    assert step > 6
    assert outcomes == {"committed", "aborted"}


@pytest.mark.slow
@guarantee("fences")
def test_an_abort_and_a_commit_at_each_step_of_the_other(tmp_path):
    outcomes = set()
    for step in count():
        path = tmp_path / str(step)
        write(path)
        job, statuses = begin(path)
        with before_call(step, partial(is_refused, job, statuses), CALLS) as refused:
            abort_job(pickle.loads(pickle.dumps(job)))
        if not refused:
            break
        outcomes.add(check_outcome(path, job, refused=refused[0]))
    assert step > 6
    assert outcomes == {"committed", "aborted"}


def is_refused(job, statuses):
    try:
        commit_job(job, statuses, mode="append")
    except ShuffleError:
        return True
    return False


def abort_within(step, job, act):
    """Do something, with an abort before its call number `step`; whether it came and won."""
    with before_call(step, partial(abort_job, job), CALLS) as came:
        try:
            act()
        except (CommitConflictError, CorruptShuffleError):
            return bool(came), True
    return bool(came), False


def check_outcome(path, job, *, refused):
    """Check that all or nothing of a job is there; which of both."""
    assert end_of(job).fenced is refused
    assert open_shuffle(path).num_rows == 20 + 20 * (not refused)
    assert is_whole(path)
    directory = path / job.directory
    assert directory.exists() is not refused
    return "aborted" if refused else "committed"


def test_a_job_committed_twice_concurrently_counts_once(tmp_path):
    """By another process, just before the first puts its entry."""
    write(tmp_path / "x")
    job, statuses = begin(tmp_path / "x")
    again = pickle.loads(pickle.dumps(job))
    receipts = []

    with before_first_entry(lambda: receipts.append(commit_job(again, statuses, mode="append"))):
        receipts.append(commit_job(job, statuses, mode="append"))
    assert [receipt.version for receipt in receipts] == [2, 2]
    assert open_shuffle(tmp_path / "x").num_rows == 40
    assert job.job_id not in cleanup._committing


# A put on its way to a store ---------------------------------------------------------------------


class Store(PosixStorage):
    """As an object store: an entry may be on its way, and is carried out later."""

    puts_may_come_late = True

    def __init__(self, root, *, errors, carries_out="never", is_down=0):
        super().__init__(str(root))
        self.errors = list(errors)
        self.carries_out = carries_out
        self.is_down = is_down
        self.late = []

    def put_if_absent(self, path, data, *, sync):
        put = partial(super().put_if_absent, path, data, sync=sync)
        if path.endswith(".entry"):
            if self.errors:
                if self.carries_out == "before the fence":
                    put()
                else:
                    self.late.append(put)
                raise self.errors.pop(0)
            if self.is_down:
                self.is_down -= 1
                msg = f"{self.root}: the store does not answer"
                raise StorageError(msg)
        put()

    def __reduce__(self):
        return PosixStorage, (self.root,)


def on_store(path, begins, act, **store):
    """Return a store, what does something there, and what tells the job that this began.

    ``begins`` is the module and the name of the function that begins it.
    """
    storage, jobs = Store(path, **store), []
    real = getattr(*begins)

    def acts():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*begins, lambda *of, **how: jobs.append(real(*of, **how)) or jobs[-1])
            act(storage)

    return storage, acts, lambda: jobs[-1]


def commit_of(path, **store):
    by_k = {"partitioner": ColumnPartitioner("k"), "n": 4, "mode": "append"}
    act = partial(write_rows, rows=[ROWS], **by_k)
    return on_store(path, (write_module, "begin_job"), act, **store)


def merge_of(path, **store):
    how = {"policy": EAGER, "options": FAST, "by": "map_output"}
    act = partial(merge_shuffle, **how)
    return on_store(path, (replacement, "replacing_job"), act, **store)


BOTH = pytest.mark.parametrize("operation", [commit_of, merge_of])


INTERRUPT, TWICE = [KeyboardInterrupt()], [KeyboardInterrupt()] * 2
NO_ANSWER = [StorageError("no answer")]
ERRORS = pytest.mark.parametrize(
    "errors", [INTERRUPT, TWICE, NO_ANSWER], ids=["interrupt", "two interrupts", "no answer"]
)


def prepare(path):
    for _ in range(2):
        write(path)
    return sorted_values(path)


@guarantee("fences", "unanswered put")
@BOTH
@ERRORS
def test_a_commit_that_fails_while_its_entry_is_on_its_way_and_comes_late(path, operation, errors):
    """Also where the fence is interrupted: the abort puts another, before it removes files."""
    before = prepare(path)
    storage, act, job = operation(path, errors=errors)
    with pytest.raises(type(errors[0])):
        act()
    assert end_of(job()).fenced
    assert not (path / job().directory).exists()
    for late in storage.late:
        with pytest.raises(StorageError):
            late()  # its number is taken
    assert sorted_values(path) == before
    assert write(path).num_rows == 20
    assert is_whole(path)


@guarantee("fences", "unanswered put")
@BOTH
@pytest.mark.parametrize(
    "error", [*INTERRUPT, *NO_ANSWER, OSError("directory could not be synced")], ids=type
)
def test_a_commit_that_fails_after_its_entry_was_carried_out_says_so(path, operation, error):
    before = prepare(path)
    _, act, job = operation(path, errors=[error], carries_out="before the fence")
    with pytest.raises((KeyboardInterrupt, ShuffleError)) as raised:
        act()
    said = f"{raised.value} {getattr(raised.value, '__notes__', '')}"
    assert "committed as version 3" in said
    assert "Do not write the rows again" in said
    assert not end_of(job()).fenced
    assert len(sorted_values(path)) == len(before) + 20 * (operation is commit_of)
    assert is_whole(path)


@guarantee("fences", "unanswered put")
@BOTH
@ERRORS
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_commit_that_fails_where_the_store_takes_no_fence_either(
    path, operation, errors, carried_out
):
    """Files stay: the entry may appear at any time."""
    before = prepare(path)
    storage, act, job = operation(path, errors=errors, is_down=100)
    with pytest.raises((KeyboardInterrupt, UnsettledCommitError)) as caught:
        act()
    assert isinstance(caught.value, KeyboardInterrupt) is (errors is not NO_ANSWER)
    said = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert ("it is not known whether job" in said) is (errors is not TWICE)
    assert "could not be removed" in said
    assert list((path / job().directory).iterdir())
    if carried_out:
        storage.late[0]()
        assert len(sorted_values(path)) == len(before) + 20 * (operation is commit_of)
    else:
        storage.is_down = 0
        abort_job(job(), alone=True)  # still with a fence: the entry may be on its way
        assert end_of(job()).fenced
        assert sorted_values(path) == before
    assert is_whole(path)


def test_a_commit_without_an_answer_is_unsettled_where_the_fence_has_none(path, monkeypatch):
    prepare(path)
    storage = Store(path, errors=(), is_down=100)
    job, statuses = begin(storage)
    with pytest.raises(UnsettledCommitError, match=r"not known whether .* Its files were left"):
        commit_job(job, statuses, mode="append")
    assert list((path / job.directory).iterdir())
    storage.is_down = 0
    assert commit_job(job, statuses, mode="append").version == 3
    assert job.job_id not in cleanup._committing


# What is left ------------------------------------------------------------------------------------


def opened(tmp_path, monkeypatch=None):
    """A job whose directories exist; where asked, all of its files are in a local one."""
    if monkeypatch is not None:
        monkeypatch.setattr("arrow_format.write.map_output.first_root", lambda *_: 1)
    options = WriteOptions(sync=False, local_dirs=(str(tmp_path / "local"),))
    job = small_shuffles.begin(tmp_path / "x", ROWS.schema, 4, ColumnPartitioner("k"), options)
    open_target(job, "append")
    return job


FENCE = ["x", "x/commit_log", f"x/commit_log/{0:018d}", f"x/{entry_path(1)}"]


@pytest.mark.parametrize("alone", [True, False])
def test_the_first_write_of_one_process_leaves_nothing_and_another_a_fence(tmp_path, alone):
    """Through Spark's abort a commit may be under way elsewhere, so that takes a number."""
    job = opened(tmp_path)
    run_map_task(job, 0, 0, [ROWS])
    abort_job(job, alone=alone)
    assert files_below(tmp_path) == ["local", *(FENCE[:2] if alone else FENCE)]


@pytest.mark.parametrize("alone", [True, False])
def test_an_abort_of_a_job_that_has_no_directory_leaves_nothing(tmp_path, alone):
    job = small_shuffles.begin(tmp_path / "x")
    abort_job(job, alone=alone)
    assert files_below(tmp_path) == []


def test_alone_takes_no_number_beside_other_versions(tmp_path):
    write(tmp_path / "x")
    before = files_below(tmp_path)
    job, _ = begin(tmp_path / "x")
    abort_job(job, alone=True)
    assert files_below(tmp_path) == before
    assert end_of(job) is None


def test_a_consumer_that_waits_learns_of_a_failure_though_the_writer_was_alone(tmp_path):
    (tmp_path / "x" / "consumers" / "a").mkdir(parents=True)
    for failed in (False, True):
        job, _ = begin(tmp_path / "x")
        abort_job(job, failed=failed, alone=True)
        last = log_of(job.storage).view().last
        assert (last is not None and last.failed) is failed


@pytest.mark.slow
def test_an_abort_that_lost_to_a_commit_leaves_files_in_local_directories(tmp_path, monkeypatch):
    for step in count():
        path = tmp_path / str(step)
        path.mkdir()
        job = opened(path, monkeypatch)
        statuses = [run_map_task(job, 0, 0, [ROWS])]
        assert [file.root for file in statuses[0].output.files] == list(job.local_roots)
        came, refused = abort_within(step, job, partial(commit_job, job, statuses, mode="append"))
        if not refused:
            assert open_shuffle(path / "x").verify().num_rows == 20
        else:
            assert files_below(path / "local") == []
        if not came:
            break
    assert step > 7


def test_a_commit_tried_again_is_not_aborted_though_its_directory_was_pruned(tmp_path, monkeypatch):
    job = opened(tmp_path, monkeypatch)
    statuses = [run_map_task(job, 0, 0, [ROWS])]
    # Nothing but the list of roots keeps it; it does not depend on that.
    (tmp_path / "x" / job.directory / ROOT_LIST_NAME).unlink()
    (tmp_path / "x" / job.directory).rmdir()

    def abort_after_put(put, _):
        put()
        abort_job(pickle.loads(pickle.dumps(job)))

    with instead_of_first_entry(abort_after_put):
        commit_job(job, statuses, mode="append")
    assert open_shuffle(tmp_path / "x").verify().num_rows == 20


def test_no_commit_comes_between_the_files_of_an_abort(tmp_path, monkeypatch):
    """The fence is in the log before the first file is removed."""
    job = opened(tmp_path, monkeypatch)
    statuses = [run_map_task(job, 0, 0, [ROWS])]
    real, refused = cleanup.clear_roots, []

    def clear(*arguments):
        with pytest.raises(CommitConflictError, match="was aborted"):
            commit_job(job, statuses)
        refused.append(True)
        real(*arguments)

    monkeypatch.setattr(cleanup, "clear_roots", clear)
    abort_job(job)
    assert refused
    assert files_below(tmp_path) == ["local", *FENCE]


@pytest.mark.parametrize("alone", [True, False])
def test_an_abort_after_the_job_directory_is_gone_clears_local_directories(
    tmp_path, monkeypatch, alone
):
    job = opened(tmp_path, monkeypatch)
    run_map_task(job, 0, 0, [ROWS])
    shutil.rmtree(tmp_path / "x")
    abort_job(job, alone=alone)
    assert files_below(tmp_path / "local") == []


def test_what_follows_an_abort_is_the_next_number(tmp_path):
    """A fence is no version: it cannot be opened, and rows before and after it are whole."""
    write(tmp_path / "x")
    job, _ = begin(tmp_path / "x")
    abort_job(job)
    assert write(tmp_path / "x").version == 3
    with pytest.raises(ShuffleError, match="version 2 is not there; that number gives up"):
        open_shuffle(tmp_path / "x", 2)
    assert open_shuffle(tmp_path / "x").num_rows == 40


@guarantee("failed write")
def test_aborts_and_commits_of_many_threads(path):
    """Half of the jobs is aborted while it commits."""
    write(path)

    def work(number):
        """Whether it was committed."""
        job, statuses = begin(path)
        with ThreadPoolExecutor() as pool:
            if number % 2:
                pool.submit(abort_job, pickle.loads(pickle.dumps(job)))
            refused = is_refused(job, statuses)
        assert end_of(job).fenced is refused
        return not refused

    with ThreadPoolExecutor() as pool:
        outcomes = [*pool.map(work, range(8))]
    assert all(outcomes[::2])
    assert open_shuffle(path).num_rows == 20 * (1 + sum(outcomes))
    assert is_whole(path)


def test_a_pinned_version_is_that_very_version(tmp_path):
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    pinned = pickle.dumps(open_shuffle(tmp_path / "x"))
    assert pickle.loads(pinned).num_rows == 20
    (tmp_path / "x").rename(tmp_path / "y")
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    with pytest.raises(CorruptShuffleError, match="the directory was replaced"):
        pickle.loads(pinned).read().read_all()
