"""Whatever becomes of a change feed, the rows are those of a dictionary and of DuckDB's `MERGE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.change_histories import History, readings
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

PARTS = 4
NUM_HISTORIES, NUM_READ = times(48, 10_000), times(16, 300)


@guarantee("deletions in any order")
@pytest.mark.parametrize("part", range(PARTS))
def test_histories_end_as_a_merge_does(tmp_path: Path, part: int) -> None:
    for seed in range(part, NUM_HISTORIES, PARTS):
        done: list[str] = []

        def look(history: History, what: str, done: list[str] = done, seed: int = seed) -> None:
            done.append(what)
            rows = history.shuffle.to_table().to_pylist()
            found = sorted(tuple(row.values()) for row in rows)
            assert found == history.rows == history.merged.rows, (seed, done)

        history = History(seed, tmp_path / f"{seed}")
        history.run(look)
        assert not history.shuffle.verify().problems, (seed, done)


@guarantee("deletions in any order")
@pytest.mark.filterwarnings("ignore:.*batches of an epoch are not mixed well")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_reader_has_the_rows_of_each_step(tmp_path: Path, part: int) -> None:
    for seed in range(1_000_000 + part, 1_000_000 + NUM_READ, PARTS):

        def look(history: History, what: str, seed: int = seed) -> None:
            for how, found, expected in readings(history.shuffle, history.rows):
                assert found == expected, (seed, what, how)

        History(seed, tmp_path / f"{seed}").run(look)
