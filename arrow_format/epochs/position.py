"""Where readers of an epoch are: rows taken of each lane, whoever took them; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrow_format.model import Int64Array

WHOLE = ("epoch", "version", "commit", "readers", "origin", "of")
"""What is equal in the states of all ranks."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in an epoch, of all readers."""

    epoch: int
    num_readers: int
    """Readers that took rows since the origin; 0: none has."""
    origin: Int64Array
    """Rows of each lane that were taken before these readers began; shape ``(num_lanes,)``."""
    taken: Int64Array
    """Rows of each lane that were taken, those included."""

    @staticmethod
    def start(epoch: int, num_lanes: int) -> Position:
        """Return the begin of an epoch."""
        return Position(epoch, 0, np.zeros(num_lanes, np.int64), np.zeros(num_lanes, np.int64))

    def read_by(self, num_readers: int) -> Position:
        """Return the position as so many readers go on from it.

        As many as before go on as if they had not stopped. Others begin anew, with what is left.
        """
        if self.num_readers == num_readers:
            return self
        return replace(self, num_readers=num_readers, origin=self.taken)

    def with_taken(self, taken: Int64Array) -> Position:
        """Return the position after more rows were taken."""
        return replace(self, taken=taken)

    def taken_by(self, reader: int) -> int:
        """Return how many rows a reader took since the origin."""
        own = slice(reader, None, self.num_readers)
        return int((self.taken[own] - self.origin[own]).sum())

    def state(self) -> dict[str, Any]:
        """Return it as numbers and lists."""
        return {
            "epoch": self.epoch,
            "readers": self.num_readers,
            "origin": self.origin.tolist() if self.origin.any() else [],
            "taken": self.taken.tolist(),
        }


def position_of(state: Mapping[str, Any]) -> Position:
    """Return the position that :meth:`Position.state` describes; raises OptionError for others."""
    try:
        taken = np.array(state["taken"], np.int64)
        origin = np.array(state["origin"] or np.zeros_like(taken), np.int64)
        position = Position(int(state["epoch"]), int(state["readers"]), origin, taken)
        is_one = taken.ndim == 1 and taken.shape == origin.shape and bool((origin <= taken).all())
        is_one = is_one and position.epoch >= 0 <= int(origin.min(initial=0))
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(_no_state(state)) from error
    if not is_one:
        raise OptionError(_no_state(state))
    return position


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks, so that any number of readers can go on.

    .. code-block:: python

        states = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, dataset.state_dict())
        state = arrow_shuffle.merge_states(states)

    A rank knows which rows it has taken itself. Ranks need not be in step: each of them has stopped
    where it did.

    Parameters
    ----------
    states
        What ``state_dict()`` returned on each rank, of the same epoch, in any order.

    Returns
    -------
    dict
        A state of numbers, texts, lists and dicts, for ``load_state_dict`` on any rank.

    Raises
    ------
    OptionError
        A rank is missing or there twice, or states are of other epochs, versions or options.
    """
    given = [dict(state) for state in states]
    if not given:
        msg = "states=[]: give the states of all ranks"
        raise OptionError(msg)
    first = given[0]
    positions = [position_of(state) for state in given]
    for state in given[1:]:
        for name in WHOLE:
            if state.get(name) != first.get(name):
                msg = (
                    f"the states of ranks {_ranks(first)} and {_ranks(state)} differ in {name}: "
                    f"{first.get(name)!r} and {state.get(name)!r}. Save all of them in the same "
                    "epoch, between two of its batches"
                )
                raise OptionError(msg)
    ranks = [rank for state in given for rank in _ranks(state)]
    missing = sorted({*range(int(first["world_size"]))} - {*ranks})
    if missing or len({*ranks}) < len(ranks):
        what = f"ranks {missing} are missing" if missing else "a rank is there twice"
        msg = f"states of ranks {sorted(ranks)} of {first['world_size']}: {what}"
        raise OptionError(msg)
    taken = np.max([position.taken for position in positions], axis=0)
    return {**first, "ranks": sorted(ranks), "taken": taken.tolist()}


def _ranks(state: Mapping[str, Any]) -> Sequence[int]:
    ranks: Sequence[int] = state.get("ranks", [])
    return ranks


def _no_state(state: Mapping[str, Any]) -> str:
    return f"state {state!r} is not one of state_dict()"
