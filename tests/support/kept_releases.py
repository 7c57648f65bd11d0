"""Wheels of earlier releases, built from their commits and kept below ``.cache``.

``python -m tests.support.kept_releases`` builds those that are missing (``make kept-releases``).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "releases"

RELEASES = {"0.2.0": "8bb32752cf2ac1be065781b2236f9a42a75f48a8"}
"""The commit of each release, or of what it will be, since version 1 of the format was frozen."""


class NoSuchCommitError(Exception):
    """The clone does not have the commit of a release."""


def kept_release(release: str) -> Path:
    """Return the directory that a release is installed in, alone; build it where it is missing.

    Raises NoSuchCommitError where this is no clone, or one without the release's commit.
    """
    commit = _commit_of(RELEASES[release])
    directory = KEPT / f"{release}-{commit[:12]}"
    if not directory.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
            _build(commit, Path(scratch))
            Path(scratch, "installed").rename(directory)
    return directory


def _commit_of(revision: str) -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        msg = f"this clone does not have {revision}: fetch all commits (git fetch --unshallow)"
        raise NoSuchCommitError(msg)
    return found.stdout.strip()


def _build(commit: str, scratch: Path) -> None:
    archived = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    # By tar: Python's module wants a filter from 3.12 on, and knows none before 3.11.4.
    source = scratch / "source"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", source], input=archived, check=True)
    for command in (
        ["build", "--wheel", "--outdir", f"{scratch}", f"{source}"],
        ["pip", "install", "--quiet", "--no-deps", "--target", f"{scratch / 'installed'}"],
    ):
        wheels = map(str, scratch.glob("*.whl")) if command[0] == "pip" else ()
        done = subprocess.run(
            [sys.executable, "-m", *command, *wheels], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    for name in RELEASES:
        print(name, kept_release(name).relative_to(ROOT))
