"""Spark's order of values, one pair of Python values at a time: slow, and plain to see."""

from __future__ import annotations

import math
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_key(value: Any) -> Any:
    """Return what Python compares as Spark compares keys: one NaN, one zero, at any depth."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple(as_key(value[name]) for name in sorted(value))
    return ["list", *map(as_key, value)] if isinstance(value, list) else value


def compare(left: Any, right: Any, order: str) -> int:
    """Return -1, 0 or 1, as a sort key of this order compares two values of one type."""
    descending = order.startswith("descending")
    nulls_first = order in ("ascending", "descending nulls first")
    if left is None or right is None:
        if left is right:
            return 0
        return -1 if (left is None) == nulls_first else 1
    if isinstance(left, dict):
        inner = "descending" if descending else "ascending"
        return compare_rows([*left.values()], [*right.values()], [inner] * len(left))
    sign = _ascending(left, right)
    return -sign if descending else sign


def _ascending(left: Any, right: Any) -> int:
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return math.isnan(left) - math.isnan(right)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return int(left > right) - int(left < right)


def compare_rows(left: Sequence[Any], right: Sequence[Any], orders: Sequence[str]) -> int:
    """Compare rows by several keys, the most significant first."""
    for a, b, order in zip(left, right, orders, strict=True):
        if sign := compare(a, b, order):
            return sign
    return 0


def sorted_rows(rows: Sequence[Sequence[Any]], orders: Sequence[str]) -> list[int]:
    """Return the numbers of the rows in order; ties in the given order."""

    def compare_numbers(i: int, j: int) -> int:
        return compare_rows(rows[i], rows[j], orders)

    return sorted(range(len(rows)), key=cmp_to_key(compare_numbers))
