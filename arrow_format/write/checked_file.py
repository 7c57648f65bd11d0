"""Writes a partitioned file that takes the place of others, and reads it back before it does.

Whoever writes a version again, a merge or a deletion, does it here: no file is handed out that was
not compared with what it replaces, and of one that failed nothing stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.write.partitioned_file import PartitionedFileWriter, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.model import PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Storage


def write_checked(
    storage: Storage,
    path: str,
    metadata: PartitionedFileMetadata,
    options: WriteOptions,
    *,
    write: Callable[[PartitionedFileWriter], None],
    check: Callable[[PartitionedFileReader], None],
    root: str = "",
    placed: bool = False,
) -> PartitionedFileReader:
    """Write a file, and return its index once ``check`` found nothing wrong with it.

    ``path`` is that of its two files without suffix; ``root`` and ``placed`` are said of them as in
    :class:`~arrow_format.model.PartitionedFile`. On any failure both are removed. Raises what
    ``write`` and ``check`` raise, and StorageError or OutOfDiskError where the storage takes no
    more.
    """
    with PartitionedFileWriter(storage, path, metadata, options) as writer:
        write(writer)
        file = replace(writer.finish(), root=root, placed=placed)
    return read_back(storage, file, check)


def read_back(
    storage: Storage, file: PartitionedFile, check: Callable[[PartitionedFileReader], None]
) -> PartitionedFileReader:
    """Return the index of a new file that ``check`` accepts; it is removed where that raises."""
    try:
        written = PartitionedFileReader(storage, file)
        check(written)
    except BaseException:
        remove_file(storage, file)  # and the first error is the one to raise
        raise
    return written
