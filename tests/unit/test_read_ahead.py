"""Reading ahead of a walk down: how much, how many at once, and that errors keep their turn."""

import threading

import pytest

from arrow_format.concurrency import ReadAhead
from arrow_format.errors import CorruptShuffleError


class Objects:
    """Numbered objects that remember who read them; some are damaged."""

    def __init__(self, damaged=()):
        self.damaged = damaged
        self.kept = {}
        self.reads = []
        self.by = set()

    def read(self, number):
        if number not in self.kept:
            self.reads.append(number)
            self.by.add(threading.get_ident())
            if number in self.damaged:
                msg = f"{number} is damaged"
                raise CorruptShuffleError(msg)
            self.kept[number] = number
        return self.kept[number]


def walk(objects, newest, end, *, max_requests=8, **how):
    """Walk down to `end`, and return what was read when each number's turn came."""
    ahead = ReadAhead(objects.read, max_requests, **how)
    there = []
    for number in range(newest, end - 1, -1):
        ahead.come_to(number)
        there.append(len(objects.kept))
        objects.read(number)
    return there


def test_the_newest_comes_alone_and_then_more_and_more():
    objects = Objects()
    there = walk(objects, 100, 1)
    assert sorted(objects.reads) == list(range(1, 101)), "each once"
    assert there[:3] == [0, 9, 9]
    assert sorted({*there}) == [0, 9, 25, 57, 100]


def test_a_walk_that_ends_early_has_read_little_in_vain():
    objects = Objects()
    walk(objects, 100, 100)
    assert objects.reads == [100]
    walk(objects, 99, 97)
    assert len(objects.reads) <= 10


def test_nothing_is_read_ahead_where_one_at_a_time_is_best():
    objects = Objects()
    assert walk(objects, 30, 1, max_requests=1) == list(range(30))
    assert objects.reads == list(range(30, 0, -1))
    assert objects.by == {threading.get_ident()}


@pytest.mark.parametrize(("how", "lowest"), [({"stops": {70, 20}}, 71), ({"floor": 80}, 81)])
def test_nothing_is_read_beyond_where_the_walk_may_end(how, lowest):
    objects = Objects()
    walk(objects, 100, lowest, **how)
    assert sorted(objects.reads) == list(range(lowest, 101))


def test_a_walk_that_passes_a_stop_goes_on():
    objects = Objects()
    walk(objects, 100, 1, stops={70, 20})
    assert sorted(objects.reads) == list(range(1, 101))


def test_all_at_once_where_the_walk_goes_all_the_way():
    objects = Objects()
    assert walk(objects, 40, 1, width=40)[0] == 40


def test_damage_counts_when_its_turn_comes():
    objects = Objects(damaged={95, 60})
    walk(objects, 100, 96)
    assert 94 in objects.kept, "read ahead, past the damage"
    with pytest.raises(CorruptShuffleError, match="95 is damaged"):
        walk(objects, 95, 1)
