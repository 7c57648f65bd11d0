"""README, guide and streaming from top to bottom: each snippet prints what stands below it."""

from __future__ import annotations

import ast
import io
import sys
import types
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from tests.check_docs import ROOT, split

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SHUFFLES = "/tmp/shuffles"
DISKS = "/tmp/disks"


def run(language: str, source: str, names: dict[str, Any]) -> str:
    """Run a code block and return what it prints; the value of a last expression too."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        if language == "sql":
            for statement in filter(str.strip, source.split(";")):
                found = names["spark"].sql(statement)
                if found.columns:
                    found.show()
        else:
            exec(compile(ast.parse(source), "<document>", "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 9), ("docs/guide.md", 9), ("docs/streaming.md", 9)]
)
def test_every_snippet_prints_what_stands_below_it(
    spark: SparkSession, tmp_path: Path, name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, blocks = split((ROOT / name).read_text(encoding="utf-8"))
    document = types.ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", document)
    cloudpickle.register_pickle_by_value(document)  # classes of snippets travel to the tasks
    names = vars(document)
    printed, ran = "", 0
    differing = []
    for line, language, source in blocks:
        if language in ("python", "sql"):
            moved = source.replace(SHUFFLES, f"{tmp_path}/s").replace(DISKS, f"{tmp_path}/d")
            printed = run(language, moved, names)
            printed = printed.replace(f"{tmp_path}/s", SHUFFLES).replace(f"{tmp_path}/d", DISKS)
            ran += 1
        elif (
            language == "text"
            and ran
            and not source.startswith("$ ")
            and (printed.rstrip() != source.rstrip())
        ):
            differing.append(f"{name}:{line}\n--- it says\n{source}\n--- it prints\n{printed}")
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")
    assert ran >= least
    assert not differing, "\n\n".join(differing)
