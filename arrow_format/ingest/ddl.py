"""Schemas as text, as Spark writes them: ``k bigint NOT NULL, v array<double>``. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.arrays.stored_types import refuse_duplicates
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("boolean",), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("double",), pa.float64()),
    **dict.fromkeys(("string",), pa.string()),
    **dict.fromkeys(("binary",), pa.binary()),
    **dict.fromkeys(("date",), pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("timestamp_ntz",), pa.timestamp("us")),
}
"""Types without arguments, by Spark's names."""

_TEXTS = frozenset({"char", "character", "varchar"})
_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_MOST_DIGITS = 38

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*|/\*(?s:.*?)\*/)
    |(?P<name>[A-Za-z0-9_]+)
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<text>'(?:[^'\\]|\\(?s:.))*'|"(?:[^"\\]|\\(?s:.))*")
    |(?P<sign>[(),<>:])""",
    re.VERBOSE,
)


def schema_of_ddl(text: str) -> pa.Schema:
    """Return the schema that a text declares, with the types that Spark's values have in Arrow.

    Raises SchemaError for text that is no list of columns to Spark's parser, or that names a column
    twice, and for a type that is not known here, as intervals and collations: a ``pyarrow`` schema
    or a StructType has it.
    """
    parser = _Parser(text)
    fields = parser.several(parser.field)
    if parser.peek() is not None:
        raise parser.error(parser.shown())
    refuse_duplicates([field.name for field in fields], f"schema={text!r}: columns")
    return pa.schema(fields)


class _Parser:
    """Takes tokens of a text from the left: pairs of a kind and what was written."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._next = end = 0
        while end < len(text):
            found = _TOKEN.match(text, end)
            if found is None:
                raise self.error(text[end : end + 20])
            end, kind = found.end(), found.lastgroup or ""
            if kind != "space":
                self._tokens.append((kind, found[kind]))

    def peek(self) -> tuple[str, str] | None:
        """Return the next token; None at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def shown(self) -> str:
        """Return the next token for people."""
        token = self.peek()
        return "the end" if token is None else token[1]

    def error(self, what: str) -> SchemaError:
        """Return an error about a part of the text."""
        return SchemaError(
            f"schema={self._text!r} ({what}): expected columns and types as Spark writes them, "
            "such as 'k bigint, v array<double>'; for other types give a pyarrow schema or a "
            "StructType"
        )

    def several(self, one: Callable[[], pa.Field]) -> list[pa.Field]:
        """Take one or more, with commas between."""
        found = [one()]
        while self._takes(","):
            found.append(one())
        return found

    def field(self) -> pa.Field:
        """Take ``name type [NOT NULL] [COMMENT 'text']``, or ``name: type``."""
        token = self.peek()
        if token is None or token[0] not in ("name", "quoted"):
            raise self.error(self.shown())
        self._next += 1
        name = token[1].replace("``", "`") if token[0] == "quoted" else token[1]
        self._takes(":")
        type_ = self._type()
        is_null = not self._takes("not")
        if not is_null:
            self._need("null")
        if self._takes("comment"):
            if (self.peek() or ("",))[0] != "text":
                raise self.error(self.shown())
            self._next += 1
        return pa.field(name, type_, nullable=is_null)

    def _type(self) -> pa.DataType:
        token = self.peek()
        if token is None or token[0] != "name":
            raise self.error(self.shown())
        self._next += 1
        kind = token[1].lower()
        if kind in _TYPES:
            return _TYPES[kind]
        if kind in _TEXTS:
            self._numbers(1)
            return pa.string()
        if kind in _DECIMALS:
            return self._decimal(token[1])
        if kind == "array":
            (element,) = self._inside(1)
            return pa.list_(pa.field("element", element))
        if kind == "map":
            return pa.map_(*self._inside(2))
        if kind == "struct":
            self._need("<")
            fields = self.several(self.field)
            self._need(">")
            refuse_duplicates([field.name for field in fields], f"schema={self._text!r}: fields")
            return pa.struct(fields)
        raise self.error(token[1])

    def _decimal(self, name: str) -> pa.DataType:
        digits, scale = 10, 0
        if (self.peek() or ("", ""))[1] == "(":
            digits, scale = [*self._numbers(1, 2), 0][:2]
        if not 1 <= digits <= _MOST_DIGITS or scale > digits:
            raise self.error(f"{name}({digits},{scale})")
        return pa.decimal128(digits, scale)

    def _numbers(self, *counts: int) -> list[int]:
        """Take numbers in parentheses."""
        self._need("(")
        found: list[int] = []
        while not found or self._takes(","):
            token = self.peek()
            if token is None or not re.fullmatch("[0-9]{1,9}", token[1]):
                raise self.error(self.shown())
            self._next += 1
            found.append(int(token[1]))
        self._need(")")
        if len(found) not in counts:
            raise self.error(", ".join(map(str, found)))
        return found

    def _inside(self, count: int) -> list[pa.DataType]:
        """Take types in angle brackets."""
        self._need("<")
        found = [self._type()]
        for _ in range(count - 1):
            self._need(",")
            found.append(self._type())
        self._need(">")
        return found

    def _takes(self, wanted: str) -> bool:
        """Take a sign or a word if it is the next."""
        token = self.peek()
        if token is None or token[0] not in ("name", "sign") or token[1].lower() != wanted:
            return False
        self._next += 1
        return True

    def _need(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise self.error(self.shown())
