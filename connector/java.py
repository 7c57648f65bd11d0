"""Find the Java that Spark will start, and say in one sentence what is wrong with it.

Spark runs ``$JAVA_HOME/bin/java`` when ``JAVA_HOME`` is set and ``java`` on ``PATH`` otherwise, and
answers a missing or old one with a stack trace from its gateway. ``python -m connector.java`` needs
the standard library only, so that it works before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from arrow_format.errors import ShuffleError

MINIMUM_JAVA = 17
"""The oldest major version that Spark 4.3 runs on."""

VECTOR_MODULE = "jdk.incubator.vector"
"""Spark's launcher adds this module to every JVM, which does not start without it."""

_ADVICE = (
    "install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless) "
    "or set JAVA_HOME to the directory of one that is installed."
)
_TIMEOUT_SECONDS = 60.0


class JavaNotFoundError(ShuffleError):
    """There is no Java that can run Spark; the message names what was found instead."""


@dataclass(frozen=True)
class JavaVersion:
    """One Java installation."""

    text: str
    """The version as Java prints it, such as ``17.0.15`` or ``1.8.0_412``."""
    executable: str
    """Path of the ``java`` program."""

    @property
    def major(self) -> int:
        """The feature release: 17 for ``17.0.15``, 8 for ``1.8.0_412``."""
        first, *rest = (int(number) for number in re.findall(r"\d+", self.text))
        return rest[0] if first == 1 and rest else first

    def __str__(self) -> str:
        return f"Java {self.text} ({self.executable})"


def parse_java_version(text: str) -> str | None:
    """Return the version in the output of ``java -version``, or None when there is none.

    Parameters
    ----------
    text
        Everything the command printed. Lines ahead of the version, such as
        ``Picked up JAVA_TOOL_OPTIONS: ...``, are skipped.
    """
    match = re.search(r'^\S+ version "(\d[^"]*)"', text, flags=re.MULTILINE)
    return match[1] if match else None


def problem_with(version: JavaVersion, modules: str, minimum: int = MINIMUM_JAVA) -> str | None:
    """Say in one sentence why Spark cannot run on this Java; None when it can.

    Parameters
    ----------
    version
        The installation.
    modules
        Output of ``java --list-modules``; looked at only when the version is new enough.
    minimum
        Oldest major version that will do.
    """
    if version.major < minimum:
        return (
            f"Spark needs Java {minimum} or newer, but {version.executable} is "
            f"Java {version.text}: {_ADVICE}"
        )
    names = {line.strip().partition("@")[0] for line in modules.splitlines()}
    if VECTOR_MODULE not in names:
        return (
            f"Spark needs a Java {minimum} or newer with the module {VECTOR_MODULE}, but "
            f"{version.executable} (Java {version.text}) lacks it: {_ADVICE}"
        )
    return None


def find_java() -> JavaVersion:
    """Find the Java that Spark would start, whatever its version.

    Raises
    ------
    JavaNotFoundError
        When there is none, or it does not tell its version.
    """
    executable = _locate()
    output = _run(executable, "-version")
    text = parse_java_version(output)
    if text is None:
        printed = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
        raise JavaNotFoundError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, but '{executable} -version' "
            f"printed {printed!r} and no version: {_ADVICE}"
        )
    return JavaVersion(text=text, executable=executable)


def require_java(minimum: int = MINIMUM_JAVA) -> JavaVersion:
    """Return the Java that Spark would start, once it is known to be good enough.

    Parameters
    ----------
    minimum
        Oldest major version that will do.

    Raises
    ------
    JavaNotFoundError
        When there is none, when it is too old, or when it lacks ``jdk.incubator.vector``.
    """
    version = find_java()
    modules = _run(version.executable, "--list-modules") if version.major >= minimum else ""
    problem = problem_with(version, modules, minimum)
    if problem is not None:
        raise JavaNotFoundError(problem)
    return version


def _locate() -> str:
    """Return the program that Spark's own launcher would choose."""
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = shutil.which(os.path.join(home, "bin", "java"))  # noqa: PTH118
        if executable is None:
            raise JavaNotFoundError(
                f"Spark needs Java {MINIMUM_JAVA} or newer, but JAVA_HOME is {home} "
                f"and there is no program bin/java in it: {_ADVICE}"
            )
        return executable
    executable = shutil.which("java")
    if executable is None:
        raise JavaNotFoundError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, but JAVA_HOME is not set "
            f"and there is no java on PATH: {_ADVICE}"
        )
    return executable


def _run(executable: str, argument: str) -> str:
    """Return all that the program prints; ``java -version`` uses stderr."""
    try:
        completed = subprocess.run(
            [executable, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFoundError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, but '{executable} {argument}' "
            f"did not run ({error}): {_ADVICE}"
        ) from error
    return completed.stdout


def main() -> int:
    """Print the version, or what is wrong to stderr; return the exit status."""
    try:
        version = require_java()
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
