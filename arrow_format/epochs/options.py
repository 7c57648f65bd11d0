"""What an epoch is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from arrow_format.errors import OptionError
from arrow_format.options import check_flag, check_integer

MEMORY_BYTES = 384 << 20
LANES = 256

BLOCKS_IN_MEMORY = 20
"""Blocks of rows that the memory of a reader has room for: it draws from most of them, and others
are being read."""

OPEN_BLOCKS = 13
"""Those of them that a reader draws from."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """How the rows of an epoch are put in order and dealt to readers."""

    batch_size: int
    """Rows of each batch; the last of a reader may have fewer."""
    seed: int | None = 0
    """Decides the order, with the number of the epoch; None for the order of reading."""
    memory_bytes: int = MEMORY_BYTES
    """Memory that a reader mixes rows in: the more, the better they are mixed."""
    lanes: int = LANES
    """Streams that the rows are dealt to, and so the most readers that can have some."""
    drop_last: bool = False
    """Whether all readers get equally many batches, all of ``batch_size`` rows, of their first."""
    pad: bool = False
    """Whether all readers get equally many batches, all of ``batch_size`` rows, some rows twice."""

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, 1, 1 << 31, "rows")
        check_integer("memory_bytes", self.memory_bytes, 1 << 20, 1 << 62, "bytes")
        check_integer("lanes", self.lanes, 1, 1 << 16, "lanes")
        if self.seed is not None:
            check_integer("seed", self.seed, 0, (1 << 63) - 1, "any kind")
        check_flag("drop_last", self.drop_last)
        check_flag("pad", self.pad)
        if self.drop_last and self.pad:
            msg = (
                "drop_last=True and pad=True: of a reader with fewer rows, either others leave "
                "theirs out or it gets some twice; give one of them, or none for each row once"
            )
            raise OptionError(msg)

    @property
    def block_bytes(self) -> int:
        """Bytes in Arrow that a block of a lane has at most, by estimate."""
        return self.memory_bytes // BLOCKS_IN_MEMORY

    @property
    def open_bytes(self) -> int:
        """Bytes of the blocks that a reader draws from at a time."""
        return self.block_bytes * OPEN_BLOCKS
