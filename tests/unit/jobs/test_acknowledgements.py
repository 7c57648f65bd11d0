"""An acknowledgement removes what was released, up to a bound, and touches nothing of others."""

import os
import time

import pytest

from arrow_format import open_shuffle
from arrow_format.errors import ShuffleNotFoundError
from arrow_format.jobs.gc_files import jobs_with_files
from arrow_format.log.entry import FENCE
from arrow_format.storage.open import PosixStorage, open_storage
from arrow_format.streaming.consumption import Consumer
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.logs import log_of
from tests.support.results import rows, take, write
from tests.support.small_shuffles import begin, files_below, run

DAYS = 86_400
KIND = {"result_type": "PIPELINED"}


def files_of_jobs(path):
    return [one for one in files_below(path) if one.startswith("map_outputs") and "shuffle." in one]


def acknowledge(path, version, name="a", storage=None):
    consumer = Consumer(storage or open_storage(path), name)
    try:
        consumer.register(0)
        consumer.commit(version)
    finally:
        consumer.close()


@pytest.fixture
def path(tmp_path):
    """A result of twelve versions without a consumer."""
    for value in range(1, 13):
        write(tmp_path, value, **KIND)
    return tmp_path


@guarantee("acknowledgements")
def test_it_removes_what_was_released(path):
    acknowledge(path, 12)
    assert files_of_jobs(path) == []
    assert jobs_with_files(open_storage(path)) == set()
    view = log_of(path).view()
    assert (view.oldest, view.state.version, view.newest) == (13, 13, 14), "a release, an expiry"
    with pytest.raises(ShuffleNotFoundError, match="version 12 has expired"):
        open_shuffle(path, 12)
    write(path, 13)
    assert take(path, "a") == [13]


@guarantee("acknowledgements")
def test_it_gives_up_no_job_of_others(path):
    """One that wrote nothing for two days, and may still: a collection would fence it."""
    job = begin(path)
    run(job, 0, [1])
    when = time.time() - 2 * DAYS
    for one in (path / job.directory, *(path / job.directory).iterdir()):
        os.utime(one, (when, when))
    acknowledge(path, 12)
    log = log_of(path)
    numbers = range(1, log.view().newest + 1)
    assert not [entry for entry in log.records(numbers).values() if entry.operation == FENCE]
    assert {one.rpartition("/")[0] for one in files_of_jobs(path)} == {job.directory}


class Watched(PosixStorage):
    """Remembers at which paths it is asked for anything."""

    def __init__(self, root):
        super().__init__(root)
        self.asked = []

    def files(self, path, **how):
        self.asked.append((path, how))
        return super().files(path, **how)

    def stat(self, path):
        self.asked.append((path, {}))
        return super().stat(path)

    def delete_all(self, paths):
        self.asked += [(path, {}) for path in paths]
        super().delete_all(paths)


@guarantee("acknowledgements")
def test_it_looks_at_no_job_of_others(path):
    others = [begin(path) for _ in range(5)]
    for job in others:
        run(job, 0, [1])
    watched = Watched(str(path))
    acknowledge(path, 12, storage=watched)
    assert files_of_jobs(path)
    asked = [one for one, _ in watched.asked]
    assert any(one.startswith("map_outputs/") for one in asked)
    assert not [one for one in asked if any(job.job_id in one for job in others)]
    assert not [how for one, how in watched.asked if one == "map_outputs"], "no listing of them all"


@pytest.mark.slow
def test_it_keeps_what_a_slower_consumer_has_before_it(tmp_path):
    """However old that is."""
    for value in range(1, 13):
        write(tmp_path, value, **KIND)
    for one in (tmp_path / "commit_log").rglob("*.entry"):
        os.utime(one, (0, 0))
    ConsumerRegistry(open_storage(tmp_path)).advance("slow", 11)
    acknowledge(tmp_path, 12)
    assert log_of(tmp_path).view().oldest == 12
    assert rows(open_shuffle(tmp_path)) == [12]
    assert rows(open_shuffle(tmp_path, 12)) == list(range(1, 13)), "which slow has before it"
    assert take(tmp_path, "slow") == [12]


@pytest.mark.slow
@guarantee("acknowledgements")
def test_it_reads_and_lists_what_it_changes_however_long_the_log(tmp_path, small_log):
    """Of versions that were consumed before nothing is looked at again."""
    asked = []
    for value in range(1, 13):
        write(tmp_path, value, **KIND)
    for turn in range(4):
        watched = Watched(str(tmp_path))
        acknowledge(tmp_path, open_shuffle(tmp_path).version, storage=watched)
        assert files_of_jobs(tmp_path) == []
        asked.append(len(watched.asked))
        for value in range(12):
            write(tmp_path, 100 * turn + value)
    assert max(asked[1:]) <= 1.5 * asked[0]


@pytest.mark.slow
@pytest.mark.parametrize("dirs", [1, 2])
def test_local_directories_are_cleared_too(tmp_path, dirs):
    local = [tmp_path / f"local{one}" for one in range(dirs)]
    path = tmp_path / "s"
    for value in range(1, 13):
        write(path, value, local_dirs=tuple(map(str, local)), **KIND)
    assert any(files_below(one) for one in local)
    acknowledge(path, 12)
    assert not any(files_below(one) for one in local)
    assert files_of_jobs(path) == []


@guarantee("acknowledgements")
def test_what_cannot_be_removed_is_told_and_consumed_all_the_same(path):
    (output, *_) = open_shuffle(path, 12).map_outputs[-1:]
    (path / output.files[0].data_path).unlink()
    with pytest.warns(RuntimeWarning, match=r"consumer 'a' has consumed version 10, but .*gc"):
        acknowledge(path, 10)
    assert ConsumerRegistry(open_storage(path)).progress("a") == 10
    assert len(files_of_jobs(path)) == 2 * 12 - 1, "an older version may be all that is left"
