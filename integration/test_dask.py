"""A cluster of Dask reads a shuffle in processes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from distributed import Client, LocalCluster

from arrow_shuffle import open_shuffle, write_shuffle

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def test_workers_read_their_partitions(tmp_path: Path):
    table = pa.table({"k": range(10_000), "v": [i % 7 for i in range(10_000)]})
    write_shuffle(table, tmp_path / "s", num_subpartitions=16, keys="k")
    shuffle = open_shuffle(tmp_path / "s")
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        Client(cluster) as client,
    ):
        frame = shuffle.to_dask(partition_bytes=10_000)
        assert frame.npartitions > 2
        assert frame.v.sum().compute() == sum(i % 7 for i in range(10_000))
        assert dict(frame.groupby("v").k.count().compute()) == {
            v: len(range(v, 10_000, 7)) for v in range(7)
        }
        assert len(client.scheduler_info()["workers"]) == 2
