"""The group of each row: the same number exactly for equal keys, by every way of finding it."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys import key_groups as module
from arrow_format.keys.key_groups import key_groups

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
    groups, last = key_groups(columns)
    # Texts of 0.0 and -0.0 differ, those of NaN do not.
    keys = [repr([0.0 if value == 0 and isinstance(value, float) else value for value in row])
            for row in rows]  # fmt: skip
    found = {}
    for key, group in zip(keys, groups.tolist(), strict=True):
        assert found.setdefault(key, group) == group
    assert sorted(found.values()) == list(range(len(last)))
    assert groups[last].tolist() == list(range(len(last)))
    of_group = {group: row for row, group in enumerate(groups.tolist())}
    assert last.tolist() == [of_group[group] for group in range(len(last))]


@pytest.mark.parametrize("factor", [1, 7_919, 2**40 + 1])
def test_many_rows(factor):
    keys = np.random.default_rng(1).integers(0, 3_000, 20_000) * factor
    groups, last = key_groups([pa.array(keys)])
    assert len(last) == len(np.unique(keys))
    assert (keys[last][groups] == keys).all()


@pytest.mark.parametrize("factors", [module.FACTORS, (1,), (1, 1), ()])
@pytest.mark.parametrize("kind", ["numbers", "texts", "both"])
def test_keys_with_one_place_are_told_apart(monkeypatch, factors, kind):
    # The place is the high bits of a product: with a factor of 1, all keys have the same.
    monkeypatch.setattr(module, "FACTORS", factors)
    keys = np.random.default_rng(2).integers(0, 900, 6_000)
    far = pa.array(np.where(keys % 2, -(2**62), 2**62) + keys)
    texts = pa.array([f"key {key}" for key in keys.tolist()])
    columns = {"numbers": [far], "texts": [texts], "both": [texts, far]}[kind]
    groups, rows = key_groups(columns)
    assert len(rows) == len(np.unique(keys))
    assert (keys[rows][groups] == keys).all()


@given(
    st.lists(st.none() | st.binary(max_size=33) | st.text("\0é", max_size=9).map(str.encode),
             min_size=1, max_size=40),
    st.integers(0, 5),
    st.sampled_from([1, 3, module.BLOCK_ROWS]),
)  # fmt: skip
def test_words_of_texts_are_equal_for_equal_texts_only(texts, first, block_rows):
    column = pa.array(texts + texts, pa.binary())
    column = column.slice(min(first, len(texts) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", block_rows)
        words = module.text_words(column)
        groups, rows = key_groups([column])
    values = column.to_pylist()
    assert (words is None) == (max(len(text or b"") for text in values) > 32)
    if words is not None:
        pairs = dict(zip(values, zip(*(word.tolist() for word in words), strict=True), strict=True))
        assert len(set(pairs.values())) == len(pairs)
    assert [values[rows[group]] for group in groups.tolist()] == values
    assert len(rows) == len(set(values))


def test_texts_under_nulls_do_not_matter():
    content = pa.array(["a", "b", "longer than a word", "a"])
    valid = pa.array([True, False, False, True]).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 4, [valid, *content.buffers()[1:]])
    groups, rows = key_groups([column])
    assert groups[0] == groups[3] != groups[1] == groups[2]
    assert len(rows) == 2
