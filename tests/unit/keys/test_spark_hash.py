"""`hash_columns` against values that real Spark gave, against a second implementation written from
the page of the format, and the laws any slicing must keep.
"""

import json
import math
import re
import struct
from datetime import date
from decimal import Context
from decimal import Decimal as D
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys import murmur3
from arrow_format.keys.spark_hash import check_hashable, hash_columns, subpartition_ids
from integration.readers.key_hash import fold, signed, subpartition

NAN, INF = math.nan, math.inf
MASK = 0xFFFFFFFF
EXACT = Context(prec=80)
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
PAGE = (Path(__file__).parents[3] / "docs/format/hash.md").read_text("utf-8")

# What Spark 4.3 answers to `SELECT hash(c)`.
# fmt: off
GOLDEN = [
    (pa.bool_(), [True, False, None], [-559580957, 933211791, 42]),
    (pa.int8(), [0, 1, -1, 127, -128, None],
     [933211791, -559580957, -1604776387, 1135925485, 1110053733, 42]),
    (pa.int16(), [0, -1, 32767, -32768, None],
     [933211791, -1604776387, 1249274084, -1871935946, 42]),
    (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), None],
     [933211791, -559580957, -1604776387, 133916647, 723455942, 42]),
    (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), None],
     [-1670924195, -1712319331, -939490007, -1604625029, -853646085, 42]),
    (pa.float32(), [0.0, -0.0, 1.5, -1.5, NAN, INF, -INF, None],
     [933211791, 933211791, -221251528, 1765572753, -349261430, 2026854605, 427440766, 42]),
    (pa.float64(),
     [0.0, -0.0, 1.5, -1.5, NAN, INF, -INF, 5e-324, None],
     [-1670924195, -1670924195, 1290763749, 2099784398, -1281358385, 833680482, 461104036,
      -1712319331, 42]),
    (pa.decimal128(9, 2), [D("0.00"), D("1.23"), D("-1.23"), D("9999999.99"), None],
     [-1670924195, -46242105, 1993430267, -193774131, 42]),
    (pa.decimal128(18, 0), [D(10**18 - 1), D(1 - 10**18), D(0), None],
     [-1795328666, 1962370902, -1670924195, 42]),
    (pa.decimal128(19, 0), [D(0), D(127), D(128), D(-128), D(-129), D(2**63), None],
     [-783713497, 1185089389, -544401882, 775851899, -771458971, 1479175736, 42]),
    (pa.decimal128(38, 0), [D(10**38 - 1), D(1 - 10**38), D(2**64), D(-(2**63)), D(2**119), None],
     [-817514053, 1400911110, 1074617613, -1794377518, -104412503, 42]),
    (pa.decimal128(38, 10), [D("1E-10"), D("-0.5"), D("12345678901234567890.123"), None],
     [-386724586, -545276193, -1664753262, 42]),
    (pa.string(),
     ["", "a", "ab", "abc", "abcd", "Spark", "é", "日本語", "🦆🦆", "x" * 1001, None],
     [142593372, 1485273170, -97053317, 1322437556, -396302900, 228093765, 2119106806,
      -1143049834, 1725674159, -1536256584, 42]),
    (pa.binary(), [b"", b"\x00", b"\xff", b"\x7f\x80\x81\xff", b"\x00\x00\x00\x80\x80", None],
     [142593372, -783713497, 1398487324, 650508450, -1960601229, 42]),
    (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31), None],
     [933211791, -1604776387, -1147107224, 1135886659, 42]),
    (pa.timestamp("us"), [0, -1, 1_700_000_000_123_456, -62_135_596_800_000_000, None],
     [-1670924195, -939490007, -1935367823, 269467232, 42]),
    (pa.timestamp("us", "UTC"), [0, -1, 1_700_000_000_123_456, -62_135_596_800_000_000, None],
     [-1670924195, -939490007, -1935367823, 269467232, 42]),
    (pa.duration("us"), [0, -1, 86_400_000_000, None], [-1670924195, -939490007, 892267096, 42]),
    (pa.time64("ns"), [0, 1_000, 86_399_999_999_000, None],
     [-1670924195, -803323719, -2014333803, 42]),
    (pa.list_(pa.int32()), [[], [1], [1, None, 2], [None], [3, 2, 1, 0], None],
     [42, -559580957, -222940379, 42, -1372841375, 42]),
    (pa.list_(pa.list_(pa.string())), [[], [[]], [["a"], None, ["", "é"]], [["a", "", "é"]], None],
     [42, 42, -939127339, -939127339, 42]),
    (pa.list_(pa.decimal128(20, 1)), [[D("1.5"), None], [D("-1E18")], None],
     [-357711666, -651938147, 42]),
    (PAIR, [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": None, "b": None}, None],
     [-1438117640, -80340190, 42, 42]),
    (pa.list_(PAIR), [[{"a": 1, "b": "x"}, None, {"a": 2, "b": None}], [], None],
     [1246188258, 42, 42]),
    (pa.struct([("p", PAIR), ("f", pa.list_(pa.float64()))]),
     [{"p": {"a": 7, "b": ""}, "f": [-0.0, NAN]}, {"p": None, "f": None}, None],
     [1797050831, 42, 42]),
]
# fmt: on
CASES = [pytest.param(*case, id=str(case[0])[:30]) for case in GOLDEN]


