"""The versions of a shuffle, and what each commit did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_shuffle.errors import ShuffleNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})


def test_it_lists_each_commit_with_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "shuffle"
    before = datetime.now(UTC) - timedelta(seconds=1)
    arrow_shuffle.write_shuffle(ROWS, path, keys="k", num_subpartitions=4, transaction=("app", 7))
    shuffle = arrow_shuffle.open_shuffle(path)
    shuffle.append(ROWS.slice(1))
    shuffle.tag("two")
    shuffle.rename_columns({"v": "w"})
    shuffle.delete({"k": 3})
    first, second, third, fourth = shuffle.history()
    assert [(each.operation, each.num_rows) for each in (first, second)] == [
        ("overwrite", 3),
        ("append", 2),
    ]
    assert (first.transaction, second.transaction) == (("app", 7), None)
    assert (third.operation, third.num_outputs, third.num_rows) == ("alter", 0, 0)
    assert (fourth.operation, fourth.num_rows) == ("delete", 3)
    assert [each.tags for each in shuffle.history()] == [(), ("two",), (), ()]
    assert before < first.committed_at <= fourth.committed_at <= datetime.now(UTC)
    assert first.num_bytes > 0
    assert "version 2 (two)" in str(second)
    assert "append: 2 rows in 1 map output" in str(second)
    assert "rows" not in str(third)


def test_it_ends_where_versions_have_expired(tmp_path: Path) -> None:
    path = tmp_path / "shuffle"
    for _ in range(3):
        arrow_shuffle.write_shuffle(ROWS, path, keys="k", num_subpartitions=4, mode="overwrite")
    shuffle = arrow_shuffle.open_shuffle(path)
    shuffle.tag("first", 1)
    shuffle.collect_garbage(retention=timedelta(0))
    assert [each.version for each in shuffle.history()] == [3]
    assert [tag.version for tag in shuffle.tags()] == [1]


def test_a_shuffle_that_is_gone_is_an_error(tmp_path: Path) -> None:
    from shutil import rmtree

    path = tmp_path / "shuffle"
    arrow_shuffle.write_shuffle(ROWS, path, keys="k", num_subpartitions=4)
    shuffle = arrow_shuffle.open_shuffle(path)
    rmtree(path)
    with pytest.raises(ShuffleNotFoundError):
        shuffle.history()
