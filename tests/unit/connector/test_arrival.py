"""Pickles of tasks, readers and data sources, where they arrive: with the package, and without."""

import base64
import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructType

from arrow_format import WriteOptions, write_shuffle
from connector import ArrowShuffleDataSource, ShuffleMapTask
from connector.operators.buffered_output import BufferedOutput
from connector.operators.tasks import GroupTask
from connector.source.described import _source
from connector.source.reader import ShuffleSourceReader
from connector.source.writer import ShuffleSourceWriter

SCHEMA = StructType().add("k", LongType())
LOAD = """
import base64, pickle, sys
arrived = pickle.loads(base64.b64decode(sys.stdin.read()))
if isinstance(arrived, type):
    arrived({"path": "/"}).schema()
"""


@pytest.fixture(params=["task", "group", "buffer", "reader", "writer", "source", "described"])
def travelling(request, tmp_path):
    """What Spark pickles for a task or a server."""
    path = tmp_path / "s"
    options = {"path": str(path), "keys": "k", "numSubpartitions": "2"}
    rows = pa.table({"k": [1]})
    write_shuffle(rows, path, keys="k", num_subpartitions=2, options=WriteOptions(sync=False))
    return {
        "task": lambda: ShuffleMapTask(path, schema=SCHEMA, keys="k", num_subpartitions=2),
        "group": lambda: GroupTask((), len, rows.schema),
        "buffer": lambda: BufferedOutput(keys=["k"], max_interval="1s"),
        "reader": lambda: ShuffleSourceReader({"path": str(path)}, SCHEMA),
        "writer": lambda: ShuffleSourceWriter(options, SCHEMA, overwrite=True),
        "source": lambda: ArrowShuffleDataSource,
        "described": lambda: _source("a name", {}),
    }[request.param]()


def test_it_arrives_as_it_was(travelling):
    arrived = pickle.loads(cloudpickle.dumps(travelling))
    if isinstance(travelling, type):
        assert arrived.name() == travelling.name()
        return
    assert type(arrived) is type(travelling)
    assert arrived.__dict__.keys() == travelling.__dict__.keys()
    assert type(copy.copy(travelling)) is type(travelling)


@pytest.mark.parametrize("without", ["arrow_format", "connector", "zstandard"])
def test_where_a_module_is_missing_it_says_which_and_where(travelling, tmp_path, without):
    """A process with links to what is installed, but for one module."""
    packages = tmp_path / "packages"
    packages.mkdir()
    ours = Path(__file__).resolve().parents[3]
    here = [*Path(np.__file__).parents[1].iterdir(), ours / "arrow_format", ours / "connector"]
    for module in here:
        if module.name != without:
            (packages / module.name).symlink_to(module)
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOAD],
        input=base64.b64encode(cloudpickle.dumps(travelling)),
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        | {"PYTHONPATH": str(packages)},
    )
    last = done.stderr.decode().splitlines()[-1]
    what = f"needs {without}, which" if without == "zstandard" else "arrow-shuffle"
    assert last.startswith("ModuleNotFoundError: arrow-shuffle ")
    assert f"{what} is missing on {os.uname().nodename} in {sys.executable}" in last
    assert "install it there, or bring it along" in last
