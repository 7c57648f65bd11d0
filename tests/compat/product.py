"""The product's reader, as the kit asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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


def read(shuffle: Path, version: int, *, ordered: bool = True) -> pa.Table:
    """Return the rows of a version, with their subpartitions.

    Rows that were read without an order are put into that of subpartitions: those of each have
    theirs.
    """
    rows = open_shuffle(shuffle, version).read(ordered=ordered, with_subpartition=True).read_all()
    if ordered:
        return rows
    return rows.take(np.argsort(rows["_subpartition"].to_numpy(), kind="stable"))


if __name__ == "__main__":
    serve(read, REFUSALS)
