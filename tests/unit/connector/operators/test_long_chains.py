"""A chain of many inputs has the memory that it needs, wherever it runs."""

import pyarrow as pa

from tests.support.operations import written
from tests.support.session_in_process import SessionInProcess, Settings


def test_a_join_of_ten_runs_here_and_in_tasks_of_spark(tmp_path):
    rows = written(tmp_path / "s", pa.table({"k": [1, 2, 3], "v": [4, 5, 6]}), "k")
    joined = rows
    for _ in range(10):
        joined = joined.join(rows, how="semi")
    assert joined.to_table().num_rows == 3
    session = SessionInProcess(Settings())
    assert joined.to_spark(session).toArrow().num_rows == 3
