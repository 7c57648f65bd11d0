"""What one Python process has: sent by value to processes that may lack this package.

So it needs nothing but the standard library, of Python 3.7. It is pickled by value for executors,
and its source is the program of the Python in which Spark looks for data sources.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import socket
import sys
import time
import uuid
from typing import Any

PACKAGES = (
    "arrow_format",
    "arrow_shuffle",
    "connector",
    "pyspark_arrow_shuffle",
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "msgspec",
    "zstandard",
    "obstore",
)
"""Modules that are imported, in this order."""

TASK_SECONDS = 0.1
"""A task takes this long at least, so that one executor does not run all of them."""


def process_facts(place: dict[str, Any] | None = None, lookup: str | None = None) -> dict[str, Any]:
    """Return what this process has, as values that JSON can hold.

    ``lookup`` is a program that should be here. ``place`` is where driver and executors look for
    each other's files: ``directory`` or ``uri`` with ``options``, and ``name`` of the driver's.
    """
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "executable": sys.executable,
        "python": platform.python_version(),
        "packages": {name: _package(name) for name in PACKAGES},
    }
    if place is not None:
        facts["place"] = _look_at(place)
    if lookup is not None:
        facts["has_lookup"] = shutil.which(lookup) is not None
    facts["time"] = time.time()
    return facts


def answer(place: dict[str, Any] | None, lookup: str | None, _: int) -> str:
    """Return :func:`process_facts` as JSON, from a task of Spark."""
    time.sleep(TASK_SECONDS)
    return json.dumps(process_facts(place, lookup))


def _package(name: str) -> dict[str, str | None]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return {"version": None, "error": None}
        return {"version": None, "error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # a broken package may raise anything
        return {"version": None, "error": f"{type(error).__name__}: {error}"}
    version = getattr(module, "__version__", None)
    return {"version": str(version or "?"), "error": None}


def _look_at(place: dict[str, Any]) -> dict[str, Any]:
    """Return whether the driver's file is there, and the name of one put there for the driver.

    Where the driver's file is missing none is put, since the driver could not remove it.
    """
    own = f"{place['name']}-{uuid.uuid4().hex}"
    found: dict[str, Any] = {"sees": False, "wrote": None, "error": None}
    try:
        if "directory" in place:
            found["sees"] = os.path.exists(os.path.join(place["directory"], place["name"]))  # noqa: PTH110, PTH118
            if found["sees"]:
                with open(os.path.join(place["directory"], own), "x"):  # noqa: PTH118, PTH123
                    found["wrote"] = own
        else:
            from arrow_format.storage.open import open_storage

            storage = open_storage(place["uri"], place["options"])
            found["sees"] = storage.stat(place["name"]) is not None
            if found["sees"]:
                storage.put_if_absent(own, b"", sync=False)
                found["wrote"] = own
    except Exception as error:  # whatever it is, the driver shows it
        found["error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print(json.dumps(process_facts()))
