"""The entries of a log continue each other, and a commit costs the same however many there are."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from arrow_format import open_shuffle
from arrow_format.errors import CorruptShuffleError
from arrow_format.log.names import CHECKPOINT_INTERVAL, entry_path
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.logs import add
from tests.support.small_shuffles import N


@pytest.fixture
def two_histories(tmp_path):
    """A shuffle, and a copy of its first two versions, which went on by itself."""
    one, other = tmp_path / "one", tmp_path / "other"
    for number in range(2):
        add(one, number * N)
    shutil.copytree(one, other)
    for number in range(2, 5):
        add(one, number * N)
        add(other, 100 + number * N)
    return one, other


@guarantee("one history")
@pytest.mark.parametrize("number", [3, 4])
def test_an_entry_of_another_copy_is_an_error(two_histories, number):
    one, other = two_histories
    shutil.copy(other / entry_path(number), one / entry_path(number))
    with pytest.raises(CorruptShuffleError, match="does not continue the entry before it"):
        open_shuffle(one)


@guarantee("one history")
def test_versions_before_the_mixture_can_be_opened(two_histories):
    one, other = two_histories
    shutil.copy(other / entry_path(4), one / entry_path(4))
    assert open_shuffle(one, version=3).num_rows == 3 * N


@guarantee("few requests")
def test_an_append_asks_the_log_as_much_however_long_it_is(tmp_path, monkeypatch):
    asked = Counter()

    def counted(name):
        method = getattr(PosixStorage, name)

        def counting(self, path, *args, **options):
            asked[name] += path.startswith("commit_log")
            return method(self, path, *args, **options)

        monkeypatch.setattr(PosixStorage, name, counting)

    add(tmp_path, 0)
    for name in ("list", "read", "put_if_absent", "stat", "delete"):
        counted(name)
    for number in range(1, CHECKPOINT_INTERVAL - 1):  # the entry of that number puts a checkpoint
        asked.clear()
        add(tmp_path, number * N)
        assert +asked == Counter(list=2, read=2, stat=1, put_if_absent=1)
