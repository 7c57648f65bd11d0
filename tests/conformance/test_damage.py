"""CONFORMANCE, group "Damage": a damaged file gives a typed error that says where, or its rows.

Every byte of every file of small shuffles of many shapes is flipped, and every file is cut at every
length; what a reader then sees must be what was written, or an error of ours. A night
samples thousands of damages of larger shuffles beside.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from msgspec import structs

from arrow_format import (
    BroadcastPartitioner,
    CorruptShuffleError,
    FormatVersionError,
    MergePolicy,
    RangePartitioner,
    ReadOptions,
    ShuffleError,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.format.index_file import encode_index
from arrow_format.log import names
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.framing import from_frame, to_frame
from arrow_format.log.outputs import MapOutputs
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.scheduler import ReadScheduler
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader, files_of
from arrow_format.storage.open import PosixStorage
from arrow_format.storage.root_owner import MARKER_NAME
from tests.support.exhaustive import IS_NIGHT, IS_TURN, times
from tests.support.guarantees import guarantee
from tests.support.indexes import decode_index, said_of
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import live_files, numbered, write_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from arrow_format.log.snapshot import Snapshot

N = 5
IDS = [3, 1, 1, 4, 1, 1]
SMALL = {"sync": False, "chunk_bytes": 1, "sort_buffer_bytes": 1 << 10}
PINNED = ReadOptions(memory_map=True)


def options(codec: str = "zstd", **more) -> WriteOptions:
    return WriteOptions(**{**SMALL, "codec": codec, **more})


def batches(start: int) -> list[pa.RecordBatch]:
    """Two batches, of which each becomes a region."""
    return [numbered(IDS, start), numbered(IDS, start + len(IDS))]


def plain(path: Path, codec: str = "zstd") -> None:
    write_tasks(path, [batches(0), batches(12)], N, options=options(codec))
    assert {file.num_regions for o in open_shuffle(path).map_outputs for file in o.files} == {2}


def uncompressed(path: Path) -> None:
    plain(path, "none")


def broadcast(path: Path) -> None:
    write_tasks(path, [batches(0)], N, partitioner=BroadcastPartitioner(), options=options())


def in_order(path: Path) -> None:
    write_tasks(
        path, [[*batches(0), *batches(12)]], N, options=options(), sort_by=[("v", "descending")],
        partitioner=RangePartitioner("p", bounds=[1, 2]),
    )  # fmt: skip


def appended(path: Path) -> None:
    for start in (0, 6):
        write_tasks(path, [[numbered(IDS, start)]], N, mode="append", options=options())


def checkpointed(path: Path) -> None:
    """Most of it in a checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "CHECKPOINT_INTERVAL", 4)
        for start in range(0, 36, 6):
            write_tasks(path, [[numbered(IDS, start)]], N, mode="append", options=options())
    assert len(list(path.glob("commit_log/*/*.range"))) == 1


def spread(path: Path) -> None:
    """Half of it in a directory beside."""
    local = options(local_dirs=(str(path.parent / "disk"),))
    write_tasks(path, [[numbered(IDS)], [numbered(IDS, 6)]], N, options=local)


def merged(path: Path) -> None:
    plain(path)
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=options(), by="map_output")


