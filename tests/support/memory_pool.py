"""What Arrow allocates within a block."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def counted_pool() -> Iterator[pa.MemoryPool]:
    """Let Arrow allocate from a pool that counts, until the block ends; it goes on counting."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        yield counting
    finally:
        pa.set_memory_pool(usual)
