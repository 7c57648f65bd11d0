"""A release that was frozen and the code of now share a shuffle, as `releases.md` promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.compat.golden import HERE
from tests.compat.kit import problems
from tests.support.guarantees import guarantee
from tests.support.kept_releases import RELEASES, ROOT, NoSuchCommitError, kept_release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import json, sys
import pyarrow as pa
import arrow_shuffle

assert arrow_shuffle.__file__.startswith(sys.argv[1]), arrow_shuffle.__file__
always = arrow_shuffle.MergePolicy(rewrite="always")

def feed(op, numbers, sequence):
    columns = [[op] * len(numbers), numbers, [sequence] * len(numbers), [op] * len(numbers)]
    types = [pa.string(), pa.int64(), pa.int64(), pa.string()]
    arrays = map(pa.array, columns, types)
    return pa.table([*arrays], names=["op", "k", "lsn", "v"])

def done(what, path, numbers):
    try:
        if what == "create":
            rows = feed("c", list(range(100)), 0).drop_columns(["op"])
            how = dict(keys="k", unique="k", sequence_by="lsn", num_subpartitions=4, sort_by=["v"])
            arrow_shuffle.write_shuffle(rows, path, **how)
        shuffle = arrow_shuffle.open_shuffle(path)
        if what == "upsert":
            rows, gone = feed("u", numbers[1:], numbers[0]), feed("d", numbers[1:3], numbers[0] + 1)
            shuffle.upsert(pa.concat_tables([rows, gone]), row_kind="op")
        elif what == "append":
            rows = feed("a", numbers[1:], numbers[0]).drop_columns(["op"])
            shuffle.append(rows)
        elif what == "merge":
            shuffle.merge("map_output" if numbers[0] % 2 else "subpartition", policy=always)
        elif what in ("erase", "mask"):
            shuffle.delete({"k": pa.array(numbers, pa.int64())}, erase=what == "erase")
        elif what == "rescale":
            shuffle.rescale(numbers[0])
        elif what == "collect":
            shuffle.collect_garbage()
        elif what == "begin":
            shuffle.append(shuffle.to_table().slice(0, 1))
        now = shuffle.newest()
        rows = sorted(map(list, zip(*(of.to_pylist() for of in now.to_table().columns))), key=str)
        problems = [str(one) for one in now.verify(raise_on_damage=False).problems]
        return {"rows": rows, "n": now.num_subpartitions, "problems": problems}
    except arrow_shuffle.errors.ShuffleError as error:
        return {"error": [type(error).__name__, str(error)]}

for line in sys.stdin:
    print(json.dumps(done(*json.loads(line))), flush=True)
"""

STEPS = (
    ("create",),
    ("upsert", 5, 1, 2, 3, 4, 200, 201),
    ("append", 0, 300, 301),
    ("upsert", 3, 1, 2, 3, 202),
    ("mask", 40, 41, 200),
    ("rescale", 6),
    ("upsert", 9, 50, 51, 52, 3),
    ("merge", 1),
    ("erase", 60, 1),
    ("upsert", 2, 1, 2, 51, 61),
    ("merge", 2),
    ("rescale", 3),
    ("collect",),
    ("upsert", 20, 70, 71, 72),
)


@pytest.fixture(scope="module", params=[*RELEASES])
def earlier(request: pytest.FixtureRequest) -> Path:
    """The directory of an earlier release."""
    try:
        return kept_release(request.param)
    except NoSuchCommitError as error:
        pytest.skip(str(error))


class Release:
    """A process of a release that is installed in a directory."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(home)],
            env=kept | {"PYTHONPATH": str(home)},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, what: str, path: Path, *numbers: int) -> dict:
        """Let it do something, and return what it sees then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, str(path), numbers]) + "\n")
        self._process.stdin.flush()
        seen: dict = json.loads(self._process.stdout.readline())
        return seen

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture
def releases(earlier: Path) -> Iterator[tuple[Release, Release]]:
    """The earlier release, and the code of now."""
    both = Release(earlier), Release(ROOT)
    yield both
    for each in both:
        each.close()


@guarantee("two releases")
def test_they_write_a_shuffle_in_turns(releases: tuple[Release, Release], tmp_path: Path) -> None:
    """Each does every second step, the other the rest; and the reverse, with equal rows."""
    seen = {}
    for first in (0, 1):
        path, found = tmp_path / f"s{first}", []
        for number, (what, *numbers) in enumerate(STEPS):
            writer, reader = releases if (number + first) % 2 else releases[::-1]
            done = writer.run(what, path, *numbers)
            assert "error" not in done, (number, what, done)
            assert done["problems"] == []
            assert reader.run("read", path) == done, (number, what)
            found.append(done)
        seen[first] = found
    assert seen[0] == seen[1]
    assert len({json.dumps(one) for one in seen[0]}) > len(STEPS) // 2


@guarantee("two releases")
def test_the_earlier_one_answers_the_kit_of_now(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is refused as newer there: the kit has what no release knows yet."""
    for package in ("tests/compat", "integration/readers"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("v1", "jvm")
        )
    for package in ("tests", "integration"):
        shutil.copy(ROOT / package / "__init__.py", tmp_path / package)
    monkeypatch.setenv("PYTHONPATH", f"{earlier}{os.pathsep}{tmp_path}")
    monkeypatch.chdir(tmp_path)
    assert list(problems([sys.executable, "-m", "tests.compat.product"])) == []


@guarantee("two releases")
def test_what_a_later_one_added_is_refused_by_name(
    releases: tuple[Release, Release], tmp_path: Path
) -> None:
    """A name of writers leaves readers what they are; one of readers does not."""
    earlier, _ = releases
    kept = HERE / "unknown_names" / "shuffle"
    shutil.copytree(kept, tmp_path / "of_writers")
    assert len(earlier.run("read", tmp_path / "of_writers")["rows"]) == 10
    name, why = earlier.run("begin", tmp_path / "of_writers")["error"]
    assert name == "FormatVersionError"
    assert "'later'" in why
    shutil.copytree(HERE / "unknown_feature" / "shuffle", tmp_path / "of_readers")
    name, why = earlier.run("read", tmp_path / "of_readers")["error"]
    assert name == "FormatVersionError"
    assert "'later'" in why
