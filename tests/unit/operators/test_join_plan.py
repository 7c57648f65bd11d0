"""The plan of a join: which subpartitions can have rows of the result."""

import pytest

from arrow_format.operators.join_plan import JoinPlan

N = 6


@pytest.mark.parametrize(
    ("how", "has_rows"),
    [
        ("inner", lambda left, right: left and right),
        ("semi", lambda left, right: left and right),
        ("left", lambda left, right: left),
        ("anti", lambda left, right: left),
        ("right", lambda left, right: right),
        ("full", lambda left, right: left or right),
    ],
)
@pytest.mark.parametrize("left", [None, [], [0, 2, 5]])
@pytest.mark.parametrize("right", [None, [], [1, 2]])
def test_candidates_of_a_join_are_where_its_kind_can_have_rows(how, has_rows, left, right):
    found = JoinPlan(how, (), ()).candidates(left, right)
    sides = [[*range(N)] if side is None else side for side in (left, right)]
    expected = [i for i in range(N) if has_rows(i in sides[0], i in sides[1])]
    assert [*(range(N) if found is None else found)] == expected
