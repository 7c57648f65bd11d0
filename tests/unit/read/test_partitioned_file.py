"""A file is opened as the commit that it is of describes it, or not at all."""

from dataclasses import replace

import pytest

from arrow_format.errors import CorruptShuffleError
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.support.small_shuffles import write_file

FIELDS = ["directory_crc32", "data_bytes", "num_regions", "num_rows", "num_broadcast_rows"]


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("field", FIELDS)
def test_an_index_that_is_not_the_one_of_the_commit_is_refused(tmp_path, field, by):
    storage = PosixStorage(str(tmp_path))
    file, _ = write_file(storage, [([1, 2], 0), ([3], 0)], 5, path="a")
    assert PartitionedFileReader(storage, file).file == file
    other = replace(file, **{field: getattr(file, field) + by})
    message = r"a\.shuffle\.index: (is not the index|CRC-32 .* of the directory)"
    with pytest.raises(CorruptShuffleError, match=message):
        PartitionedFileReader(storage, other).load()
