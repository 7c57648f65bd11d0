"""Where readers of an epoch are: rows taken of each lane, by any reader; pure."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrow_format.model import Int64Array

WHOLE = ("epoch", "version", "commit", "rows", "columns", "origin", "of")
"""What is equal in the states of all ranks."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in an epoch, of all readers."""

    epoch: int
    batches: Int64Array
    """Batches that each reader took since the origin; shape ``(num_readers,)``, without readers if
    none has begun."""
    origin: Int64Array
    """Rows of each lane that were taken before these readers began; shape ``(num_lanes,)``."""
    taken: Int64Array
    """Rows of each lane that were taken, those included."""
    is_of_all: bool = True
    """Whether it has what all readers took, and not those of one rank alone."""

    @property
    def num_readers(self) -> int:
        """Readers that took batches since the origin; 0: none has."""
        return len(self.batches)

    @staticmethod
    def start(epoch: int, num_lanes: int) -> Position:
        """Return the begin of an epoch."""
        none, zeros = np.zeros(0, np.int64), np.zeros(num_lanes, np.int64)
        return Position(epoch, none, zeros, zeros)

    def read_by(self, num_readers: int) -> Position:
        """Return the position as so many readers go on from it.

        As many as before go on as if they had not stopped. Others begin with what is left:
        OptionError where that is not known, since the position is of one rank alone.
        """
        if self.num_readers == num_readers:
            return self
        if self.num_readers and not self.is_of_all:
            msg = (
                f"the state is of one rank alone, of {self.num_readers} readers in all (workers of "
                f"ranks), and there are {num_readers} now: give merge_states([...]) of the states "
                "of all ranks"
            )
            raise OptionError(msg)
        return replace(self, batches=np.zeros(num_readers, np.int64), origin=self.taken)

    def state(self) -> dict[str, Any]:
        """Return it as numbers and lists."""
        return {
            "epoch": self.epoch,
            "batches": self.batches.tolist(),
            "origin": self.origin.tolist() if self.origin.any() else [],
            "taken": self.taken.tolist(),
        }


def position_of(state: Mapping[str, Any]) -> Position:
    """Return the position that :meth:`Position.state` describes; raises OptionError for others."""
    try:
        taken, batches = (np.array(state[name], np.int64) for name in ("taken", "batches"))
        origin = np.array(state["origin"] or np.zeros_like(taken), np.int64)
        position = Position(int(state["epoch"]), batches, origin, taken)
        is_one = taken.ndim == 1 and taken.shape == origin.shape and bool((origin <= taken).all())
        is_one = is_one and batches.ndim == 1 and int(batches.min(initial=0)) >= 0
        is_one = is_one and position.epoch >= 0 <= int(origin.min(initial=0))
    except (KeyError, TypeError, ValueError) as error:
        raise no_state(state) from error
    if not is_one:
        raise no_state(state)
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
    given = [*states]
    positions = [position_of(state) for state in given]
    if not given:
        msg = "states=[]: give the states of all ranks"
        raise OptionError(msg)
    first = given[0]
    wholes = [
        {
            **{name: state.get(name) for name in WHOLE},
            "readers": position.num_readers,
            "lanes": len(position.taken),
        }
        for state, position in zip(given, positions, strict=True)
    ]
    for state, whole in zip(given, wholes, strict=True):
        for name, value in whole.items():
            if value != wholes[0][name]:
                msg = (
                    f"the states of ranks {_ranks(first)} and {_ranks(state)} differ in {name}: "
                    f"{wholes[0][name]!r} and {value!r}. Save all of them in the same epoch, "
                    "between two of its batches"
                )
                raise OptionError(msg)
    ranks = [rank for state in given for rank in _ranks(state)]
    missing = sorted({*range(int(first["world_size"]))} - {*ranks})
    if missing or len({*ranks}) < len(ranks):
        what = f"ranks {missing} are missing" if missing else "a rank is there twice"
        msg = f"states of ranks {sorted(ranks)} of {first['world_size']}: {what}"
        raise OptionError(msg)
    taken, batches = (
        np.max([getattr(position, name) for position in positions], axis=0).tolist()
        for name in ("taken", "batches")
    )
    return {**first, "ranks": sorted(ranks), "taken": taken, "batches": batches}


def _ranks(state: Mapping[str, Any]) -> Sequence[int]:
    ranks: Sequence[int] = state.get("ranks", [])
    return ranks


def no_state(state: object) -> OptionError:
    """Return the error that says of something that it is no state."""
    return OptionError(f"state {reprlib.repr(state)} is not one of state_dict()")
