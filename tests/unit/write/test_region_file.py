"""A file of one region goes to the first directory that takes it."""

import numpy as np
import pytest

from arrow_format.errors import OutOfDiskError, StorageError
from arrow_format.format.regions import RegionKind
from arrow_format.options import WriteOptions
from arrow_format.read.rows import Rows
from arrow_format.storage.local_dirs import WriteRoots
from arrow_format.storage.open import PosixStorage
from arrow_format.write.region_file import write_region_file
from tests.support.small_shuffles import metadata_of, numbered

N = 4


class FullDisk(PosixStorage):
    """Makes files and takes no bytes."""

    def open_writer(self, path, *, sync):
        writer = super().open_writer(path, sync=sync)

        def fails(_):
            msg = "no space left on device"
            raise OutOfDiskError(msg)

        writer.writev = fails
        return writer


class UnreadableDisk(PosixStorage):
    """Takes all bytes, and gives none back."""

    def read(self, path, *, num_bytes=None):
        msg = f"{self.root}/{path}: Input/output error"
        raise StorageError(msg)

    def open_reader(self, path, *, mapped=False):
        msg = f"{self.root}/{path}: Input/output error"
        raise StorageError(msg)


def written(roots, rows=([0, 0, 2], [2, 3])):
    opened = []

    def open_rows():
        opened.append(None)
        for number, ids in enumerate(rows):
            yield Rows(numbered(ids, 10 * number), np.array(ids, np.int32))

    reader = write_region_file(
        open_rows,
        RegionKind.UNICAST,
        0,
        roots=roots,
        path_in=lambda _: "here/file",
        metadata=metadata_of(N),
        options=WriteOptions(sync=False),
        num_bytes=100,
        raw_bytes=200,
        placed=False,
    )
    return reader, len(opened)


@pytest.mark.parametrize(
    ("disk", "problem"), [(FullDisk, "no space left"), (UnreadableDisk, "Input/output error")]
)
def test_a_directory_that_fails_is_left_out_and_the_rows_go_to_the_next(tmp_path, disk, problem):
    full, other = disk(str(tmp_path / "full")), PosixStorage(str(tmp_path / "other"))
    for storage in (full, other):
        storage.make_directory("here", sync=False)
    roots = WriteRoots(full, [other])
    reader, times = written(roots)
    assert (reader.file.root, times) == (other.root, 2)
    (region,) = reader.regions
    assert region.subpartition_rows(N)[1].tolist() == [2, 0, 2, 1]
    assert len(roots) == 1
    assert [path for path in tmp_path.rglob("*.*") if "full" in path.parts] == []
    with pytest.raises(StorageError, match=problem):
        written(WriteRoots(full))


def test_a_file_of_no_rows_has_no_region(tmp_path):
    storage = PosixStorage(str(tmp_path))
    storage.make_directory("here", sync=False)
    reader, _ = written(WriteRoots(storage), rows=())
    assert reader.regions == ()
    assert reader.file.num_rows == 0
