"""What a write reports is what a reader finds, and reads well."""

import html
from dataclasses import replace

import pyarrow as pa
import pytest

from arrow_format import collect_garbage, delete_rows, merge_shuffle, open_shuffle, write_shuffle
from arrow_format.jobs.receipt import ShuffleReceipt
from arrow_format.read.presentation import html_skew
from tests.support.small_shuffles import FAST, numbered, write_tasks


def test_a_receipt_is_what_a_reader_finds(tmp_path):
    tasks = [[numbered([0, 2, 2])], [numbered([], 3)], [numbered([4], 3), numbered([2], 4)]]
    receipt = write_tasks(tmp_path / "x", tasks, 5)
    shuffle = open_shuffle(tmp_path / "x")
    assert receipt.path == str(tmp_path / "x")
    assert receipt.version == shuffle.version == 1
    assert receipt.num_rows == shuffle.num_rows == 5
    assert receipt.num_map_outputs == len(shuffle.map_outputs) == 3
    assert receipt.num_subpartitions == 5
    assert receipt.subpartition_rows.equals(pa.array([1, 0, 3, 0, 1]))
    assert receipt.subpartition_rows.equals(shuffle.subpartition_rows)
    assert receipt.subpartition_bytes.equals(shuffle.subpartition_bytes)
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*.shuffle.data"))
    assert receipt.num_bytes == sum(receipt.subpartition_bytes.to_pylist()) == on_disk


def test_an_appends_receipt_counts_what_it_added(tmp_path):
    write_tasks(tmp_path / "x", [[numbered([0, 1])]], 2)
    receipt = write_tasks(tmp_path / "x", [[numbered([1], 2)]], 2, mode="append")
    assert (receipt.version, receipt.num_rows) == (2, 1)
    assert receipt.subpartition_rows.to_pylist() == [0, 1]


RECEIPT = ShuffleReceipt(
    "/data/<x>", 3, 1_234_567, 5_400_000, 8, 200, pa.array([0, 7, 0], pa.int64()), pa.array([0] * 3)
)


def test_as_text():
    assert str(RECEIPT) == (
        "shuffle /data/<x> version 3: 1,234,567 rows, 5.4 MB on disk, 8 map outputs, "
        "200 (2 empty) subpartitions"
    )


def test_of_one_there_is_no_plural():
    receipt = ShuffleReceipt("/x", 1, 1, 48, 1, 1, pa.array([1], pa.int64()), pa.array([48]))
    assert str(receipt) == (
        "shuffle /x version 1: 1 row, 48 B on disk, 1 map output, 1 (0 empty) subpartition"
    )


def test_as_html():
    html = RECEIPT._repr_html_()
    assert "<td>/data/&lt;x&gt;</td>" in html
    assert "<th>rows</th><td>1,234,567</td>" in html
    assert "<th>rows in largest</th><td>7</td>" in html
    assert html.endswith(html_skew(RECEIPT.subpartition_rows))
    assert html_skew(RECEIPT.subpartition_rows)


@pytest.mark.parametrize(
    ("num_map_outputs", "num_bytes", "is_advised"),
    [(63, 1000, False), (64, 1000, True), (64, 64 * 5 * (16 << 10), False), (10_000, 9**8, True)],
)
def test_many_small_pieces_are_worth_a_merge(num_map_outputs, num_bytes, is_advised):
    receipt = replace(
        RECEIPT, path="/a b", num_map_outputs=num_map_outputs, num_bytes=num_bytes,
        num_subpartitions=5,
    )  # fmt: skip
    command = "arrow-shuffle merge --by subpartition '/a b'"
    assert (command in str(receipt)) == is_advised
    assert ("merge --by subpartition" in receipt._repr_html_()) == is_advised
    if is_advised:
        assert f"in {num_map_outputs:,} map outputs" in str(receipt)


def test_reports_show_their_text_in_a_notebook(tmp_path):
    path = tmp_path / "<s>"
    for start in (0, 2):
        rows = pa.table({"p": [start, start + 1]})
        write_shuffle(rows, path, keys="p", num_subpartitions=2, mode="append", options=FAST)
    merged = merge_shuffle(path, by="map_output")
    assert str(merged).startswith(f"{path}: merged into version 3\n  map outputs  2 -> 1\n")
    assert (
        str(merge_shuffle(path, by="map_output")) == f"{path} version 3: nothing is worth merging"
    )
    deleted, collected = delete_rows(path, {"p": [1]}), collect_garbage(path)
    for report in (merged, deleted, collected):
        assert report._repr_html_() == f"<pre>{html.escape(str(report))}</pre>"
        assert f"{type(report).__name__}(" not in str(report), "no dump of its fields"
