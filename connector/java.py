"""Checks the Java that Spark would start; says in one sentence what is wrong with it.

Spark starts ``$JAVA_HOME/bin/java``, or ``java`` from ``PATH`` where ``JAVA_HOME`` is not set, and
answers a missing or old one with a stack trace. ``python -m connector.java`` needs the standard
library only, so that it works before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from arrow_format.errors import ShuffleError

MINIMUM_JAVA = 17
"""Oldest major version that Spark 4 runs on."""

VECTOR_MODULE = "jdk.incubator.vector"
"""Spark adds this module to every JVM, which does not start without it."""

_TIMEOUT_SECONDS = 60.0


class JavaNotFoundError(ShuffleError):
    """No Java here can run Spark; the message says what is there instead, and what to do."""


def parse_java_version(text: str) -> tuple[str, int] | None:
    """Return the version that ``java -version`` printed and its major number, if it printed one.

    The major number is 17 for ``17.0.15`` and 8 for ``1.8.0_412``. Lines before the version, such
    as ``Picked up JAVA_TOOL_OPTIONS: ...``, are skipped.
    """
    match = re.search(r'^\S+ version "((?:1\.)?(\d+)[^"]*)"', text, flags=re.MULTILINE)
    return match and (match[1], int(match[2]))


def require_java() -> str:
    """Return version and path of the Java that Spark would start.

    Raises
    ------
    JavaNotFoundError
        There is none, it is too old, it lacks ``jdk.incubator.vector``, or it does not run.
    """
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which(os.path.join(home, "bin", "java") if home else "java")  # noqa: PTH118
    if executable is None:
        where = f"JAVA_HOME is {home} and" if home else "JAVA_HOME is not set and"
        raise _error(f"{where} there is no {'bin/java in it' if home else 'java on PATH'}")
    printed = _run(executable, "-version")
    version = parse_java_version(printed)
    if version is None:
        first = (printed.strip() or "nothing").splitlines()[0]
        raise _error(f"'{executable} -version' printed {first!r} and no version")
    text, major = version
    if major < MINIMUM_JAVA:
        raise _error(f"{executable} is Java {text}")
    modules = _run(executable, "--list-modules").splitlines()
    if VECTOR_MODULE not in {line.strip().partition("@")[0] for line in modules}:
        raise _error(f"{executable} (Java {text}) lacks its module {VECTOR_MODULE}")
    return f"Java {text} ({executable})"


def _run(executable: str, argument: str) -> str:
    """Return all that the program prints: ``java -version`` prints to stderr."""
    try:
        return subprocess.run(
            [executable, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            text=True,
            errors="replace",
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _error(f"'{executable} {argument}' did not run ({error})") from error


def _error(what: str) -> JavaNotFoundError:
    return JavaNotFoundError(
        f"Spark needs Java {MINIMUM_JAVA} or newer, but {what}: install one (Debian and Ubuntu: "
        "apt-get install openjdk-17-jre-headless) or set JAVA_HOME to the directory of one that "
        "is installed."
    )


def main() -> int:
    """Print the version, or to stderr what is wrong; return the exit status."""
    try:
        print(require_java())
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
