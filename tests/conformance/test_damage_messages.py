"""CONFORMANCE, group "Damage": what the error says, and that undamaged rows are still read."""

import re

import pytest

from arrow_format import CorruptShuffleError, open_shuffle
from arrow_format.options import WriteOptions
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import numbered, write_tasks

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


def chunk_error(path, **what):
    with pytest.raises(CorruptShuffleError) as raised:
        open_shuffle(path).read(**what).read_all()
    return str(raised.value)


@guarantee("error details")
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


@guarantee("rows beside damage")
@pytest.mark.parametrize("codec", CODECS)
def test_subpartitions_beside_the_damage_are_read(tmp_path, codec):
    path = make(tmp_path / "x", codec)
    whole = [open_shuffle(path).subpartition(s).read_all().to_pylist() for s in range(N)]
    file = sorted(path.rglob("*-0.shuffle.data"))[0]
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
