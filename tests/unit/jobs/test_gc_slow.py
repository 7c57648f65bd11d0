"""A collection or a reader that is slow, while other collections go on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from arrow_format import collect_garbage
from arrow_format.log.delta import Delta
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.names import MAP_OUTPUT_DIRECTORY, entry_path
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.logs import add
from tests.support.small_log import SEGMENT
from tests.support.small_shuffles import N, collect, sorted_values

NONE, LONG = timedelta(0), timedelta(days=1)

pytestmark = pytest.mark.usefixtures("small_log")


class SlowStorage(PosixStorage):
    """Does something else before it lists a directory for the n-th time."""

    def __init__(self, root, directory, n, meanwhile):
        super().__init__(root)
        self._directory, self._left, self._meanwhile = directory, n, meanwhile

    def list(self, path):
        if path == self._directory:
            self._left -= 1
            if self._left == 0:
                self._meanwhile()
        return super().list(path)


@pytest.mark.slow
@guarantee("freed numbers")
def test_a_slow_collection_does_not_take_late_entries_for_those_that_expired(tmp_path):
    for number in range(2 * SEGMENT):
        add(tmp_path, number * N)
    paths = [entry_path(number) for number in range(2, 2 * SEGMENT)]
    strays = {}
    for path in paths:
        entry = decode_entry((tmp_path / path).read_bytes())
        late = replace(entry, job_id=entry.commit_id, commit_id="late", content=Delta())
        strays[path] = encode_entry(replace(late, num_outputs=0, num_rows=0, num_bytes=0))

    def meanwhile():
        collect(tmp_path, 3)  # all but the newest version, and their entries
        assert not (tmp_path / paths[0]).exists()
        for path, data in strays.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)

    storage = SlowStorage(str(tmp_path), MAP_OUTPUT_DIRECTORY, 2, meanwhile)
    collect_garbage(storage, retention=LONG)
    assert sorted_values(tmp_path) == list(range(2 * SEGMENT * N))


@pytest.mark.slow
@guarantee("ends of jobs")
def test_jobs_are_forgotten_only_when_their_files_are_gone(tmp_path):
    for number in range(3 * SEGMENT):
        add(tmp_path, number * N, mode="overwrite")
    for _ in range(3):
        assert collect(tmp_path).fenced_jobs == ()
    assert len(list((tmp_path / MAP_OUTPUT_DIRECTORY).iterdir())) == 1
    assert not (tmp_path / entry_path(2)).exists()
