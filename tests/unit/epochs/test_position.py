"""Positions of ranks joined to one; what is missing or does not fit is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

from arrow_format import OptionError
from arrow_format.epochs.position import Position, merge_states, position_of


def state(rank, taken, world_size=2, **more):
    batches = np.array([int(reader == rank) for reader in range(world_size)])
    position = Position(3, batches, np.zeros(4, np.int64), np.array(taken))
    return {
        **position.state(), "version": 5, "commit": "ab", "ranks": [rank], "world_size": world_size,
        "of": {"seed": 1}, **more,
    }  # fmt: skip


def test_each_rank_knows_its_own_lanes():
    merged = merge_states([state(1, [0, 7, 0, 8]), state(0, [5, 0, 6, 0])])
    assert merged["taken"] == [5, 7, 6, 8]
    assert merged["ranks"] == [0, 1]
    assert merged["batches"] == [1, 1]
    assert json.loads(json.dumps(merged)) == merged
    assert merge_states([merged]) == merged


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "give the states of all ranks"),
        ([state(0, [1, 0, 0, 0])], r"states of ranks \[0\] of 2: ranks \[1\] are missing"),
        ([state(0, [1, 0, 0, 0])] * 2, r"ranks \[1\] are missing"),
        ([state(0, [1] * 4), state(1, [1] * 4), state(1, [1] * 4)], "a rank is there twice"),
        ([state(0, [1] * 4), state(1, [1] * 4, epoch=4)], r"\[0\] and \[1\] differ in epoch: 3"),
        ([state(0, [1] * 4), state(1, [1] * 4, version=6)], "differ in version: 5 and 6"),
        ([state(0, [1] * 4), {**state(1, [1] * 4), "batches": [1]}], "differ in readers: 2 and 1"),
        ([state(0, [1] * 4), state(1, [1] * 5, origin=[0] * 5)], "differ in origin"),
        ([state(0, [1] * 4), state(1, [1] * 5, origin=[])], "differ in lanes: 4 and 5"),
        (state(0, [1] * 4), r"state 'epoch' is not one of state_dict\(\)"),
        ([None, None], r"state None is not one of state_dict\(\)"),
        ([{"epoch": 1}], r"is not one of state_dict\(\)"),
        ([state(0, [-1, 0, 0, 0])], r"is not one of state_dict\(\)"),
        ([state(0, "text")], r"is not one of state_dict\(\)"),
        ([{**state(0, [1] * 4), "batches": [-1]}], r"is not one of state_dict\(\)"),
    ],
)
def test_what_does_not_fit_is_named(states, message):
    with pytest.raises(OptionError, match=message):
        merge_states(states)


def test_as_many_readers_go_on_and_others_begin_anew():
    position = position_of(state(0, [5, 0, 6, 0]))
    same, others = position.read_by(2), position.read_by(3)
    assert same is position
    assert others.origin.tolist() == others.taken.tolist() == [5, 0, 6, 0]
    assert others.batches.tolist() == [0, 0, 0]


def test_the_position_of_one_rank_is_for_as_many_readers():
    alone = replace(position_of(state(0, [5, 0, 6, 0])), is_of_all=False)
    assert alone.read_by(2) is alone
    with pytest.raises(OptionError, match=r"of 2 readers in all.*there are 3 now: give merge_st"):
        alone.read_by(3)
