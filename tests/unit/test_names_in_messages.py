"""Texts that users read name what they import: ``arrow_shuffle``, and not how it is built."""

import ast
import re
from pathlib import Path

import arrow_shuffle

ROOT = Path(__file__).parents[2]
BUILT_OF = ("arrow_format", "connector")
NAMED = re.compile(rf"\b(?:{'|'.join(BUILT_OF)})\.(\w+)")


def texts(path: Path) -> list[str]:
    """All texts of a module but its docstrings, which also name what is inside."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs
    ]


def test_messages_name_what_users_import():
    wrong = [
        f"{path.relative_to(ROOT)}: {named[0]}"
        for package in BUILT_OF
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in texts(path)
        for named in NAMED.finditer(text)
        if named[1] in arrow_shuffle.__all__
    ]
    assert not wrong
