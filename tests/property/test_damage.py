"""Whatever happens to a file: a typed error that says where, or the same rows. Nothing else."""

import re
import shutil

import pytest

from arrow_format import CorruptShuffleError, ShuffleError, open_shuffle
from arrow_format.options import WriteOptions
from arrow_format.partitioned_file import PartitionedFileReader
from arrow_format.storage import PosixStorage
from tests.unit.small_shuffles import numbered, write_tasks

N = 5
CODECS = ["zstd", "none"]


def make(path, codec):
    """Two map outputs of several regions, the second rotated; a chunk per subpartition."""
    options = WriteOptions(sync=False, codec=codec, chunk_bytes=1, sort_buffer_bytes=1 << 10)
    ids = [3, 1, 1, 4, 1, 1]
    tasks = [[numbered(ids, start), numbered(ids, start + 6)] for start in (0, 12)]
    write_tasks(path, tasks, N, options=options)
    for output in open_shuffle(path).map_outputs:
        assert output.files[0].num_regions == 2
    return path


def rows(path):
    """Everything a reader can see, planning included."""
    shuffle = open_shuffle(path)
    return (
        shuffle.read(with_subpartition=True).read_all().to_pylist(),
        shuffle.subpartition_rows.to_pylist(),
        shuffle.subpartition_bytes.to_pylist(),
        shuffle.version,
    )


def one(path, kind):
    pattern = {
        "data": "*-0.shuffle.data",
        "index": "*-0.shuffle.index",
        "totals": "totals-*.arrow",
        "entry": "*.json",
    }[kind]
    return sorted(path.rglob(pattern))[0]


def outcome(path, whole):
    """Whether the damage was noticed; fails when other rows come back."""
    try:
        found = rows(path)
    except ShuffleError:
        return True
    assert found == whole
    return False


@pytest.fixture(scope="module", params=CODECS)
def sound(request, tmp_path_factory):
    """A shuffle that is restored after every test, and its rows."""
    path = make(tmp_path_factory.mktemp("sound") / "x", request.param)
    return path, rows(path)


@pytest.mark.parametrize("kind", ["data", "index", "totals", "entry"])
def test_every_flipped_byte(sound, kind):
    path, whole = sound
    file = one(path, kind)
    original = file.read_bytes()
    # tests/unit flips every byte of an index, totals and entry; here is the way through a reader.
    places = range(0, len(original), 1 if kind == "data" else 7)
    noticed = 0
    try:
        for i in places:
            file.write_bytes(original[:i] + bytes([original[i] ^ 0xFF]) + original[i + 1 :])
            noticed += outcome(path, whole)
    finally:
        file.write_bytes(original)
    assert outcome(path, whole) is False
    # The index is known by its checksum in the log; a scan never reads what stands between the
    # chunks of a data file: header, padding and footer.
    assert noticed == (chunk_bytes(path, file) if kind == "data" else len(places))


def test_verify_notices_every_flipped_byte_of_a_data_file(sound):
    path, _ = sound
    file = one(path, "data")
    original = file.read_bytes()
    try:
        for i in range(len(original)):
            file.write_bytes(original[:i] + bytes([original[i] ^ 0x01]) + original[i + 1 :])
            with pytest.raises(CorruptShuffleError, match=file.name):
                open_shuffle(path).verify()
    finally:
        file.write_bytes(original)
    assert open_shuffle(path).verify().ok


def chunk_bytes(path, file):
    """Bytes of `file` that stand in chunks."""
    for output in open_shuffle(path).map_outputs:
        for written in output.files:
            if (path / written.data_path) == file:
                regions = PartitionedFileReader(PosixStorage(str(path)), written).regions
                assert [len(region.chunks) for region in regions] == [3, 3]
                return int(sum(region.chunks.length.sum() for region in regions))
    return pytest.fail("no map output has that file")


@pytest.mark.parametrize("kind", ["data", "index", "totals", "entry"])
def test_every_truncation(sound, kind):
    path, whole = sound
    file = one(path, kind)
    original = file.read_bytes()
    lengths = range(0, len(original), 1 if kind == "data" else 7)
    noticed = 0
    try:
        for length in lengths:
            file.write_bytes(original[:length])
            noticed += outcome(path, whole)
    finally:
        file.write_bytes(original)
    if kind == "data":
        assert noticed >= chunk_bytes(path, file)
    else:
        assert noticed == len(lengths)


