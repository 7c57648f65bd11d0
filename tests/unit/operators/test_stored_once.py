"""Rows that every subpartition reads are not stored once for each."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.errors import OptionError
from arrow_shuffle import BROADCAST, open_shuffle
from tests.support.operations import written
from tests.support.own_partitioner import OwnPartitioner

ROWS = pa.table({"k": list(range(40))})


def small_ones_everywhere(batch, num_subpartitions):
    """Broadcast the rows whose key is less than 10."""
    keys = batch["k"].to_numpy()
    return np.where(keys < 10, BROADCAST, keys % num_subpartitions).astype(np.int32)


def test_some_broadcast_rows(tmp_path):
    own = OwnPartitioner(small_ones_everywhere)
    rows = written(tmp_path / "s", ROWS, n=4, partitioner=own)
    for asked in (rows, rows.select(filter="k >= 0"), rows.select(subpartitions=[1, 2])):
        with pytest.raises(OptionError, match=r"reads the broadcast rows .* times"):
            asked.write(tmp_path / "out", keys="k")
    assert not (tmp_path / "out").exists()
    rows.select(subpartitions=1).write(tmp_path / "one", keys="k")
    assert open_shuffle(tmp_path / "one").count_rows() == 10 + 7
