"""The wheel alone, installed by pip into an empty environment, and used outside of the clone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyspark
import pytest

from arrow_format import __version__
from tests.check_dist import problems
from tests.check_docs import ROOT, split
from tests.support.exhaustive import nightly

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_SPARK = """
import sys
import pyarrow as pa
import arrow_shuffle

path = sys.argv[1]
table = pa.table({"k": range(1000), "v": ["x"] * 1000})
print(arrow_shuffle.write_shuffle(table, path, num_subpartitions=4, keys="k").num_rows)
shuffle = arrow_shuffle.open_shuffle(path)
print(shuffle.select("k").to_table().num_rows, arrow_shuffle.__file__)
try:
    shuffle.to_spark()
except arrow_shuffle.errors.MissingPackageError as error:
    print(error)
"""


class Environment:
    """A virtual environment with what pip installed into it, and nothing of the clone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run(sys.executable, "-m", "venv", directory / "venv")

    def run(self, *command: object) -> str:
        """Run a program as if the environment were activated; return what it prints."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHON"))}
        path = f"{self.directory / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=kept | {"PATH": path, "COLUMNS": "100"},
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def install(self, *what: str) -> None:
        """Install with pip, which takes the dependencies from its registry."""
        pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(*pip, *what)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an sdist, and of the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)]
    subprocess.run(build, capture_output=True, check=True)
    return directory


@pytest.fixture(scope="module")
def without_spark(
    built: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Environment, list[str], str]:
    """An environment without Spark, what a program printed there, and what the command did."""
    environment = Environment(tmp_path_factory.mktemp("installed"))
    (wheel,) = built.glob("*.whl")
    environment.install(str(wheel))
    printed = environment.run("python", "-c", WITHOUT_SPARK, "rows")
    commands = [["--version"], ["inspect", "rows"], ["verify", "rows"]]
    shown = [environment.run("arrow-shuffle", *command) for command in commands]
    return environment, printed.splitlines(), "".join(shown)


def test_both_have_what_they_should(built: Path) -> None:
    assert problems(built) == []
    check = [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()]
    subprocess.run(check, capture_output=True, check=True)


def test_without_spark_rows_are_written_and_read(
    without_spark: tuple[Environment, list[str], str],
) -> None:
    environment, (written, read, missing), _ = without_spark
    assert written == "1000"
    assert read.split(maxsplit=1)[0] == "1000"
    assert str(environment.directory) in read
    assert missing == (
        "to_spark() needs pyspark, which is not installed: pip install 'arrow-shuffle[spark]'"
    )


def test_without_spark_the_command_works(
    without_spark: tuple[Environment, list[str], str],
) -> None:
    _, _, shown = without_spark
    assert f"arrow-shuffle {__version__}" in shown
    assert "1,000" in shown


@nightly  # integration/test_documents.py runs the same snippets, on the clone
def test_the_readme_runs_with_spark(
    built: Path, without_spark: tuple[Environment, list[str], str]
) -> None:
    """Spark finds the format, and what is below each snippet is printed."""
    environment, _, _ = without_spark
    (wheel,) = built.glob("*.whl")
    environment.install(f"{wheel}[spark]", f"pyspark=={pyspark.__version__}")
    sources, expected = [], []
    with_spark = False
    _, blocks = split((ROOT / "README.md").read_text(encoding="utf-8"))
    for _, language, source in blocks:
        if language == "python":
            with_spark = "duckdb" not in source
            if with_spark:
                sources.append(source)
        elif language == "text" and with_spark and not source.startswith("$ "):
            expected.append(source.rstrip())
    assert len(sources) == len(expected) == 3
    program = environment.directory / "program.py"
    shuffles = f"{environment.directory}/s"
    program.write_text("\n".join(sources).replace("/tmp/shuffles", shuffles), encoding="utf-8")
    printed = environment.run("python", program).replace(shuffles, "/tmp/shuffles")
    lines = [line for line in printed.splitlines() if line.strip()]
    assert lines == [line for text in expected for line in text.splitlines()]
