"""What a user is told about Java before Spark gets a chance to print a stack trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arrow_format.errors import ShuffleError
from connector.java import JavaNotFoundError, parse_java_version
from tests.support.programs import printed

ROOT = Path(__file__).resolve().parents[3]

DEBIAN_17 = """\
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""
ORACLE_21 = """\
java version "21.0.2" 2024-01-16 LTS
Java(TM) SE Runtime Environment (build 21.0.2+13-LTS-58)
Java HotSpot(TM) 64-Bit Server VM (build 21.0.2+13-LTS-58, mixed mode, sharing)
"""
OPENJDK_8 = """\
openjdk version "1.8.0_412"
OpenJDK Runtime Environment (build 1.8.0_412-8u412-ga-1~22.04.1-b08)
OpenJDK 64-Bit Server VM (build 25.412-b08, mixed mode)
"""
WITH_OPTIONS_11 = """\
Picked up JAVA_TOOL_OPTIONS: -Dversion="99" -Xmx1g
openjdk version "11.0.23" 2024-04-16
OpenJDK Runtime Environment (build 11.0.23+9-post-Ubuntu-1ubuntu1)
"""
EARLY_ACCESS_26 = """\
openjdk version "26-ea" 2026-03-17
OpenJDK Runtime Environment (build 26-ea+1)
"""
MACOS_STUB = "The operation couldn't be completed. Unable to locate a Java Runtime.\n"


@pytest.mark.parametrize(
    ("output", "text", "major"),
    [
        pytest.param(DEBIAN_17, "17.0.15", 17, id="debian-17"),
        pytest.param(ORACLE_21, "21.0.2", 21, id="oracle-21"),
        pytest.param(OPENJDK_8, "1.8.0_412", 8, id="old-numbering"),
        pytest.param(WITH_OPTIONS_11, "11.0.23", 11, id="options-picked-up"),
        pytest.param(EARLY_ACCESS_26, "26-ea", 26, id="early-access"),
        pytest.param('openjdk version "17"\n', "17", 17, id="first-release"),
    ],
)
def test_version_is_parsed(output, text, major):
    assert parse_java_version(output) == (text, major)


@pytest.mark.parametrize("output", ["", MACOS_STUB, "java: command not found"])
def test_output_without_a_version_gives_none(output):
    assert parse_java_version(output) is None


def test_the_error_is_one_of_ours():
    assert issubclass(JavaNotFoundError, ShuffleError)


def run_check(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m connector.java`` with nothing on PATH but what `variables` say."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-m", "connector.java"],
        cwd=ROOT,
        env=environment | {"PATH": ""} | variables,
        capture_output=True,
        check=False,
        text=True,
    )


def assert_one_sentence(completed: subprocess.CompletedProcess[str], *fragments: str) -> None:
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert "Traceback" not in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
    for fragment in (*fragments, "openjdk-17-jre-headless", "JAVA_HOME"):
        assert fragment in completed.stderr


def fake_java(directory: Path, script: str) -> Path:
    """Stand in for a Java that cannot be had here."""
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_missing_java():
    assert_one_sentence(run_check(), "JAVA_HOME is not set and there is no java on PATH")


def test_java_home_without_java(tmp_path):
    assert_one_sentence(run_check(JAVA_HOME=str(tmp_path)), f"JAVA_HOME is {tmp_path}", "bin/java")


def test_java_that_is_too_old(tmp_path):
    program = fake_java(tmp_path, "echo 'openjdk version \"1.8.0_412\"' >&2")
    assert_one_sentence(
        run_check(PATH=str(program.parent)), f"Java 17 or newer, but {program} is Java 1.8.0_412"
    )


def test_java_without_the_vector_module(tmp_path):
    script = """case $1 in
--list-modules) echo java.base@17.0.15; echo jdk.incubator.foreign@17.0.15;;
*) echo 'openjdk version "17.0.15" 2025-04-15';;
esac"""
    program = fake_java(tmp_path, script)
    assert_one_sentence(
        run_check(JAVA_HOME=str(tmp_path)),
        f"{program} (Java 17.0.15) lacks its module jdk.incubator.vector",
    )


def test_java_that_tells_no_version(tmp_path):
    fake_java(tmp_path, "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    assert_one_sentence(run_check(JAVA_HOME=str(tmp_path)), "Unable to locate a Java Runtime.")


def test_java_that_does_not_run(tmp_path):
    fake_java(tmp_path, "").write_text("#!/nonexistent/interpreter\n")
    assert_one_sentence(run_check(JAVA_HOME=str(tmp_path)), "did not run")


@pytest.mark.spark
def test_the_java_of_this_machine_will_do():
    completed = run_check(
        **{name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("Java ")
    assert completed.stderr == ""


def test_the_check_needs_nothing_installed():
    program = "import connector.java, sys; print({'numpy', 'pyarrow', 'pyspark'} & {*sys.modules})"
    assert printed(program) == "set()\n"
