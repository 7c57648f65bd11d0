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

from arrow_format.errors import MissingPackageError
from arrow_format.operators.task_plan import GroupResults
from connector import ArrowShuffleDataSource, ShuffleMapTask
from connector.operators.buffered_output import BufferedOutput
from connector.operators.spark_run import GroupTask
from connector.source.described import _source
from connector.source.reader import ShuffleSourceReader
from connector.source.writer import ShuffleSourceWriter
from tests.support.small_shuffles import write_rows

SCHEMA = StructType().add("k", LongType())
LOAD = """
import base64, pickle, sys
for line in sys.stdin:
    try:
        arrived = pickle.loads(base64.b64decode(line))
        if isinstance(arrived, type):
            arrived({"path": "/"}).schema()
    except ModuleNotFoundError as error:
        print(error)
    else:
        print(type(arrived))
"""


@pytest.fixture(scope="module")
def travelling(tmp_path_factory):
    """What Spark pickles for a task or a server, by its role."""
    path = tmp_path_factory.mktemp("arrival") / "s"
    options = {"path": str(path), "keys": "k", "numSubpartitions": "2"}
    rows = pa.table({"k": [1]})
    write_rows(path, rows, "k", n=2)
    return {
        "task": ShuffleMapTask(path, schema=SCHEMA, keys="k", num_subpartitions=2),
        "group": GroupTask(GroupResults((), len, rows.schema), "a name"),
        "buffer": BufferedOutput(keys=["k"], max_interval="1s"),
        "reader": ShuffleSourceReader({"path": str(path)}, SCHEMA),
        "writer": ShuffleSourceWriter(options, SCHEMA, overwrite=True),
        "source": ArrowShuffleDataSource,
        "described": _source("a name", {}),
    }


def test_it_arrives_as_it_was(travelling):
    for role, sent in travelling.items():
        arrived = pickle.loads(cloudpickle.dumps(sent))
        if isinstance(sent, type):
            assert arrived.name() == sent.name()
        else:
            assert type(arrived) is type(copy.copy(sent)) is type(sent), role
            assert arrived.__dict__.keys() == sent.__dict__.keys()


def test_another_release_is_refused_where_it_arrives(travelling, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("arrow_format.__version__", "0.1.7")
        sent = cloudpickle.dumps(travelling["task"])
    with pytest.raises(MissingPackageError, match=r"the program itself has 0\.1\.7 on "):
        pickle.loads(sent)


@pytest.mark.slow
@pytest.mark.parametrize("without", ["arrow_format", "connector", "zstandard"])
def test_where_a_module_is_missing_it_says_which_and_where(travelling, tmp_path, without):
    """A process with links to what is installed, but for one module."""
    ours = Path(__file__).resolve().parents[3]
    here = [*Path(np.__file__).parents[1].iterdir(), ours / "arrow_format", ours / "connector"]
    for module in here:
        if module.name != without:
            (tmp_path / module.name).symlink_to(module)
    pickles = [base64.b64encode(cloudpickle.dumps(sent)).decode() for sent in travelling.values()]
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOAD],
        input="\n".join(pickles),
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        text=True,
    )
    what = "arrow-shuffle needs zstandard, which" if without == "zstandard" else "arrow-shuffle"
    expected = f"{what} is missing on {os.uname().nodename} in {sys.executable}, where Spark runs"
    for role, said in zip(travelling, done.stdout.splitlines(), strict=True):
        assert said.startswith(expected), role
        assert "install it there, or bring it along" in said
