"""What a child process finds that was forked from this one."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from arrow_format import ClosedError

if TYPE_CHECKING:
    import pyarrow as pa


def is_closed_in_a_child(reader: pa.RecordBatchReader) -> bool:
    """Whether a child that reads on from a reader gets a ClosedError, within 20 seconds."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            next(reader)
        except ClosedError:
            reader.close()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0
