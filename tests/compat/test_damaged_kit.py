"""One bit of the kit flipped, or a file cut: rows as they were, or an error; and it is found."""

from collections import Counter

import pytest

from tests.compat.flips import ROWS, WRONG, damage, times_of
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee

TRIED: Counter[str] = Counter()


@pytest.mark.slow
@guarantee("noticed damage", "verify")
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_damage_anywhere_in_the_kit(case):
    tried = damage(case, times_of(case, times(5, 1_000)), seed=0)
    TRIED.update(tried)
    assert not [end for end in tried if end.endswith(WRONG)]


def test_what_was_tried_of_the_kit():
    print(f"\ndamages of the kit: {TRIED.total():,} {dict(sorted(TRIED.items()))}")
    assert not any(end.endswith(WRONG) for end in TRIED)
