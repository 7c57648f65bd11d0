"""The daemon has loaded what plans and tasks need: the processes that it forks load nothing."""

import subprocess
import sys

import pyarrow as pa

from arrow_format import write_shuffle

PLAN_AND_READ = """
import sys
import connector.worker_daemon
before = set(sys.modules)
import pickle
from pyspark.sql.types import LongType, StructField, StructType
from connector.source.data_source import ArrowShuffleDataSource

path, other = sys.argv[1:]
schema = StructType([StructField("k", LongType())])
source = ArrowShuffleDataSource({"path": path})
assert source.schema() == schema
reader = pickle.loads(pickle.dumps(source.reader(schema)))
rows = [b for part in reader.partitions() for b in reader.read(pickle.loads(pickle.dumps(part)))]
assert sum(batch.num_rows for batch in rows) == 3
new = {"path": other, "keys": "k", "numsubpartitions": "2"}
pickle.loads(pickle.dumps(ArrowShuffleDataSource(new).writer(schema, False))).commit([])
loaded = sorted(n for n in set(sys.modules) - before if n.startswith(("arrow_format", "connector")))
print(",".join(loaded))
"""


def test_plans_and_a_read_load_no_module_of_ours(tmp_path):
    write_shuffle(pa.table({"k": [1, 2, 3]}), tmp_path / "s", keys="k", num_subpartitions=2)
    command = [sys.executable, "-c", PLAN_AND_READ, str(tmp_path / "s"), str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
