"""Spark's order of values, one pair of Python values at a time: slow, and plain to see."""

from __future__ import annotations

import math
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def compare(one: Any, other: Any, order: str) -> int:
    """Negative, 0 or positive, as a sort key of this order compares two values of one type."""
    descending = order.startswith("descending")
    nulls_first = order in ("ascending", "descending nulls first")
    if one is None or other is None:
        if one is other:
            return 0
        return -1 if (one is None) == nulls_first else 1
    if isinstance(one, dict):
        inner = "descending" if descending else "ascending"
        for a, b in zip(one.values(), other.values(), strict=True):
            if found := compare(a, b, inner):
                return found
        return 0
    found = _ascending(one, other)
    return -found if descending else found


def _ascending(one: Any, other: Any) -> int:
    if isinstance(one, float) and (math.isnan(one) or math.isnan(other)):
        return math.isnan(one) - math.isnan(other)
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    return (one > other) - (one < other)


def compare_rows(one: Sequence[Any], other: Sequence[Any], orders: Sequence[str]) -> int:
    """Compare rows by several keys, the most significant first."""
    for a, b, order in zip(one, other, orders, strict=True):
        if found := compare(a, b, order):
            return found
    return 0


def sorted_rows(rows: Sequence[Sequence[Any]], orders: Sequence[str]) -> list[int]:
    """Numbers of the rows in order; ties as they stand."""
    key = cmp_to_key(lambda i, j: compare_rows(rows[i], rows[j], orders))
    return sorted(range(len(rows)), key=key)
