"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 10) -> None:
    """Wait until something holds; fail where it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        time.sleep(0.01)
