"""Ray Data reads a shuffle, in workers of its own.

Runs where Ray is installed (`pip install 'arrow-shuffle[ray]'`), which is too large for CI.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from arrow_shuffle import WriteOptions, open_shuffle, write_shuffle
from arrow_shuffle.errors import OptionError
from integration.test_documents import run_snippets

ray = pytest.importorskip("ray", reason="ray is not installed: arrow-shuffle[ray]")

pytestmark = [
    pytest.mark.processes,
    # Warnings of Ray and of what it uses.
    pytest.mark.filterwarnings("default"),
]

TABLE = pa.table({"k": range(10_000), "text": [f"row {i}" for i in range(10_000)]})


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("ray") / "s"
    write_shuffle(TABLE, path, num_subpartitions=32, keys="k", options=WriteOptions(sync=False))
    return open_shuffle(path)


def rows_of(dataset):
    return sorted(row["k"] for row in dataset.take_all())


def test_a_dataset_has_all_rows(shuffle):
    dataset = shuffle.to_ray()
    assert dataset.schema().names == TABLE.column_names
    assert dataset.count() == 10_000
    assert rows_of(dataset) == list(range(10_000))


def test_columns_subpartitions_and_filters(shuffle):
    dataset = shuffle.to_ray(range(4), ["k"], filter="k < 5000")
    expected = shuffle.to_table(range(4), ["k"], filter="k < 5000")["k"].to_pylist()
    assert dataset.columns() == ["k"]
    assert dataset.count() == len(expected)
    assert rows_of(dataset) == sorted(expected)


def test_nothing_matches(shuffle):
    dataset = shuffle.to_ray(filter="k = -1")
    assert dataset.count() == 0
    assert dataset.take_all() == []


def test_a_task_reads_whole_subpartitions(shuffle):
    dataset = shuffle.to_ray(columns=["k"], override_num_blocks=8)
    of_task = [set(block["k"].to_pylist()) for block in tables(dataset) if block.num_rows]
    assert 4 <= len(of_task) <= 16
    for subpartition in shuffle:
        keys = set(subpartition.read_all()["k"].to_pylist())
        assert sum(bool(keys & task) for task in of_task) == (1 if keys else 0)


def tables(dataset):
    return ray.get(
        [ref for bundle in dataset.iter_internal_ref_bundles() for ref in bundle.block_refs]
    )


def test_what_ray_knows_before_it_reads(shuffle):
    from arrow_format.integrations.ray_source import ShuffleDatasource

    def made(rows):
        return ShuffleDatasource(rows, None, rows.task_groups, num_rows_known=rows.filter is None)

    source = made(shuffle)
    tasks = source.get_read_tasks(4)
    assert 4 <= len(tasks) <= 8
    assert sum(task.metadata.num_rows for task in tasks) == 10_000
    sizes = sum(task.metadata.size_bytes for task in tasks)
    assert sizes == source.estimate_inmemory_data_size() == pytest.approx(TABLE.nbytes, rel=0.2)
    assert [task.metadata.num_rows for task in made(shuffle.where("k < 9")).get_read_tasks(1)] == [
        None
    ]


def test_bad_arguments(shuffle):
    with pytest.raises(OptionError, match="out of range"):
        shuffle.to_ray([32])


def test_snippets_of_the_guide_print_what_is_below_them(tmp_path):
    ran, differing = run_snippets("docs/guide/ray.md", tmp_path, {})
    assert ran >= 1
    assert not differing, "\n\n".join(differing)
