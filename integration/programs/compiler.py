"""Finds the Java compiler that the jar of Spark's reader is built by.

``python -m integration.programs.compiler`` prints its path, or to stderr how to get one. It needs
the standard library only, so that it works before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from arrow_format.errors import ShuffleError

JDK = 17
"""Major version of the compiler: the lowest that Spark runs on. Others write other bytes."""

INSTALLED = Path("/usr/lib/jvm")
"""Where systems install them."""


class CompilerError(ShuffleError):
    """There is no compiler, or it refuses the sources; for who runs ``make jar``."""


def find_compiler() -> str:
    """Return the ``javac`` of JDK 17: of ``JAVA_HOME``, of ``PATH``, or where systems install it.

    Raises CompilerError, which says what was found, and how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    places = [f"{home}/bin/javac"] if home else []
    places += ["javac", *map(str, sorted(INSTALLED.glob("*/bin/javac")))]
    found = dict.fromkeys(filter(None, map(shutil.which, places)))
    versions = {program: _major(program) for program in found}
    for program, major in versions.items():
        if major == JDK:
            return program
    seen = ", ".join(f"{program} of {major}" for program, major in versions.items())
    msg = (
        f"the jar is built by the javac of JDK {JDK}, and there is {seen or 'none'}: install one "
        f"(Debian and Ubuntu: apt-get install openjdk-{JDK}-jdk-headless) or set JAVA_HOME to the "
        "directory of one. Without it everything but the Java can be changed and tried: the jar "
        "is in the repository"
    )
    raise CompilerError(msg)


def _major(javac: str) -> int | None:
    said = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
    found = re.match(r"javac (\d+)", said.stdout)
    return int(found[1]) if found else None


def main() -> int:
    """Print its path, or to stderr what is there instead; return the exit status."""
    try:
        print(find_compiler())
    except CompilerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
