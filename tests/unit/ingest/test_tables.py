"""Tables of Delta and Iceberg as sources: planned here, read as tasks read them."""

import pickle

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from arrow_format import OptionError, SchemaError, StorageError, open_shuffle
from arrow_format.ingest.scan import plan_scan
from arrow_format.ingest.source import table_format
from arrow_format.ingest.tables import delta_dataset, plan_iceberg
from tests.support.lake_tables import (
    delete_by_vector,
    delete_positions,
    delete_rows,
    iceberg_table,
    map_columns,
)
from tests.support.small_shuffles import write_rows

ROWS = pa.table({"k": range(100), "text": [f"row {i}" for i in range(100)]})


def rows_of(plan):
    """Read a plan in tasks of another process, as its pickle."""
    plan = pickle.loads(pickle.dumps(plan))
    batches = [batch for task in range(plan.num_tasks) for batch in plan.read(task)]
    return pa.Table.from_batches(batches, plan.schema).sort_by(plan.schema.names[0])


@pytest.fixture
def delta(tmp_path):
    write_deltalake(tmp_path / "delta", ROWS)
    return tmp_path / "delta"


@pytest.fixture
def iceberg(tmp_path):
    return iceberg_table(tmp_path, ROWS)


def file_of(table):
    (task,) = table.scan().plan_files()
    return task.file.file_path


def test_a_format_is_recognised_by_the_class(delta, iceberg):
    assert table_format(DeltaTable(delta)) == "delta"
    assert table_format(iceberg) == table_format(iceberg.scan(limit=3)) == "iceberg"
    assert table_format(ROWS) is table_format(iceberg.catalog) is table_format(None) is None


# Delta -------------------------------------------------------------------------------------------


def test_files_of_a_delta_table_are_those_of_its_version(delta):
    DeltaTable(delta).delete("k < 10")
    assert rows_of(plan_scan(delta_dataset(DeltaTable(delta)), parallelism=2)) == ROWS[10:]
    first = DeltaTable(delta, version=0)
    assert rows_of(plan_scan(delta_dataset(first), parallelism=2)) == ROWS


def test_partitions_of_a_delta_table(tmp_path):
    rows = ROWS.append_column("p", [[f"p {i % 3}" for i in range(100)]])
    write_deltalake(tmp_path / "t", rows, partition_by=["p"])
    assert rows_of(plan_scan(delta_dataset(DeltaTable(tmp_path / "t")), parallelism=2)) == rows


def test_deletion_vectors_are_refused_by_tasks_and_applied_by_a_scan(delta, tmp_path):
    delete_by_vector(delta, [3, 50])
    table = DeltaTable(delta)
    with pytest.raises(
        OptionError, match=r"version 1: .*deletionVectors.* write_shuffle\(table.scan"
    ):
        delta_dataset(table)
    write_rows(tmp_path / "s", table.scan(), "k", n=4)
    left = open_shuffle(tmp_path / "s").to_table()["k"].to_pylist()
    assert sorted(left) == [k for k in range(100) if k not in (3, 50)]


def test_mapped_columns_are_refused(delta):
    map_columns(delta, {"text": "renamed"})
    table = DeltaTable(delta)
    assert table.to_pyarrow_dataset().to_table()["renamed"].null_count == 100  # nobody said so
    with pytest.raises(OptionError, match=r"columnMapping\.mode is name, so its files have other"):
        delta_dataset(table)


# Iceberg -----------------------------------------------------------------------------------------


def test_rows_of_an_iceberg_table(iceberg):
    assert rows_of(plan_iceberg(iceberg, parallelism=2)) == ROWS


def test_deleted_positions_stay_deleted(iceberg):
    delete_positions(iceberg, file_of(iceberg), [3, 50])
    found = rows_of(plan_iceberg(iceberg, parallelism=2))
    assert found["k"].to_pylist() == [k for k in range(100) if k not in (3, 50)]
    found = rows_of(plan_iceberg(iceberg.scan(row_filter="k > 49"), parallelism=2))
    assert found["k"].to_pylist() == [*range(51, 100)]


def test_deletes_by_equality_are_refused(iceberg):
    delete_rows(iceberg, pa.table({"k": pa.array([3])}), equality_ids=[1])
    with pytest.raises(OptionError, match="does not yet support equality deletes"):
        plan_iceberg(iceberg, parallelism=2)


def test_columns_are_found_by_their_ids(iceberg):
    with iceberg.update_schema() as update:
        update.rename_column("text", "name")
    iceberg.append(pa.table({"k": [100], "name": ["new"]}))
    found = rows_of(plan_iceberg(iceberg, parallelism=2))
    assert found["name"].to_pylist() == [*ROWS["text"].to_pylist(), "new"]


def test_a_scan_has_a_snapshot_a_filter_and_columns(iceberg):
    first = iceberg.current_snapshot().snapshot_id
    iceberg.append(ROWS)
    scan = iceberg.scan("k < 5", selected_fields=("text", "k"), snapshot_id=first)
    assert rows_of(plan_iceberg(scan, parallelism=2, columns=["k"])).to_pydict() == {
        "k": [0, 1, 2, 3, 4]
    }
    assert rows_of(plan_iceberg(iceberg, parallelism=2)).num_rows == 200


def test_files_are_spread_over_tasks(iceberg):
    for _ in range(3):
        iceberg.append(ROWS)
    plan = plan_iceberg(iceberg, parallelism=2, num_tasks=4)
    assert [len(units) for units in plan.tasks] == [1, 1, 1, 1]
    assert rows_of(plan).num_rows == 400


def test_nothing_to_read(iceberg):
    plan = plan_iceberg(iceberg.scan("k < 0"), parallelism=2)
    assert (plan.num_tasks, rows_of(plan).num_rows) == (1, 0)


def test_refused_scans(iceberg):
    with pytest.raises(OptionError, match="the scan has limit=5"):
        plan_iceberg(iceberg.scan(limit=5), parallelism=1)
    with pytest.raises(OptionError, match="num_map_tasks=0"):
        plan_iceberg(iceberg, parallelism=1, num_tasks=0)
    with pytest.raises(SchemaError, match="'x'"):
        plan_iceberg(iceberg, parallelism=1, columns=["x"])


def test_a_file_that_is_gone_is_named(iceberg, tmp_path):
    plan = plan_iceberg(iceberg, parallelism=1)
    (file,) = (tmp_path / "warehouse").rglob("*.parquet")
    file.unlink()
    with pytest.raises(StorageError, match=f"{file.name}: pyiceberg cannot read it"):
        rows_of(plan)
