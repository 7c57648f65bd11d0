"""Flips bits of the kit, and cuts its files: a reader gives the rows as they were, or an error.

``make damages`` does so more than 100,000 times, and prints how each kind of damage ended. Damage
that a reader of rows did not need to see must be found by `verify`, or by the check of its entry.
Files that no reader of the version needs are left.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from arrow_format import ShuffleError, open_shuffle
from arrow_format.log.entry import check_entry
from tests.compat.kit import Case, cases, copied, read_alike
from tests.compat.product import read

ROWS = [case for case in cases() if case.answer == "rows" and case.damage is None]
"""Versions that are read."""

LARGE = 2_000
"""Rows from which on one takes long to read."""

SILENT, UNTYPED, MISSED = "other rows", "untyped error", "found by no check"
WRONG = (SILENT, UNTYPED, MISSED)
"""What damage must not end as."""

_OF_VERSION, _OF_LOG = (".data", ".index"), (".entry", ".range")


def damage(case: Case, times: int, seed: int) -> Counter[str]:
    """Damage files of a version one after the other; return how often it ended in which way."""
    rng = random.Random(f"{case} {seed}")
    tried: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        shuffle = copied(case.directory, Path(place) / case.name) / "shuffle"
        shutil.rmtree(shuffle.parent / "before", ignore_errors=True)
        files = _files(shuffle)
        needed: set[Path] = set()
        while tried.total() < times:
            file = rng.choice(files)  # an IndexError where no file is needed
            if file not in needed:
                if not _is_needed(case, shuffle, file):
                    files.remove(file)
                    continue
                needed.add(file)
            original = file.read_bytes()
            how, bad = _damaged(rng, original)
            file.write_bytes(bad)
            end = _end(case, shuffle, file, ordered=rng.random() < 0.5)
            file.write_bytes(original)
            tried[f"{how}: {end}"] += 1
            if end in WRONG:
                print(f"{case}, seed {seed}, {file.name}, {how}: {end}", file=sys.stderr)
    return tried


def _files(shuffle: Path) -> list[Path]:
    """Return the files of a shuffle and of its roots that are not empty."""
    return [
        file
        for file in sorted(shuffle.parent.rglob("*.*"))
        if file.is_file() and file.parent != shuffle.parent and file.stat().st_size
    ]


def _is_needed(case: Case, shuffle: Path, file: Path) -> bool:
    """Whether a reader of rows needs a file; a check of whole files then does so, too."""
    original = file.read_bytes()
    file.write_bytes(b"")
    try:
        read(shuffle, case.version)
    except ShuffleError:
        return True
    finally:
        file.write_bytes(original)
    return False


def _damaged(rng: random.Random, original: bytes) -> tuple[str, bytes]:
    """Return how a file is damaged, and its bytes then: with a bit flipped, or cut."""
    at = rng.randrange(len(original))
    if rng.random() < 0.1:
        return "cut", original[:at]
    flipped = bytes([original[at] ^ 1 << rng.randrange(8)])
    return "flip", original[:at] + flipped + original[at + 1 :]


def _end(case: Case, shuffle: Path, file: Path, *, ordered: bool) -> str:
    """Return what comes of reading a version of which a file is damaged."""
    try:
        found = read(shuffle, case.version, ordered=ordered)
    except ShuffleError as error:
        return f"refused, {type(error).__name__}"
    except Exception:
        return UNTYPED
    if not read_alike(case, found):
        return SILENT
    if file.suffix in _OF_VERSION:
        report = open_shuffle(shuffle, case.version).verify(raise_on_damage=False)
        return MISSED if report.ok else "not used, found by verify"
    if file.suffix in _OF_LOG:
        with suppress(ShuffleError):
            check_entry(file.read_bytes())
            return MISSED
        return "not used, found by the check of its entry"
    return "not used"


def main() -> int:
    """Damage all of the kit; return the exit status."""
    parser = argparse.ArgumentParser(description="Flip bits of the kit, and cut its files.")
    parser.add_argument(
        "--times", type=int, default=1_000, help="of each version; a tenth if large"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [
            pool.submit(damage, case, times_of(case, options.times), options.seed) for case in ROWS
        ]
        for job in as_completed(jobs):
            tried += job.result()
    for end, number in sorted(tried.items()):
        print(f"{number:9,}  {end}")
    wrong = {of: sum(tried[f"{how}: {of}"] for how in ("cut", "flip")) for of in WRONG}
    sums = ", ".join(f"{number} {of}" for of, number in wrong.items())
    seconds = time.monotonic() - began
    print(f"{tried.total():9,}  of {len(ROWS)} versions in {seconds:.0f} s: {sums}")
    return 1 if any(wrong.values()) else 0


def times_of(case: Case, times: int) -> int:
    """Return how often a version is damaged where a small one is so many times."""
    expected = case.expected
    assert expected is not None
    return times if len(expected) < LARGE else max(times // 10, 1)


if __name__ == "__main__":
    sys.exit(main())