def reference(array, seed=42):
    """The hashes that a second implementation has, which was written from the page alone."""
    return [signed(fold(value, seed & MASK)) for value in array]


@pytest.mark.parametrize(("data_type", "values", "expected"), CASES)
def test_a_column_hashes_as_in_spark(data_type, values, expected):
    hashes = hash_columns([pa.array(values, data_type)])
    assert hashes.dtype == np.int32
    assert hashes.tolist() == expected


@pytest.mark.parametrize(("data_type", "values", "expected"), CASES)
def test_slices_hash_as_their_rows_do(data_type, values, expected):
    array = pa.array(values * 5, data_type)
    for start in range(len(values) * 2):
        for length in (0, 1, len(values), len(values) * 3):
            hashes = hash_columns([array.slice(start, length)])
            assert hashes.tolist() == (expected * 5)[start : start + length]


@pytest.mark.parametrize(("data_type", "values", "expected"), CASES)
def test_nested_slices_hash_as_their_rows_do(data_type, values, expected):
    children = pa.array([values[0], *values], data_type).slice(1)
    struct_array = pa.StructArray.from_arrays([children], ["c"])
    assert hash_columns([struct_array]).tolist() == expected
    offsets = pa.array(range(len(values) + 1), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, children)
    assert hash_columns([lists]).tolist() == expected
    assert hash_columns([lists.slice(2)]).tolist() == expected[2:]


@pytest.mark.parametrize("data_type", [case[0] for case in GOLDEN], ids=str)
def test_only_nulls_and_no_rows(data_type):
    assert hash_columns([pa.nulls(3, data_type)]).tolist() == [42] * 3
    assert hash_columns([pa.nulls(0, data_type)]).tolist() == []
    assert hash_columns([pa.array([], data_type)]).tolist() == []


def test_columns_fold_in_order():
    # SELECT hash(a, b, c) and hash(c, b, a)
    a = pa.array([1, None, 3, None], pa.int32())
    b = pa.array(["x", "y", None, None])
    c = pa.array([D(1), D(2), None, None], pa.decimal128(20, 0))
    assert hash_columns([a, b, c]).tolist() == [1493738088, 169067484, -1823081949, 42]
    assert hash_columns([c, b, a]).tolist() == [-152899052, 1382364757, -1823081949, 42]


