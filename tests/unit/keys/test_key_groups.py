"""The group of each row: the same number exactly for equal keys, by every way of finding it."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys import key_numbers
from arrow_format.keys.key_numbers import key_groups

FAR = 2**40
COLUMNS = {
    "near": (pa.int64(), [1, 2, 3, None]),
    "far": (pa.int64(), [FAR, -FAR, 0, None]),
    "widest": (pa.int64(), [2**63 - 1, -(2**63), 0]),
    "float": (pa.float64(), [0.0, -0.0, math.nan, 1.5, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["", "a", "é", None]),
    "bytes": (pa.binary(2), [b"ab", b"aa", None]),
    "decimal": (pa.decimal128(30, 2), [Decimal("1.00"), Decimal(10**20), None]),
    "short decimal": (pa.decimal32(5, 2), [Decimal("1.00"), Decimal("2.00"), None]),
    "list": (pa.list_(pa.int8()), [[], [1], [1, 2], None]),
    "void": (pa.null(), [None]),
}


@given(
    st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.lists(
                st.tuples(*(st.sampled_from(COLUMNS[name][1]) for name in names)), max_size=20
            ),
        )
    )
)
def test_rows_of_equal_keys_are_one_group(made):
    names, rows = made
    columns = [pa.array([row[i] for row in rows], COLUMNS[name][0]) for i, name in enumerate(names)]
    groups, firsts = key_groups(columns)
    # Texts of 0.0 and -0.0 differ, those of NaN do not.
    keys = [repr([0.0 if value == 0 and isinstance(value, float) else value for value in row])
            for row in rows]  # fmt: skip
    found = {}
    for key, group in zip(keys, groups.tolist(), strict=True):
        assert found.setdefault(key, group) == group
    assert sorted(found.values()) == list(range(len(firsts)))
    assert groups[firsts].tolist() == list(range(len(firsts)))


@pytest.mark.parametrize("factor", [1, 7_919, 2**40 + 1])
def test_many_rows(factor):
    keys = np.random.default_rng(1).integers(0, 3_000, 20_000) * factor
    groups, firsts = key_groups([pa.array(keys)])
    assert len(firsts) == len(np.unique(keys))
    assert (keys[firsts][groups] == keys).all()


def test_equal_digests_of_different_numbers_are_noticed(monkeypatch):
    monkeypatch.setattr(key_numbers, "_SPREAD", np.uint64(1))
    keys = np.array([2**62 + 1, 2**62 + 2, -(2**62), 2**62 + 1] * 1_500)
    groups, firsts = key_groups([pa.array(keys)])
    assert (keys[firsts][groups] == keys).all()
    assert len(firsts) == 3
