"""Fixtures of several modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a shuffle may be written; nothing is there. Some modules put one there first."""
    return tmp_path / "shuffle"
