"""A log that is listed slowly, while its segments are removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from arrow_format import collect_garbage, open_shuffle
from arrow_format.log.names import LOG_DIRECTORY
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.small_log import SEGMENT
from tests.support.small_shuffles import N, numbered, write_tasks

pytestmark = pytest.mark.usefixtures("small_log")


def write(path, start, mode="append"):
    return write_tasks(path, [[numbered(range(N), start)]], N, mode=mode)


def remove_segments(path):
    """Let all but the newest version expire, and remove their entries."""
    for _ in range(3):
        collect_garbage(path, retention=timedelta(0))


@guarantee("freed numbers")
def test_a_log_whose_segments_go_after_the_first_listing_is_not_an_empty_one(tmp_path):
    for number in range(3):
        write(tmp_path, number * N, mode="overwrite")
    old = PosixStorage(str(tmp_path)).list(LOG_DIRECTORY)

    def meanwhile():
        for number in range(3, 3 * SEGMENT):
            write(tmp_path, number * N, mode="overwrite")
        remove_segments(tmp_path)

    class StaleStorage(PosixStorage):
        is_first = True

        def list(self, path):
            if path == LOG_DIRECTORY and self.is_first:
                self.is_first = False
                meanwhile()
                return old
            return super().list(path)

    shuffle = open_shuffle(StaleStorage(str(tmp_path)))
    assert shuffle.version == 3 * SEGMENT
