"""The product's reader, as the kit asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format import open_shuffle
from arrow_format.errors import (
    CorruptShuffleError,
    FormatVersionError,
    ResultReleasedError,
    ShuffleNotFoundError,
)
from integration.readers.serve import serve

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

REFUSALS: dict[type[Exception], str] = {
    FormatVersionError: "newer",
    CorruptShuffleError: "damage",
    ResultReleasedError: "absent",
    ShuffleNotFoundError: "absent",
}
"""What each error of the product is for the kit."""


def read(shuffle: Path, version: int) -> pa.Table:
    """Return the rows of a version, with their subpartitions."""
    return open_shuffle(shuffle, version).read(with_subpartition=True).read_all()


if __name__ == "__main__":
    serve(read, REFUSALS)
