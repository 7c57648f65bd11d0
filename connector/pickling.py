"""What arrives in Spark's Python processes says so where the package or what it needs is missing.

Or where it is of another release: objects of one are none of another.

Spark unpickles map tasks, readers and data sources on executors and servers. Where one lacks this
package that fails before any of our code runs, with ``No module named 'connector'``. So functions
of this module are pickled by value, and run first.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import Any

from pyspark import cloudpickle

NEEDED = ("arrow_format", "connector", "msgspec", "numpy", "pyarrow", "sqlglot", "zstandard")
"""Modules that tasks and data sources import."""


def require_here(sender: tuple[str, str, str] | None = None) -> None:
    """Raise ModuleNotFoundError, with host and interpreter, where this process lacks a module.

    ``sender`` is host, interpreter and release of the program that this one works for. Raises
    MissingPackageError where this process has another release.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        ours = [name for name in missing if name in ("arrow_format", "connector")]
        what = "arrow-shuffle" if ours else f"arrow-shuffle needs {', '.join(missing)}, which"
        host = socket.gethostname()
        remedy = "install it there, or bring it along (docs: Deployment)"
        if sender is not None and sender[0] == host and sender[1] != sys.executable:
            remedy = (
                f"the program itself runs in {sender[1]}: set PYSPARK_PYTHON={sender[1]} where "
                f"Spark is started, before it is; or {remedy}"
            )
        msg = (
            f"{what} is missing on {host} in {sys.executable}, where Spark runs "
            f"part of this job: {remedy}; arrow-shuffle doctor shows what each process has"
        )
        raise ModuleNotFoundError(msg, name=missing[0])
    from arrow_format import __version__
    from arrow_format.errors import MissingPackageError

    if sender is not None and sender[2] != __version__:
        msg = (
            f"arrow-shuffle {__version__} is installed on {socket.gethostname()} in "
            f"{sys.executable}, where Spark runs part of this job, and the program itself has "
            f"{sender[2]} on {sender[0]} in {sender[1]}: install one release in both; "
            "arrow-shuffle doctor shows what each process has"
        )
        raise MissingPackageError(msg)


def sender() -> tuple[str, str, str]:
    """Return host, interpreter and release of this process."""
    from arrow_format import __version__

    return socket.gethostname(), sys.executable, __version__


def rebuild(_: object, kind: type[Any], state: dict[str, Any]) -> object:
    """Return an object of a kind with its attributes; ``_`` was unpickled before both."""
    made: Any = object.__new__(kind)
    made.__dict__.update(state)
    return made


class _Required:
    """Is :func:`require_here` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return require_here, (sender(),)


class ChecksOnArrival:
    """Base of what Spark pickles: asks where it arrives before it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (_Required(), type(self), self.__dict__)


def pickle_by_value(module: str) -> None:
    """Let Spark pickle functions and classes of a module with their code."""
    pickles: Any = cloudpickle  # has no types
    pickles.register_pickle_by_value(sys.modules[module])


pickle_by_value(__name__)
