"""One bit of the kit flipped, or a file cut: rows as they were, or an error; and it is found."""

import random
import shutil
from collections import Counter

import pytest

from arrow_format import CorruptShuffleError, ShuffleError, open_shuffle
from arrow_format.log.entry import check_entry
from tests.compat.kit import cases, copied, read_alike
from tests.compat.product import read
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee

ROWS = [case for case in cases() if case.answer == "rows" and case.damage is None]
LARGE = 2_000
"""Rows from which on a shuffle takes long to read."""

TRIED: Counter[str] = Counter()


def damaged(rng: random.Random, original: bytes) -> tuple[str, bytes]:
    """Return a file with a bit flipped, or cut."""
    at = rng.randrange(len(original))
    if rng.random() < 0.1:
        return "cut", original[:at]
    flipped = bytes([original[at] ^ 1 << rng.randrange(8)])
    return "flip", original[:at] + flipped + original[at + 1 :]


@guarantee("noticed damage", "verify")
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_damage_anywhere_in_the_kit(case, tmp_path):
    rng = random.Random(str(case))
    expected = case.expected
    shuffle = copied(case.directory, tmp_path / case.name) / "shuffle"
    shutil.rmtree(shuffle.parent / "before", ignore_errors=True)
    files = [
        file
        for file in sorted(shuffle.parent.rglob("*"))
        if file.is_file() and file.parent != shuffle.parent and file.stat().st_size
    ]
    for _ in range(times(5, 1_000) if len(expected) < LARGE else times(1, 100)):
        file = rng.choice(files)
        original = file.read_bytes()
        how, bad = damaged(rng, original)
        file.write_bytes(bad)
        try:
            found = read(shuffle, case.version, ordered=rng.random() < 0.5)
        except ShuffleError as error:
            TRIED[f"{how}, refused: {type(error).__name__}"] += 1
        except Exception:
            TRIED[f"{how}, untyped"] += 1
            raise
        else:
            alike = read_alike(case, found)
            TRIED[f"{how}, not used" if alike else f"{how}, silent"] += 1
            assert alike, f"{file}: other rows, and no error"
            # Of what a reader of rows does not look at: bytes of files of the version are for
            # `verify`, and the log's files that it does not need are refused by readers that do.
            if file.suffix in (".data", ".index", ".masks"):
                report = open_shuffle(shuffle, case.version).verify(raise_on_damage=False)
                assert not report.ok or not used(shuffle, case.version, file), file
            elif file.suffix in (".entry", ".range"):
                with pytest.raises(CorruptShuffleError):
                    check_entry(bad)
        finally:
            file.write_bytes(original)


def used(shuffle, version, file):
    """Whether a version names a file."""
    paths = [of.path for one in open_shuffle(shuffle, version).map_outputs for of in one.files]
    return any(file.name.startswith(path.rpartition("/")[2]) for path in paths)


def test_what_was_tried_of_the_kit():
    wrong = {
        how: sum(TRIED[f"{of}, {how}"] for of in ("cut", "flip")) for how in ("silent", "untyped")
    }
    print(f"\ndamages of the kit: {TRIED.total():,} {dict(sorted(TRIED.items()))}; {wrong}")
    assert wrong == {"silent": 0, "untyped": 0}
