"""Packages that are installed on request: what to say where one is missing."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from arrow_format.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS = {
    "dask": "dask",
    "deltalake": "delta",
    "obstore": "object-stores",
    "pandas": "pandas",
    "polars": "polars",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "ray": "ray",
    "torch": "torch",
}
"""Optional packages, and the extra of the distribution that installs each."""


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turn the failing import of an optional package into :class:`MissingPackageError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise _missing(error.name, what) from None


def is_installed(package: str) -> bool:
    """Whether an optional package can be imported; imports nothing."""
    return find_spec(package) is not None


def require(package: str, what: str) -> None:
    """Raise :class:`MissingPackageError` if an optional package is missing; import nothing."""
    if not is_installed(package):
        raise _missing(package, what)


def _missing(package: str, what: str) -> MissingPackageError:
    msg = (
        f"{what} needs {package}, which is not installed: "
        f"pip install 'arrow-shuffle[{EXTRAS[package]}]'"
    )
    return MissingPackageError(msg, name=package)
