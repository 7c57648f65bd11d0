"""Fixtures of several modules."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from arrow_format.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from pathlib import Path

SAY_WHO = """
import msgspec
from arrow_format.process_identity import this_process
print(msgspec.json.encode(this_process()).decode())
"""


@pytest.fixture(scope="session")
def dead() -> ProcessIdentity:
    """A process of this machine that has ended."""
    told = subprocess.run([sys.executable, "-c", SAY_WHO], capture_output=True, check=True).stdout
    return msgspec.json.decode(told, type=ProcessIdentity)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a shuffle may be written; nothing is there. Some modules put one there first."""
    return tmp_path / "shuffle"
