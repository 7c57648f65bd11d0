"""A log that is listed slowly, while its segments are removed."""

from __future__ import annotations

import pytest

from arrow_format import open_shuffle
from arrow_format.log.names import LOG_DIRECTORY
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.logs import add
from tests.support.small_log import SEGMENT
from tests.support.small_shuffles import N, collect

pytestmark = pytest.mark.usefixtures("small_log")


@pytest.mark.slow
@guarantee("freed numbers")
def test_a_log_whose_segments_go_after_the_first_listing_is_not_an_empty_one(tmp_path):
    for number in range(3):
        add(tmp_path, number * N, mode="overwrite")
    old = PosixStorage(str(tmp_path)).list(LOG_DIRECTORY)

    def meanwhile():
        for number in range(3, 3 * SEGMENT):
            add(tmp_path, number * N, mode="overwrite")
        collect(tmp_path, 3)  # all but the newest version, and their entries

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
