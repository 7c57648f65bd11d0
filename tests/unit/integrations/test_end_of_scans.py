"""A program may end while Arrow's threads still read ahead of a query that needed few rows."""

import numpy as np
import pyarrow as pa
import pytest

from tests.support.programs import run_python
from tests.support.small_shuffles import write_rows

PROGRAM = """
import sys, duckdb, pyarrow.compute as pc
from arrow_shuffle import open_shuffle
dataset = open_shuffle(sys.argv[1]).to_dataset()
if sys.argv[2] == "head":
    print(dataset.head(10).num_rows)
elif sys.argv[2] == "filter":
    print(dataset.head(10, filter=pc.field("c0") > 5).num_rows)
else:
    print(len(duckdb.sql("SELECT * FROM dataset LIMIT 10").fetchall()))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scans") / "s"
    rows = np.arange(1_000_000)
    table = pa.table({"k": rows % 20_000, **{f"c{i}": rows * 7919 % 1_000_003 for i in range(12)}})
    write_rows(path, table, "k", n=64)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["head", "filter", "duckdb"])
def test_the_interpreter_ends(path, how):
    """It aborted, or waited for ever: a thread entered Python when that was taken apart."""
    done = run_python(PROGRAM, path, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