def test_the_hash_so_far_is_the_seed_of_the_next_column():
    # Spark's documentation: SELECT hash('Spark', array(123), 2) gives -1321691492.
    columns = [
        pa.array(["Spark"]),
        pa.array([[123]], pa.list_(pa.int32())),
        pa.array([2], pa.int32()),
    ]
    assert hash_columns(columns).tolist() == [-1321691492]
    first = int(hash_columns(columns[:1])[0])
    assert hash_columns(columns[1:], seed=first).tolist() == [-1321691492]


@pytest.mark.parametrize(
    ("data_type", "patterns"),
    [
        (pa.float32(), struct.pack("<3I", 0x7F800001, 0xFFC00000, 0x7FC00000)),
        (pa.float64(), struct.pack("<3Q", 0x7FF0 << 48 | 1, 0xFFF8 << 48, 0x7FF8 << 48)),
    ],
)
def test_every_nan_is_one_nan(data_type, patterns):
    array = pa.Array.from_buffers(data_type, 3, [None, pa.py_buffer(patterns)])
    expected = hash_columns([pa.array([NAN], data_type)])[0]
    assert hash_columns([array]).tolist() == [expected] * 3


def test_bytes_under_nulls_do_not_count():
    valid = pa.py_buffer(b"\x05")
    offsets = pa.array([0, 1, 9, 10], pa.int32()).buffers()[1]
    octets = pa.py_buffer(b"a\xff\xff\xff\xff\xff\xff\xff\xffb")
    strings = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, octets])
    assert hash_columns([strings]).tolist() == reference(pa.array(["a", None, "b"]))
    integers = pa.array([1, 2, 3], pa.int32())
    masked = pa.Array.from_buffers(pa.int32(), 3, [valid, integers.buffers()[1]])
    assert hash_columns([masked]).tolist() == reference(pa.array([1, None, 3], pa.int32()))
    offsets = pa.array([0, 2, 3], pa.int32()).buffers()[1]
    list_validity = pa.py_buffer(b"\x02")
    lists = pa.Array.from_buffers(
        pa.list_(pa.int32()), 2, [list_validity, offsets], children=[integers]
    )
    assert hash_columns([lists]).tolist() == reference(pa.array([None, [3]], lists.type))
    structs = pa.StructArray.from_arrays([integers], ["a"], mask=pa.array([False, True, False]))
    assert hash_columns([structs]).tolist() == reference(pa.array([1, None, 3], pa.int32()))


def test_strings_without_any_byte():
    offsets = pa.array([0, 0, 0], pa.int32()).buffers()[1]
    empty = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"")])
    assert hash_columns([empty]).tolist() == reference(pa.array(["", ""]))


@pytest.mark.slow
def test_long_strings_among_short_ones():
    sizes = [3, 0, 100_003, 17, 4, 100_000, 9, 70_000, 1, 8] * 3
    text = "".join(chr(32 + i % 90) for i in range(100_003))
    array = pa.array([text[:size] for size in sizes])
    assert hash_columns([array]).tolist() == reference(array)


def test_a_string_longer_than_one_chain(monkeypatch):
    monkeypatch.setattr(murmur3, "_CHAIN_WORDS", 7)
    array = pa.array([bytes(range(256)) * 3, b"\x80"])
    assert hash_columns([array]).tolist() == reference(array)


@pytest.mark.parametrize("expand_bytes", [0, 4 * 1024 * 1024])
def test_blocks_do_not_show(monkeypatch, expand_bytes):
    generator = np.random.default_rng(7)
    integers = pa.array(generator.integers(-(2**63), 2**63, 1_000))
    strings = pa.array([generator.bytes(size) for size in generator.integers(0, 90, 1_000)])
    decimals = pa.array([D(int(v) ** 2) for v in generator.integers(0, 2**62, 1_000)])
    decimals = decimals.cast(pa.decimal128(38, 0))
    columns = [integers, strings, decimals, integers.cast(pa.int32(), safe=False)]
    whole = [hash_columns([column]).tolist() for column in columns]
    monkeypatch.setattr(murmur3, "BLOCK_ROWS", 64)
    monkeypatch.setattr(murmur3, "_EXPAND_BYTES", expand_bytes)
    for column, expected in zip(columns, whole, strict=True):
        assert expected == reference(column)
        assert hash_columns([column]).tolist() == expected