def nested(path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("p", pa.int32(), nullable=False),
            ("l", pa.list_(pa.struct([("a", pa.decimal128(20, 2)), ("b", pa.bool_())]))),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    rows = [
        {"p": 1, "l": [{"a": None, "b": True}], "m": [("k", 1.5)], "t": 5},
        {"p": 3, "l": [], "m": None, "t": None},
        {"p": 1, "l": None, "m": [("x", None), ("y", -0.0)], "t": 1 << 40},
    ]
    write_tasks(path, [[pa.RecordBatch.from_pylist(rows, schema=schema)]], N, options=options())


SHAPES: dict[str, Callable[[Path], None]] = {
    shape.__name__: shape
    for shape in (
        *(plain, uncompressed, broadcast, in_order, appended),
        *(checkpointed, spread, merged, nested),
    )
}
KINDS = {
    "data": "*.shuffle.data",
    "index": "*.shuffle.index",
    "entry": "*.entry",
    "checkpoint": "*.range",
    "marker": MARKER_NAME,
}
TRIES = times(100, 50_000)

TRIED: Counter[str] = Counter()
"""Damages tried by what was done, over all tests of this module that ran in this process."""
RAN: set[str] = set()
"""The tests that did."""


@pytest.fixture(autouse=True)
def ran(request) -> None:
    RAN.add(request.node.name)


@dataclass
class Sound:
    """A shuffle and what readers saw of it before anything happened to it."""

    path: Path
    whole: tuple[object, ...]
    part: tuple[object, ...]
    named: frozenset[str]

    @staticmethod
    def at(path: Path) -> Sound:
        """Take what is there."""
        storage = RecordingStorage(str(path))
        named = {*storage.others, *live_files(open_shuffle(storage))}
        names = frozenset(one.rpartition("/")[2] for one in named)
        return Sound(path, everything(path), a_part(path), names)

    def files(self, kind: str) -> list[Path]:
        """All files of a kind, those in further directories too."""
        return sorted(self.path.parent.rglob(KINDS[kind]))

    def live(self, file: Path) -> bool:
        """Whether the newest version names a file."""
        return file.name in self.named


def everything(path: Path) -> tuple[object, ...]:
    """All that readers can see, planning included."""
    shuffle = open_shuffle(path)
    return (
        shuffle.read(with_subpartition=True).read_all().to_pylist(),
        shuffle.subpartition_rows.to_pylist(),
        shuffle.subpartition_bytes.to_pylist(),
        shuffle.version,
        str(shuffle.partitioner),
        shuffle.sort_by,
    )


def a_part(path: Path) -> tuple[object, ...]:
    """One column of one subpartition, from mapped files."""
    shuffle = open_shuffle(path, options=PINNED)
    return (shuffle.subpartition(1, columns=shuffle.schema.names[:1]).read_all().to_pylist(),)


def outcome(sound: Sound, *, also_a_part: bool = False) -> bool:
    """Whether the damage was noticed; fails when other rows come back, or another error."""
    noticed = False
    try:
        assert everything(sound.path) == sound.whole
    except ShuffleError as error:
        noticed = True
        check_blame(sound, str(error))
    if also_a_part:
        try:
            assert a_part(sound.path) == sound.part
        except ShuffleError as error:
            check_blame(sound, str(error))
    return noticed


def check_blame(sound: Sound, message: str) -> None:
    """Every message names a place that exists: the shuffle, one of its files or directories."""
    assert str(sound.path.parent) in message, message


@pytest.fixture(scope="module", params=SHAPES)
def sound(request, tmp_path_factory) -> Sound:
    path = tmp_path_factory.mktemp(request.param) / "s"
    SHAPES[request.param](path)
    return Sound.at(path)


def damages(original: bytes, places: range, seed: int) -> Iterator[tuple[str, bytes]]:
    """Bytes flipped whole and by one bit, lengths, and bytes too many."""
    rng = random.Random(seed)
    for i in places:
        for kind, mask in (("byte", 0xFF), ("bit", 1 << rng.randrange(8))):
            yield kind, flipped(original, i, mask)
        yield "cut", original[:i]
    for tail in (b"\0", original[:1], original):
        yield "garbage", original + tail
    yield "zeros", bytes(len(original))


def reader_of(sound: Sound, kind: str, file: Path) -> Callable[[], object]:
    """Return the function that reads a file of one kind as every reader does, and few others."""
    storage = PosixStorage(str(sound.path))
    log = CommitLog(storage)
    snapshot = log.snapshot()
    version, outputs = snapshot.newest, snapshot.map_outputs
    if kind in ("data", "index"):
        stem = file.name.partition(".")[0]
        its = [each for each in outputs if any(stem in one.path for one in each.files)]
        assert len(its) == 1
        outputs = MapOutputs.of(its)
    held = IndexCache(storage)
    scheduler = ReadScheduler(read_ahead=False)

    def rows() -> object:
        reader = SortMergeSubpartitionReader(
            storage, version, outputs, 0, N, indexes=held, scheduler=scheduler
        )
        return [(run.batch.to_pylist(), run.subpartitions.tolist()) for run in reader]

    def regions() -> object:
        indexes = IndexCache(storage)
        found = (indexes.index_of(version, each.output, each.file) for each in files_of(outputs))
        return [(index.metadata, [str(region) for region in index.regions]) for index in found]

    return {
        "data": rows,
        "index": regions,
        "marker": regions,  # it is read on the way to an index
        # Each keeps what it read.
        "entry": lambda: seen(CommitLog(storage).snapshot()),
        "checkpoint": lambda: seen(CommitLog(storage).snapshot()),
    }[kind]


def seen(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.newest, list(snapshot.map_outputs), [each.tolist() for each in snapshot.totals]


def flipped(content: bytes, at: int, mask: int = 0xFF) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


def overwrite(file: Path, content: bytes) -> None:
    """Write over what is there: a file that is emptied first may have to wait for its disk."""
    with file.open("r+b") as opened:
        opened.write(content)
        opened.truncate()


@guarantee("noticed damage")
@pytest.mark.parametrize("kind", KINDS)
def test_every_flip_and_every_truncation(sound, kind):
    """Of one file of each kind, for the readers of that kind; of some damages, all is read.

    Every byte and every length of the files of the first shape, and at night of all; of
    the index tests/unit/format/test_index_file.py flips every byte without.
    """
    files = [file for file in sound.files(kind) if kind == "marker" or sound.live(file)]
    if not files:
        pytest.skip("this shape has no further directories")
    file = files[-1]
    original = file.read_bytes()
    read = reader_of(sound, kind, file)
    expected = read()
    is_plain = sound.path.parent.name.startswith("plain")
    most = len(original) if IS_NIGHT or (is_plain and kind != "index") else 135
    every = range(0, len(original), max(1, len(original) // most))
    some = range(0, len(original), 1 + len(original) // 4)
    # What no reader of rows needs: magic, padding, a footer; statistics; white space in a marker.
    has_spare = kind in ("data", "index", "marker")
    noticed = 0
    try:
        for what, damaged in damages(original, every, len(original)):
            overwrite(file, damaged)
            try:
                assert read() == expected, what
                assert has_spare, what
            except ShuffleError as error:
                noticed += 1
                check_blame(sound, str(error))
            TRIED[what] += 1
        for what, damaged in damages(original, some, 1):
            overwrite(file, damaged)
            is_noticed = outcome(sound, also_a_part=True)
            assert is_noticed or has_spare, what
            TRIED[f"{what}, all read"] += 1
    finally:
        file.write_bytes(original)
    assert noticed > 0
    assert not outcome(sound)


@guarantee("verify")
@pytest.mark.parametrize("kind", ["data", "index"])
def test_verify_notices_every_flip_of_the_data_and_the_index(sound, kind):
    """Also of those bytes that no reader of rows needs: magic, padding, footer, statistics."""
    file = next(file for file in sound.files(kind) if sound.live(file))
    original = file.read_bytes()
    try:
        for i in range(0, len(original), 1 if IS_NIGHT else 1 + len(original) // 60):
            overwrite(file, flipped(original, i, 0x10))
            (problem,) = open_shuffle(sound.path).verify(raise_on_damage=False).problems
            assert file.name in str(problem)
            TRIED["bit, verified"] += 1
    finally:
        file.write_bytes(original)
    assert open_shuffle(sound.path).verify().ok


@guarantee("verify")
def test_verify_notices_a_byte_behind_any_file(sound):
    """A version says how long each of its files is."""
    shuffle = open_shuffle(sound.path)
    for kind in ("data", "index"):
        for file in filter(sound.live, sound.files(kind)):
            original = file.read_bytes()
            file.write_bytes(original + b"\0")
            (problem,) = open_shuffle(sound.path).verify(raise_on_damage=False).problems
            assert file.name in str(problem)
            file.write_bytes(original)
    assert shuffle.verify().ok


@guarantee("wrong order")
@pytest.mark.parametrize("claimed", [(), (("v", "ascending"),)])
def test_a_file_in_another_sort_order_than_its_version(tmp_path, claimed):
    """A reader would take its rows for sorted, or merge runs that are none."""
    path = tmp_path / "s"
    in_order(path)
    entry_file = sorted((path / "commit_log").glob("*/*.entry"))[-1]
    entry = decode_entry(entry_file.read_bytes())
    (output,) = entry.map_outputs
    (file,) = output.files
    index_file = path / file.index_path
    metadata, regions = decode_index(index_file.read_bytes())
    index = encode_index(replace(metadata, sort_by=claimed), regions)
    file = replace(file, **said_of(index))
    outputs = MapOutputs.of([replace(output, files=(file,))])
    index_file.write_bytes(index)
    content = replace(entry.content, added=outputs)
    entry_file.write_bytes(encode_entry(structs.replace(entry, content=content)))
    shuffle = open_shuffle(path)
    message = rf"{index_file.name}: has .*; its version has "
    for read in (shuffle.verify, shuffle.read().read_all, shuffle.subpartition(1).read_all):
        with pytest.raises(CorruptShuffleError, match=message):
            read()


@guarantee("missing files")
@pytest.mark.parametrize("kind", KINDS)
def test_empty_missing_and_replaced_files(sound, kind):
    files = sound.files(kind)
    for number, file in enumerate(files):
        original = file.read_bytes()
        try:
            for what in ("empty", "gone", "directory", "link"):
                file.unlink(missing_ok=True)
                if what == "empty":
                    file.touch()
                elif what == "directory":
                    file.mkdir()
                elif what == "link":
                    (sound.path.parent / "copy").write_bytes(original)
                    file.symlink_to(sound.path.parent / "copy")
                if kind == "entry" and what == "gone" and number == len(files) - 1:
                    # That the newest entry is gone cannot be told from a commit that never was.
                    assert CommitLog(PosixStorage(str(sound.path))).newest_version() == number
                    continue
                # Without a checkpoint, the entries say the same.
                is_missed = not (kind == "checkpoint" and what == "gone")
                needed = is_missed and (kind == "marker" or sound.live(file))
                assert outcome(sound, also_a_part=True) or not needed, (file.name, what)
                TRIED[what] += 1
                if what == "directory":
                    file.rmdir()
        finally:
            file.unlink(missing_ok=True)
            file.write_bytes(original)
    assert not outcome(sound)


@guarantee("swapped files")
@pytest.mark.parametrize("kind", ["data", "index", "entry", "both"])
def test_any_two_files_swapped(sound, kind):
    """Of equal size or not: each is known by its checksum, its index or its number."""
    pairs = [*combinations(sound.files("data" if kind == "both" else kind), 2)]
    if not pairs:
        pytest.skip("this shape has one such file")
    for pair in pairs:
        swaps = [pair]
        if kind == "both":
            swaps += [tuple(one.with_suffix(".index") for one in pair)]
        if any(one.read_bytes() == two.read_bytes() for one, two in swaps):
            continue
        with ExitStack() as swapped_files:
            for swap in swaps:
                swapped_files.enter_context(swapped(*swap))
            assert outcome(sound) or not any(map(sound.live, pair))
        TRIED["swap"] += 1
    assert not outcome(sound)


@contextmanager
def swapped(one: Path, two: Path) -> Iterator[None]:
    a, b = one.read_bytes(), two.read_bytes()
    try:
        one.write_bytes(b)
        two.write_bytes(a)
        yield
    finally:
        one.write_bytes(a)
        two.write_bytes(b)


@guarantee("swapped files")
def test_files_of_equal_size_swapped(tmp_path):
    """Two map outputs of the same rows but for their values: every length and count is the same."""
    path = tmp_path / "s"
    write_tasks(
        path, [[numbered([1, 2], 10)], [numbered([1, 2], 22)]], N,
        options=options("none", write_order="natural", statistics=()),
    )  # fmt: skip
    sound = Sound.at(path)
    for suffix in ("data", "index"):
        one, two = sound.files(suffix)
        assert suffix == "index" or one.stat().st_size == two.stat().st_size
        with swapped(one, two):
            assert outcome(sound)
    assert not outcome(sound)


@pytest.mark.parametrize("shape", ["plain", "spread"])
def test_the_files_of_another_shuffle_of_the_same_rows(tmp_path, shape):
    for name in ("x", "y"):
        SHAPES[shape](tmp_path / name / "s")
    path = tmp_path / "x" / "s"
    sound = Sound.at(path)
    theirs = Sound.at(tmp_path / "y" / "s")
    for kind in KINDS:
        for mine, other in zip(sound.files(kind), theirs.files(kind), strict=True):
            original = mine.read_bytes()
            shutil.copy(other, mine)
            # Chunks of the same rows are the same bytes; all else says whose it is.
            assert outcome(sound) or other.read_bytes() == original
            assert kind == "data" or other.read_bytes() != original
            mine.write_bytes(original)


@guarantee("damaged merge")
def test_damage_is_noticed_by_a_merge_and_nothing_is_lost(tmp_path):
    path = tmp_path / "s"
    plain(path)
    sound = Sound.at(path)
    policy = MergePolicy(rewrite="always")
    for kind in ("data", "index", "entry"):
        file = sound.files(kind)[0]
        original = file.read_bytes()
        for i in range(0, len(original), 1 + len(original) // 25):
            file.write_bytes(flipped(original, i))
            try:
                merge_shuffle(path, policy=policy, options=options(), by="map_output")
            except ShuffleError as error:
                check_blame(sound, str(error))
                file.write_bytes(original)
                assert everything(path) == sound.whole
            else:
                # A byte between the chunks: the rows are whole, and stand elsewhere now.
                assert kind in ("data", "index")
                assert everything(path)[0] == sound.whole[0]
                shutil.rmtree(path)
                plain(path)
                sound = Sound.at(path)
                file = sound.files(kind)[0]
                original = file.read_bytes()
            TRIED["merge"] += 1


@guarantee("removed while read")
def test_a_file_that_vanishes_under_a_reader(tmp_path):
    """What is open stays readable; what is not is missed with its name, and a retry works."""
    path = tmp_path / "s"
    uncompressed(path)  # of which each chunk comes by itself
    whole = everything(path)
    runs = iter(open_shuffle(path).reader(0, N))
    found = [next(runs)]
    one, two = sorted(path.rglob("*.data"))
    held = one.read_bytes(), two.read_bytes()
    one.unlink()
    # The first file is open, and is so until its last chunk was read.
    found += [next(runs) for _ in range(5)]
    assert [row["v"] for run in found for row in run.batch.to_pylist()] == [
        1, 2, 4, 5, 0, 3, 7, 8, 10, 11, 6, 9,
    ]  # fmt: skip
    two.unlink()
    with pytest.raises(ShuffleError, match=rf"{one.name}: not there"):
        open_shuffle(path).read().read_all()
    problems = open_shuffle(path).verify(raise_on_damage=False).problems
    assert len(problems) == 2
    for number, problem in enumerate(problems):
        assert f"(map task {number}, attempt 0): is not there" in str(problem)
    one.write_bytes(held[0])
    two.write_bytes(held[1])
    assert everything(path) == whole


def test_a_newer_entry_is_told_from_a_damaged_one(tmp_path):
    path = tmp_path / "s"
    plain(path)
    (file,) = path.rglob("*.entry")
    value, sections = from_frame(file.read_bytes(), dict)
    value.pop("sections", None)
    file.write_bytes(to_frame(value | {"operation": "fold"}, sections))
    with pytest.raises(FormatVersionError, match="operation 'fold'"):
        open_shuffle(path)


def test_samples_of_larger_shuffles(tmp_path):
    """Flips, cuts, zeroed and moved blocks; far more at night."""
    rng = random.Random(TRIES)
    for codec in ("zstd", "none"):
        path = tmp_path / codec / "s"
        more = options(codec, chunk_bytes=2048, sort_buffer_bytes=1 << 18)
        tasks = [
            [numbered([rng.randrange(64) for _ in range(3000)], 6000 * task + 3000 * batch)
             for batch in range(2)]
            for task in range(2)
        ]  # fmt: skip
        write_tasks(path, tasks, 64, options=more)
        sound = Sound.at(path)
        files = [file for kind in ("data", "index", "entry") for file in sound.files(kind)]
        for _ in range(TRIES // 2):
            file = rng.choice(files)
            original = file.read_bytes()
            what, damaged = sampled(rng, original)
            overwrite(file, damaged)
            is_noticed = outcome(sound, also_a_part=True)
            if not is_noticed and damaged != original:  # then nobody but verify looks there
                assert file.suffix in (".data", ".index"), (file.name, what)
                assert open_shuffle(path).verify(raise_on_damage=False).problems
            TRIED[f"larger: {what}"] += 1
            file.write_bytes(original)
        assert not outcome(sound)


def sampled(rng: random.Random, original: bytes) -> tuple[str, bytes]:
    """One damage of any kind."""
    damaged = bytearray(original)
    at = rng.randrange(len(original))
    what = rng.choice(["bit", "byte", "cut", "zeros", "moved", "garbage"])
    length = min(rng.choice([1, 8, 512, 4096]), len(original) - at)
    if what == "bit":
        damaged[at] ^= 1 << rng.randrange(8)
    elif what == "byte":
        damaged[at] = rng.randrange(256)
    elif what == "cut":
        del damaged[at:]
    elif what == "zeros":
        damaged[at : at + length] = bytes(length)
    elif what == "moved":
        to = rng.randrange(len(original) - length + 1)
        damaged[at : at + length] = original[to : to + length]
    else:
        damaged += rng.randbytes(length)
    return what, bytes(damaged)


def test_tens_of_thousands_were_tried(request):
    """Last of all; counts only where all tests of this module ran in this process."""
    of_module = {item.name for item in request.session.items if item.path == request.path}
    if IS_TURN or of_module - RAN or len(of_module) < 20:
        pytest.skip("some tests of this module were left out, or ran in another process")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        shown = ", ".join(f"{count:,} {what}" for what, count in sorted(TRIED.items()))
        print(f"\ndamages tried: {TRIED.total():,} ({shown}); silent differences: 0")
    assert TRIED.total() > times(20_000, 100_000)
