"""Which tests a change is tried by (:mod:`tests.mutants`)."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import lines_executed

CODE = """\
MOST = 3

class A:
    size: int = 4

    @property
    def b(
        self, n=1
    ):
        if (
            n
        ):
            return n + MOST

        def inner(m=2):
            return m
        return inner
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, [(13, 13), (1, 17)]),
        (4, [(3, 17), (1, 17)]),
        (6, [(6, 17), (3, 17), (1, 17)]),
        (8, [(6, 17), (3, 17), (1, 17)]),
        (11, [(11, 11), (10, 12)]),
        (13, [(13, 13), (13, 13)]),
        (15, [(15, 16), (15, 15)]),
        (16, [(16, 16), (16, 16)]),
        (17, [(17, 17), (17, 17)]),
    ],
)
def test_lines_whose_tests_are_those_of_a_line(line, expected):
    lines = lines_executed(ast.parse(CODE), line)
    assert [(min(part), max(part)) for part in lines] == expected