SCALARS = st.one_of(
    st.just((pa.bool_(), st.booleans())),
    st.just((pa.int8(), st.integers(-128, 127))),
    st.just((pa.int16(), st.integers(-(2**15), 2**15 - 1))),
    st.just((pa.date32(), st.integers(-(2**31), 2**31 - 1))),
    st.just((pa.float32(), st.floats(width=32))),
    st.just((pa.float64(), st.floats())),
    st.sampled_from(
        [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us"), pa.time64("ns")]
    ).map(lambda kind: (kind, st.integers(-(2**63), 2**63 - 1))),
    st.just((pa.int32(), st.integers(-(2**31), 2**31 - 1))),
    st.just((pa.int64(), st.integers(-(2**63), 2**63 - 1))),
    st.just((pa.string(), st.text(max_size=40))),
    st.just((pa.binary(), st.binary(max_size=200))),
    st.tuples(st.integers(1, 38), st.integers(0, 38)).map(
        lambda shape: (
            pa.decimal128(shape[0], min(shape)),
            st.integers(1 - 10 ** shape[0], 10 ** shape[0] - 1).map(
                lambda unscaled: D(unscaled).scaleb(-min(shape), EXACT)
            ),
        )
    ),
)
KINDS = st.recursive(
    SCALARS,
    lambda kinds: st.one_of(
        kinds.map(lambda k: (pa.list_(k[0]), st.lists(st.none() | k[1], max_size=5))),
        st.tuples(kinds, kinds).map(
            lambda pair: (
                pa.struct([("x", pair[0][0]), ("y", pair[1][0])]),
                st.fixed_dictionaries({"x": st.none() | pair[0][1], "y": st.none() | pair[1][1]}),
            )
        ),
    ),
    max_leaves=4,
)


@st.composite
def arrays(draw):
    data_type, values = draw(KINDS)
    return pa.array(draw(st.lists(st.none() | values, max_size=30)), data_type)


@given(arrays(), st.integers(-(2**31), 2**31 - 1))
def test_agrees_with_the_reference(array, seed):
    assert hash_columns([array], seed).tolist() == reference(array, seed)


@given(arrays(), st.data())
def test_hash_of_a_slice_is_the_slice_of_the_hash(array, data):
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    expected = hash_columns([array])[start:stop]
    assert hash_columns([array[start:stop]]).tolist() == expected.tolist()


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(1, 2**31 - 1))
def test_subpartition_is_the_non_negative_remainder(hashes, num_subpartitions):
    ids = subpartition_ids(np.array(hashes, np.int32), num_subpartitions)
    assert ids.dtype == np.int32
    assert ids.tolist() == [value % num_subpartitions for value in hashes]


@pytest.mark.parametrize("num_subpartitions", [0, -1, 2**31])
def test_number_of_subpartitions_is_a_positive_int32(num_subpartitions):
    with pytest.raises(OptionError, match=r"from 1 to 2\*\*31 - 1, not"):
        subpartition_ids(np.zeros(1, np.int32), num_subpartitions)


def tagged(name, tag, other):
    return pa.struct([(other, pa.int32()), pa.field(name, pa.binary(), metadata={tag: b"true"})])


