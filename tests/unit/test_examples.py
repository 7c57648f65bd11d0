"""The help of what users import has examples, and they run."""

import ast
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import arrow_shuffle
from tests.support.examples import examples, explained, is_own, run

ROOT = Path(__file__).resolve().parents[2]
HERE = [example for example in examples() if not example.needs_spark]
WITHOUT = {"errors", "Operation.schema"}
READS = (
    "read", "lookup", "subpartition", "subpartition_of", "count_rows", "min_max", "verify",
    "explain", "to_table", "to_pandas",
)  # fmt: skip
"""Methods of the engine's shuffle that users call; the others are the engine's own."""


@pytest.mark.parametrize("example", HERE, ids=[example.name for example in HERE])
def test_an_example_runs_without_spark(tmp_path, example):
    if example.missing:
        pytest.skip(f"needs {' and '.join(example.missing)}")
    run(example, tmp_path)


def test_what_users_call_has_an_example():
    lacking = [
        name
        for name, thing in explained()
        if "." not in name or is_own(thing) or name.removeprefix("Shuffle.") in READS
        if ".. code-block:: python" not in (inspect.getdoc(thing) or "")
    ]
    assert sorted(set(lacking) - WITHOUT) == []


def test_examples_are_python():
    for example in examples():
        ast.parse(example.code, example.name)


def test_help_names_what_users_import():
    for name, thing in explained():
        text = inspect.getdoc(thing) or ""
        engine = re.findall(r":(?:func|class|meth):`~?((?:arrow_format|connector)\.\w+)`", text)
        assert not [found for found in engine if hasattr(arrow_shuffle, found.split(".")[1])], name


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
CODE = [
    path
    for package in ("arrow_format", "arrow_shuffle", "connector", "pyspark_arrow_shuffle")
    for path in (ROOT / package).rglob("*.py")
]


def resolved(dotted):
    """Return whether a name below ``arrow_shuffle`` is that of something."""
    value = arrow_shuffle
    for name in dotted.split("."):
        if not hasattr(value, name):
            return value is arrow_shuffle and find_spec(f"arrow_shuffle.{name}") is not None
        value = getattr(value, name)
    return True


@pytest.mark.parametrize("paths", [PAGES, CODE], ids=["pages", "code"])
def test_messages_and_pages_name_what_users_can_import(paths):
    within = r"(?:Shuffle\.|Operation\.|errors\.)?"
    named = re.compile(rf"(?<![\w./-])arrow_shuffle\.({within}(?!(?:zip|jar)\b)[A-Za-z]\w*)")
    wrong = [
        f"{path.relative_to(ROOT)}: arrow_shuffle.{name}"
        for path in paths
        for name in sorted(set(named.findall(path.read_text(encoding="utf-8"))))
        if not resolved(name)
    ]
    assert wrong == []
