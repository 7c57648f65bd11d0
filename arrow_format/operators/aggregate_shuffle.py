"""The aggregation of a shuffle, in tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.tasks import Operation, WholeGroups

if TYPE_CHECKING:
    from arrow_format.operators.aggregation_plan import AggregationPlan
    from arrow_format.read.shuffle import Shuffle


def aggregate_operation(shuffle: Shuffle, plan: AggregationPlan) -> Operation:
    """Return a planned aggregation of a shuffle."""
    work = WholeGroups(partial(aggregate_range, shuffle, plan))
    return Operation((shuffle,), work, candidates=shuffle.candidates())