VARIANT = tagged("metadata", b"variant", "value")
REFUSED = [
    (pa.map_(pa.string(), pa.int32()), "Spark does not hash maps"),
    (pa.null(), "holds only nulls"),
    (VARIANT, "type variant cannot be a hash key: use a plain column"),
    (tagged("wkb", b"geometry", "srid"), "type geometry cannot"),
    (tagged("wkb", b"geography", "srid"), "type geography cannot"),
    (pa.uint64(), "type uint64 cannot be a hash key: cast it"),
    (pa.dictionary(pa.int8(), pa.string()), "type dictionary<"),
    (pa.large_string(), "type large_string"),
    (pa.string_view(), "type string_view"),
    (pa.large_list(pa.int8()), "type large_list<"),
    (pa.list_(pa.int8(), 2), "type fixed_size_list<"),
    (pa.binary(3), "type fixed_size_binary"),
    (pa.timestamp("ns"), r"type timestamp\[ns\]"),
    (pa.duration("ms"), r"type duration\[ms\]"),
    (pa.time64("us"), r"type time64\[us\]"),
    (pa.date64(), r"type date64"),
    (pa.decimal256(40, 0), "type decimal256"),
    (pa.float16(), "type halffloat"),
    (pa.uuid(), "type extension<"),
]


@pytest.mark.parametrize(("data_type", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_types_that_are_no_hash_keys(data_type, message):
    with pytest.raises(SchemaError, match=f"^column 'key' of .*{message}"):
        check_hashable(pa.field("key", data_type))
    nested = pa.list_(pa.struct([("inner", data_type)]))
    with pytest.raises(SchemaError, match=f"^column 'key', .*field 'inner' of .*{message}"):
        check_hashable(pa.field("key", nested))


@pytest.mark.parametrize("data_type", [case[0] for case in GOLDEN], ids=str)
def test_types_that_are_hash_keys(data_type):
    check_hashable(pa.field("key", data_type))


def test_a_plain_struct_may_look_like_a_variant():
    plain = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    check_hashable(pa.field("key", plain))
    untagged = pa.struct([pa.field("metadata", pa.binary(), metadata={b"variant": b"false"})])
    check_hashable(pa.field("key", untagged))


def test_hashing_refuses_what_the_check_refuses():
    with pytest.raises(SchemaError, match="key column 1 of type map<"):
        hash_columns([pa.array([1]), pa.nulls(1, pa.map_(pa.int8(), pa.int8()))])


def test_columns_must_be_of_one_length():
    with pytest.raises(SchemaError, match=r"one length; got \[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(SchemaError, match=r"one or more columns"):
        hash_columns([])


def page_vectors():
    """The rows of the page's table: a type, a value of it, and its hash."""
    flat = [pa.bool_(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32()]
    types = {str(kind): kind for kind in [*flat, pa.timestamp("us"), pa.decimal128(9, 2)]}
    types |= {"float32": pa.float32(), "float64": pa.float64(), "date32": pa.date32()}
    types |= {"list<int32>": pa.list_(pa.int32()), "struct<a: int64, b: string>": PAIR}
    types |= {"decimal128(19, 0)": pa.decimal128(19, 0), "any": PAIR}
    rows = re.findall(r"^(\S.*?) {2,}(\S.*?) {2,}(-?\d+)$", PAGE, re.MULTILINE)
    for kind, text, hashed in rows:
        data_type = types[kind]
        if pa.types.is_decimal(data_type):
            value = D(text)
        elif pa.types.is_binary(data_type):
            value = bytes.fromhex(text)
        else:
            value = float(text) if "float" in kind else json.loads(text)
        yield data_type, value, int(hashed)


@pytest.mark.parametrize(("data_type", "value", "hashed"), list(page_vectors()))
def test_the_page_has_the_hash_of_each_value(data_type, value, hashed):
    column = pa.array([value], data_type)
    assert hash_columns([column]).tolist() == reference(column) == [hashed]


@given(columns=st.lists(KINDS, min_size=1, max_size=3), data=st.data(), n=st.integers(1, 1_000_000))
def test_rows_are_placed_as_the_page_says(columns, data, n):
    size = data.draw(st.integers(1, 5))
    keys = [
        pa.array(data.draw(st.lists(st.none() | values, min_size=size, max_size=size)), data_type)
        for data_type, values in columns
    ]
    ids = subpartition_ids(hash_columns(keys), n).tolist()
    assert ids == [subpartition(row, n) for row in zip(*keys, strict=True)]
