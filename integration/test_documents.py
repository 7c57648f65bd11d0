"""README, guide and streaming from top to bottom: each snippet prints what stands below it."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from tests.check_docs import ROOT, split
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLES = "/tmp/shuffles"
DISKS = "/tmp/disks"

LEAST = {"README.md": 9, "docs/guide.md": 9, "docs/streaming.md": 9}
"""Documents, and how many blocks of each run at least."""


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


def run_document(spark: SparkSession, name: str, directory: Path) -> dict[str, Any]:
    """Run a document; return how many blocks ran, and what differs from what it says."""
    os.chdir(directory)
    _, blocks = split((ROOT / name).read_text(encoding="utf-8"))
    document = types.ModuleType("document")
    sys.modules["document"] = document
    cloudpickle.register_pickle_by_value(document)  # classes of snippets travel to the tasks
    names = vars(document)
    printed, ran = "", 0
    differing = []
    for line, language, source in blocks:
        if language in ("python", "sql"):
            moved = source.replace(SHUFFLES, f"{directory}/s").replace(DISKS, f"{directory}/d")
            printed = run(language, moved, names)
            printed = printed.replace(f"{directory}/s", SHUFFLES).replace(f"{directory}/d", DISKS)
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
    return {"ran": ran, "differing": differing}


def main(directory: Path) -> None:
    """Run the documents one after the other, in a session as theirs, and print what was found."""
    found = {}
    with spark_session(directory / "spark") as spark:
        for name in LEAST:
            place = directory / Path(name).stem
            place.mkdir()
            found[name] = run_document(spark, name, place)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "integration.test_documents", tmp_path_factory.mktemp("documents")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.parametrize("name", LEAST)
def test_every_snippet_prints_what_stands_below_it(found: dict[str, Any], name: str) -> None:
    assert found[name]["ran"] >= LEAST[name]
    assert not found[name]["differing"], "\n\n".join(found[name]["differing"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
