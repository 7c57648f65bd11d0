"""Public names of a package, loaded on first use: its stub says which there are, and where.

So importing a package, as Spark's discovery of data sources does, costs next to nothing, and type
checkers and Python read one list.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from arrow_format.extras import is_installed, needed_by

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, whose stub is at ``file``.

    Without PySpark, names of ``connector`` are not listed, and loading one that needs it raises
    :class:`~arrow_format.errors.MissingPackageError`.
    """
    # By the loader of the package, which may be in a zip that Spark was given.
    loader: Any = sys.modules[package].__loader__
    homes = _homes(loader.get_data(f"{file.removesuffix('.py')}.pyi"))
    has_spark = is_installed("pyspark")
    public = sorted(n for n, home in homes.items() if has_spark or not _is_of_spark(home))

    def load(name: str) -> Any:  # noqa: ANN401
        if name not in homes:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        # An ImportError, and no AttributeError: "from package import x" would replace its message.
        with needed_by(f"{package}.{name}"):
            module, attribute = homes[name]
            if module == package:  # a module of it
                return import_module(f"{package}.{attribute}")
            return getattr(import_module(module), attribute)

    def listed() -> list[str]:
        return sorted([*public, "__version__"])

    return load, listed, public


def _homes(stub: bytes) -> dict[str, tuple[str, str]]:
    """Return by name the module that has it, and the name there."""
    homes = {}
    for statement in ast.parse(stub).body:
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for alias in statement.names:
                homes[alias.asname or alias.name] = statement.module, alias.name
    return {name: home for name, home in homes.items() if not name.startswith("_")}


def _is_of_spark(home: tuple[str, str]) -> bool:
    return home[0].startswith("connector.")
