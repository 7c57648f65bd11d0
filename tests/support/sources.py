"""The source of the packages, as rules and pages are compared with it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]


@cache
def parsed(file: Path) -> ast.Module:
    """Parse a module, once for all tests."""
    return ast.parse(file.read_text(encoding="utf-8"))


def modules(*packages: str) -> dict[str, ast.Module]:
    """Return the syntax tree of each module of packages, by its path in the project."""
    return {
        file.relative_to(PROJECT).as_posix(): parsed(file)
        for package in packages
        for file in sorted((PROJECT / package).rglob("*.py"))
    }


def texts_in(tree: ast.AST) -> set[str]:
    """Return the texts of a module that are no docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }
