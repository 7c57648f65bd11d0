"""The Python in which Spark runs functions: on a local master it is asked before any job starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from arrow_format.errors import MissingPackageError
from connector.pickling import NEEDED
from connector.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRAM = """
import importlib.util, json, sys
lacks = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), lacks]))
"""
_TIMEOUT_S = 60.0


def check_worker_python(spark: SparkSession) -> None:
    """Check the Python that a session on a ``local`` master runs functions in.

    Elsewhere that Python is another machine's, and nothing is checked; nor is it where files of the
    session (``spark.submit.pyFiles``) may bring what it lacks.

    Raises
    ------
    MissingPackageError
        It lacks this package or what that needs, or is another version of Python. The message has
        the line that helps.
    """
    if is_connect(spark):
        return
    context = spark.sparkContext
    if not re.match(r"local($|\[)", context.master or "") or context._python_includes:
        return
    asked = context.pythonExec
    found = shutil.which(asked)
    lacks = ["such a program"] if found is None else what_lacks(found)
    if not lacks:
        return
    variable = "PYSPARK_PYTHON is not set"
    if "PYSPARK_PYTHON" in os.environ:
        variable = "PYSPARK_PYTHON says so"
    msg = (
        f"Spark runs functions in {found or asked} ({variable}), which lacks {', '.join(lacks)}. "
        f"{use_this_python(sys.executable)}"
    )
    raise MissingPackageError(msg, name=lacks[0])


def use_this_python(executable: str) -> str:
    """Return the sentence that says how a session gets the Python of this program."""
    return (
        f"Set PYSPARK_PYTHON={executable} before the session begins, or activate the environment: "
        "export it, or os.environ['PYSPARK_PYTHON'] = sys.executable, and start again"
    )


@lru_cache(20)
def what_lacks(program: str) -> tuple[str, ...]:
    """Return what a Python lacks to run functions of this process; nothing if it does not answer.

    The one of this environment is not asked.
    """
    if not sys.executable or Path(program).parent == Path(sys.executable).parent:
        return ()
    try:
        done = subprocess.run(
            [program, "-c", _PROGRAM, *NEEDED],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            text=True,
        )
        version, lacks = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return ()
    if tuple(version) != sys.version_info[:2]:
        return (f"Python {sys.version_info[0]}.{sys.version_info[1]}",)
    ours = [name for name in lacks if name in ("arrow_format", "connector")]
    others = [name for name in lacks if name not in ours]
    return (*(["arrow-shuffle"] if ours else []), *others)
