"""PyArrow's expressions, read from what it pickles."""

from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import OptionError
from arrow_format.filters.expression import as_sql
from arrow_format.filters.from_arrow import from_arrow
from arrow_format.format.ipc import file_metadata

A, B, D, E = map(pc.field, "abde")
FLOATS = pa.schema([("d", pa.float64()), ("e", pa.float32())])


def condition_of(expression):
    return from_arrow(expression, FLOATS)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (A == 1, "a = 1"),
        ((A != 1) & (B <= 2) & (A >= 3), "a != 1 AND b <= 2 AND a >= 3"),
        ((A < 1) | (B > 2) & A.is_valid(), "a < 1 OR (b > 2 AND a IS NOT NULL)"),
        (~(A == 1), "a != 1"),
        (
            ~pc.and_(A, B),
            "NOT ((NOT (a IS NULL OR b IS NULL) AND a AND b) OR "
            "((a IS NULL OR b IS NULL) AND NULL))",
        ),
        (A.isin(["x"]), "a IN ('x')"),
        (A.isin(["x", None]), "a IN ('x') OR a IS NULL"),
        (A.isin([]), "a IN ()"),
        (~A.isin(["x"]), "NOT (a IS NOT NULL AND a IN ('x'))"),
        (pc.if_else(A.is_valid(), A.isin(["x"]), pa.scalar(None, pa.bool_())), "a IN ('x')"),
        (pc.is_in(A, value_set=pa.array([1]), skip_nulls=True), "a IN (1)"),
        (A.is_null(), "a IS NULL"),
        (A.is_null(nan_is_null=True), "a IS NULL OR a = CAST('nan' AS DOUBLE)"),
        (pc.is_nan(A), "a = CAST('nan' AS DOUBLE)"),
        (D > 1.5, "d > 1.5 AND d != CAST('nan' AS DOUBLE)"),
        (D.isin([1, 2.5]), "d IN (1.0, 2.5)"),
        (pc.scalar(1.5) >= D, "1.5 >= d"),
        (float("nan") == D, "d != d"),
        (pc.scalar("2024-01-01").cast(pa.date32()) == A, "DATE '2024-01-01' = a"),
        (pa.scalar("x", pa.large_string()) == A, "a = 'x'"),
        (pa.scalar("x", pa.dictionary(pa.int8(), pa.string())) == A, "a = 'x'"),
        (A == B, "a = b"),
        (pc.scalar([1]) == A, "[1] = a"),
        (pa.scalar(None) == A, "a = NULL"),
        (pc.field("a b") == b"\x01", "`a b` = X'01'"),
        (A, "a"),
    ],
)
def test_an_expression_as_text(expression, text):
    assert as_sql(condition_of(expression)) == text


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (pc.add(A, 1) == 2, "function 'add' is not supported; those that are: equal, "),
        (pc.field(("a", "b")) == 1, "a filter on nested fields is not supported"),
        (pc.field("a", "b") == 1, "a filter on nested fields is not supported"),
        (A.cast(pa.int64()) == 1, "only values can be cast"),
        (pc.scalar("x").cast(pa.int64()) == A, "x cannot be cast to int64"),
        (pc.starts_with(A, "x"), "'starts_with'"),
        (D.isin([0.0, 1.0]), "column 'd' is double: PyArrow's isin compares it by bits"),
        (D.isin([float("nan")]), "PyArrow's isin"),
        (E.isin([0.1]), "column 'e' is float: PyArrow's isin"),
    ],
)
def test_what_is_refused(expression, says):
    with pytest.raises(OptionError, match=says):
        condition_of(expression)


def test_a_long_chain():
    long = reduce(or_, (number == A for number in range(1_200)))
    assert len(condition_of(long).operands) == 1_200


class Pickled:
    """Stands for the expression of a PyArrow that pickles it in another way."""

    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return Pickled, self.state


def file_of(metadata):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([], metadata)):
        pass
    return sink.getvalue()


@pytest.mark.parametrize(
    "state",
    [
        (),
        ("text",),
        (pa.py_buffer(b""),),
        (pa.py_buffer(b"ARROW1\0\0" + bytes(60)),),
        (file_of({}),),
        (file_of({"call": "equal", "field_ref": "a"}),),
        (file_of({"literal": "7"}),),
        (file_of({"literal": "x"}),),
        (file_of({"options": "0"}),),
        (file_of({"field_ref": "a", "end": "b"}),),
        (file_of({"call": "equal", "field_ref": "a", "end": "equal"}),),
    ],
)
def test_another_form_is_refused(state):
    with pytest.raises(OptionError, match="in a form that is not known"):
        condition_of(Pickled(*state))


def test_metadata_keeps_equal_keys():
    stored = ((A == 1) & (B == 2)).__reduce__()[1][0]
    keys = [key for key, _ in file_metadata(stored)]
    assert keys.count(b"field_ref") == 2
    assert [key for key, _ in file_metadata(file_of({"x": "", "y": "z"}))] == [b"x", b"y"]
    for end in range(8, 200, 7):
        with pytest.raises(ValueError, match=r"bytes|schema"):
            file_metadata(stored[:end])
