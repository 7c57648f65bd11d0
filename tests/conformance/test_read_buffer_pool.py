"""CONFORMANCE, group "Read scheduler and pool": the pool."""

import threading
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from arrow_format import OptionError, ReadBufferPool
from arrow_format.errors import ClosedError, ReadBufferTimeoutError
from tests.support.waiting import wait_until


class Holder:
    """Has fetched some pieces and would read on at `offset`."""

    def __init__(self, pool, offset, *pieces):
        self.pool, self.position, self.pieces = pool, (0, offset), list(pieces)
        pool.join(self)
        for piece in pieces:
            assert pool.try_request(piece)

    def give_back(self):
        if not self.pieces:
            return False
        self.pool.recycle(self.pieces.pop())
        return True


def in_thread(function, *arguments):
    """Run in a thread; its answer, or the error, is in the list."""
    found = []

    def run():
        try:
            found.append(function(*arguments))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_waiters_are_served_on_recycle_in_the_order_they_came():
    pool = ReadBufferPool(100)
    pool.request(100)
    order = []

    def ask(number, num_bytes):
        pool.request(num_bytes)
        order.append(number)

    first, _ = in_thread(ask, 1, 90)
    wait_until(lambda: len(pool._waiting) == 1)
    second, _ = in_thread(ask, 2, 10)
    wait_until(lambda: len(pool._waiting) == 2)
    pool.recycle(50)  # enough for the second, but the first one came first
    assert not pool.try_request(1)
    assert order == []
    pool.recycle(40)
    first.join(10)
    assert order == [1]
    pool.recycle(10)
    second.join(10)
    assert order == [1, 2]
    assert pool.used_bytes == 100


def test_the_average_follows_the_readers():
    pool = ReadBufferPool(100)
    assert pool.average_bytes == 100
    a, b = Holder(pool, 0), Holder(pool, 1)
    assert pool.average_bytes == 50
    pool.leave(a)
    pool.leave(a)
    assert pool.average_bytes == 100
    pool.leave(b)
    assert pool.average_bytes == 100


def test_destroy_wakes_waiters_with_an_error():
    pool = ReadBufferPool(10)
    pool.request(10)
    thread, found = in_thread(pool.request, 5)
    wait_until(lambda: pool._waiting)
    pool.destroy("the session ended")
    thread.join(10)
    assert isinstance(found[0], ClosedError)
    assert str(found[0]) == "the session ended"
    with pytest.raises(ClosedError, match="the session ended"):
        pool.try_request(1)
    pool.recycle(10)
    assert pool.used_bytes == 0


def test_a_timeout_counts_from_the_last_operation_of_the_pool():
    pool = ReadBufferPool(100, timeout_seconds=0.4)
    pool.request(100)
    thread, found = in_thread(pool.request, 100)
    for _ in range(8):  # something happens every 0.1 s, for twice the timeout
        time.sleep(0.1)
        pool.recycle(1)
    assert thread.is_alive()
    thread.join(10)
    assert isinstance(found[0], ReadBufferTimeoutError)
    assert "waited for 100 bytes" in str(found[0])
    assert "92 of 100 are in use" in str(found[0])
    assert pool.used_bytes == 92
    assert pool.try_request(8)  # who gave up does not stand in the way


def test_what_is_needed_last_is_taken_back_first():
    pool = ReadBufferPool(100)
    early, late = Holder(pool, 10, 30, 20), Holder(pool, 90, 25, 25)
    pool.request(20, reclaim=True)
    assert (early.pieces, late.pieces) == ([30, 20], [25])
    pool.request(60, reclaim=True)
    assert (early.pieces, late.pieces) == ([], [])
    assert pool.used_bytes == 80


def test_nothing_is_taken_back_without_need():
    pool = ReadBufferPool(100)
    holder = Holder(pool, 10, 30)
    pool.request(70, reclaim=True)
    assert holder.pieces == [30]


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, "8m", True])
def test_a_bad_size_is_refused(max_bytes):
    with pytest.raises(OptionError, match=r"max_bytes="):
        ReadBufferPool(max_bytes)


class Pool(RuleBasedStateMachine):
    """Requests and recycles in any order, against a list of what is held."""

    def __init__(self):
        super().__init__()
        self.pool = ReadBufferPool(50, timeout_seconds=0)
        self.held = []
        self.most = 0

    def fits(self, num_bytes):
        """Whether a request is served: whole, and one larger than the pool alone."""
        return not self.held or sum(self.held) + num_bytes <= 50

    @rule(num_bytes=st.integers(1, 80))
    def try_request(self, num_bytes):
        fits = self.fits(num_bytes)
        assert self.pool.try_request(num_bytes) == fits
        if fits:
            self.held.append(num_bytes)

    @rule(num_bytes=st.integers(1, 80))
    def request(self, num_bytes):
        if self.fits(num_bytes):
            self.pool.request(num_bytes)
            self.held.append(num_bytes)
        else:
            with pytest.raises(ReadBufferTimeoutError):
                self.pool.request(num_bytes)

    @precondition(lambda self: self.held)
    @rule(choice=st.randoms(use_true_random=False))
    def recycle(self, choice):
        self.pool.recycle(self.held.pop(choice.randrange(len(self.held))))

    @invariant()
    def counts_what_is_held(self):
        assert self.pool.used_bytes == sum(self.held)
        assert self.pool.used_bytes <= 50 or len(self.held) == 1
        self.most = max(self.most, sum(self.held))
        assert self.pool.peak_bytes == self.most


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=50, stateful_step_count=30)
