"""The places of a test: of a shuffle, of files alone, and a disk of its own to fill up."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from arrow_format.storage.open import PosixStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shuffle"


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(str(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of 2 MB."""
    directory = tmp_path / "small"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"cannot mount a small disk here: {made.stderr.strip()}")
    yield directory
    # Lazy: whatever walks over the machine's disks at this moment would make it busy.
    subprocess.run(["umount", "--lazy", str(directory)], check=True)
