"""README and every page of the guide, from top to bottom: each snippet prints what is below it."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from arrow_shuffle import spark_config
from integration.programs.other_sessions import printed_by
from tests.check_docs import ROOT, split
from tests.support.spark_session import spark_session
from tests.support.spark_versions import ADMISSION_CONTROL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

SHUFFLES = "/tmp/shuffles"
DISKS = "/tmp/disks"

WITHOUT_SNIPPETS = {"docs/guide/command.md", "docs/guide/object-stores.md", "docs/guide/types.md"}
OF_LARGE_LIBRARIES = {"docs/guide/ray.md", "docs/guide/torch.md"}
"""Pages that the tests of their libraries run, where these are installed."""
IN_THE_JVM = {"README.md", "docs/guide/sql.md"}
"""Documents whose session has the reader in Spark's JVM."""
WITH_LIMITS = {"docs/guide/streams-and-results.md"}
"""Pages with limits of a stream's batches."""
DOCUMENTS = [
    "README.md",
    *(
        name
        for page in sorted(ROOT.glob("docs/guide/*.md"))
        if (name := page.relative_to(ROOT).as_posix()) not in WITHOUT_SNIPPETS | OF_LARGE_LIBRARIES
    ),
]
"""Documents that are run, each in a directory of its own."""


def run(language: str, source: str, names: dict[str, Any]) -> str:
    """Run a code block and return what it prints; the value of a last expression too."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        if language == "sql":
            for statement in filter(str.strip, source.split(";")):
                frame = names["spark"].sql(statement)
                if frame.columns:
                    frame.show()
        else:
            exec(compile(ast.parse(source), "<document>", "exec"), names)
    return printed.getvalue()


def run_document(spark: SparkSession, name: str, directory: Path) -> dict[str, Any]:
    """Run a document; return how many blocks ran, and what they print that it does not say."""
    os.chdir(directory)
    document = types.ModuleType("document")
    sys.modules["document"] = document
    cloudpickle.register_pickle_by_value(document)  # classes of snippets travel to the tasks
    # A catalog is loaded once in a session; each document has a warehouse of its own.
    spark._jsparkSession.sessionState().catalogManager().reset()  # type: ignore[attr-defined]
    ran, differing = run_snippets(name, directory, vars(document))
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")
    return {"ran": ran, "differing": differing}


def run_snippets(name: str, directory: Path, names: dict[str, Any]) -> tuple[int, list[str]]:
    """Run the snippets of a document in a directory, with these names.

    Returns how many ran, and what they print that the document does not say.
    """
    _, blocks = split((ROOT / name).read_text(encoding="utf-8"))
    printed, ran = "", 0
    differing = []
    for line, language, source in blocks:
        if language in ("python", "sql"):
            moved = source.replace(SHUFFLES, f"{directory}/s").replace(DISKS, f"{directory}/d")
            try:
                printed = run(language, moved, names)
            except Exception as error:  # whatever a snippet raises; those below need what it made
                differing.append(f"{name}:{line} raises {type(error).__name__}: {error}")
                break
            printed = printed.replace(f"{directory}/s", SHUFFLES).replace(f"{directory}/d", DISKS)
            ran += 1
        elif (
            language == "text"
            and ran
            and not source.startswith("$ ")
            and (printed.rstrip() != source.rstrip())
        ):
            differing.append(f"{name}:{line}\n--- it says\n{source}\n--- it prints\n{printed}")
    return ran, differing


def main(directory: Path, names: Sequence[str]) -> None:
    """Run documents one after the other in one session, and print the results as JSON."""
    results = {}
    settings = spark_config() if IN_THE_JVM.issuperset(names) else {}
    with spark_session(directory / "spark", settings=settings) as spark:
        for name in names:
            place = directory / Path(name).stem
            place.mkdir()
            results[name] = run_document(spark, name, place)
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of the documents that will be asked for: at a turn that is one in eight."""
    asked = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "results" in item.fixturenames
    ]
    results = {}
    for in_the_jvm in (False, True):
        names = [name for name in DOCUMENTS if name in asked and (name in IN_THE_JVM) == in_the_jvm]
        if names:
            directory = tmp_path_factory.mktemp("documents")
            results |= printed_by("integration.test_documents", directory, *names)
    return results


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[ADMISSION_CONTROL] if name in WITH_LIMITS else [])
        for name in DOCUMENTS
    ],
)
def test_every_snippet_prints_what_is_below_it(results: dict[str, Any], name: str) -> None:
    assert results[name]["ran"] >= 1
    assert not results[name]["differing"], "\n\n".join(results[name]["differing"])


@pytest.mark.parametrize("name", sorted(WITHOUT_SNIPPETS))
def test_other_pages_have_no_snippet_to_run(name: str) -> None:
    _, blocks = split((ROOT / name).read_text(encoding="utf-8"))
    assert not [line for line, language, _ in blocks if language in {"python", "sql"}]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