@pytest.mark.parametrize("kind", ["data", "index", "totals", "entry"])
def test_a_missing_or_empty_file_names_itself(sound, kind):
    path, whole = sound
    file = one(path, kind)
    original = file.read_bytes()
    try:
        file.write_bytes(b"")
        with pytest.raises(CorruptShuffleError, match=file.name):
            rows(path)
        file.unlink()
        with pytest.raises(ShuffleError, match=str(file) if kind != "entry" else str(path)):
            rows(path)
        file.mkdir()
        with pytest.raises(ShuffleError, match=str(file)):
            rows(path)
        file.rmdir()
    finally:
        file.write_bytes(original)
    assert rows(path) == whole


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("suffix", ["data", "index", "both"])
def test_two_files_of_equal_size_swapped(tmp_path, codec, suffix):
    options = WriteOptions(sync=False, codec=codec, write_order="natural")
    # Equal shapes, other values: every count is the same in both.
    tasks = [[numbered([1, 2, 3])], [numbered([1, 2, 3], 3)]]
    write_tasks(tmp_path / "x", tasks, N, options=options)
    swapped = False
    for kind in ("data", "index") if suffix == "both" else (suffix,):
        one, two = sorted(tmp_path.rglob(f"*.shuffle.{kind}"))
        if one.stat().st_size == two.stat().st_size:
            swapped = True
        held = one.with_name("held")
        one.rename(held)
        two.rename(one)
        held.rename(two)
    assert swapped or codec == "zstd"
    with pytest.raises(CorruptShuffleError, match="shuffle"):
        rows(tmp_path / "x")


@pytest.mark.parametrize("codec", CODECS)
def test_a_data_file_of_another_shuffle_of_equal_shape(tmp_path, codec):
    options = WriteOptions(sync=False, codec=codec)
    for name, start in (("x", 0), ("y", 3)):
        write_tasks(tmp_path / name, [[numbered([1, 2, 3], start)]], N, options=options)
    (mine,) = (tmp_path / "x").rglob("*.shuffle.data")
    (other,) = (tmp_path / "y").rglob("*.shuffle.data")
    shutil.copy(other, mine)
    with pytest.raises(CorruptShuffleError, match=r"CRC-32|truncated"):
        rows(tmp_path / "x")


def chunk_error(path, **what):
    with pytest.raises(CorruptShuffleError) as raised:
        open_shuffle(path).read(**what).read_all()
    return str(raised.value)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_name_file_attempt_region_and_what_was_wanted(tmp_path, codec, damage):
    path = make(tmp_path / "x", codec)
    file = sorted(path.rglob("*.shuffle.data"))[1]
    original = file.read_bytes()
    data = bytearray(original)
    if damage == "flip":
        data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
    file.write_bytes({"flip": bytes(data), "cut": original[:20], "empty": b""}.get(damage, b""))
    if damage == "gone":
        file.unlink()
    message = chunk_error(path)
    assert str(file) in message
    assert "map task 1, attempt 0" in message
    assert re.search(r"regions? \d", message)
    assert "subpartitions 0 to 4" in message
    if damage == "flip":
        assert "chunk " in message
    assert "Restore" in message or "write the shuffle again" in message


@pytest.mark.parametrize("codec", CODECS)
def test_subpartitions_beside_the_damage_are_read(tmp_path, codec):
    path = make(tmp_path / "x", codec)
    whole = [open_shuffle(path).subpartition(s).read_all().to_pylist() for s in range(N)]
    file = one(path, "data")
    data = bytearray(file.read_bytes())
    reader = PartitionedFileReader(
        PosixStorage(str(path)), open_shuffle(path).map_outputs[0].files[0]
    )
    data[int(reader.regions[0].chunks.offset[1]) + 5] ^= 1
    file.write_bytes(data)
    refused = []
    for s in range(N):
        try:
            assert open_shuffle(path).subpartition(s).read_all().to_pylist() == whole[s]
        except CorruptShuffleError:
            refused.append(s)
    assert refused == [3], "the second chunk of the first region is subpartition 3"
