"""Installed without its extras: what works, and what one sentence says of the rest."""

import pickle
import sys

import pyarrow as pa
import pytest

from arrow_format import MissingPackageError, OptionError
from arrow_format.extras import EXTRAS, needed_by, require
from tests.support.programs import run_python

WITHOUT_EXTRAS = f"""
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {sorted(EXTRAS)} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
"""Begins a program: Python finds no optional package then, as if it were not installed."""


def run(code, *arguments):
    return run_python(WITHOUT_EXTRAS + code, *arguments)


def message(what, package):
    return (
        f"{what} needs {package}, which is not installed: "
        f"pip install 'arrow-shuffle[{EXTRAS[package]}]'"
    )


@pytest.mark.slow
def test_rows_in_memory_are_written_and_read(tmp_path):
    code = """
import pyarrow as pa
import arrow_shuffle

table = pa.table({"k": range(100), "v": ["x"] * 100})
print(arrow_shuffle.write_shuffle(table, sys.argv[1], num_subpartitions=4, keys="k").num_rows)
shuffle = arrow_shuffle.open_shuffle(sys.argv[1])
print(shuffle.verify().num_rows, sum(len(r.read_all()) for r in shuffle), repr(shuffle)[:7])
print(shuffle.to_dataset().count_rows())
def sizes(rows: pa.Table):
    return pa.table({"k": rows["k"].slice(0, 1), "n": [len(rows)]})
asked = shuffle.select("k").join(shuffle).map_groups(sizes, "k bigint, n bigint")
assert asked.aggregate("k", {"n": "sum"}).to_table().num_rows == 100
assert asked.write(sys.argv[1] + "2").num_rows == 100
with arrow_shuffle.consume(sys.argv[1], consumer="c") as consumption:
    print(consumption.shuffle.read().read_all().num_rows)
from connector.cli.main import main
assert [main([c, sys.argv[1]]) for c in ("inspect", "verify", "head", "tags")] == [0] * 4
import inspect
import connector
help_takes = [name for p in (arrow_shuffle, connector) for name, _ in inspect.getmembers(p)]
assert "open_shuffle" in help_takes and "ShuffleMapTask" not in help_takes
"""
    done = run(code, tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["100", "100 100 <Shuffl", "100", "100"]


@pytest.mark.slow
def test_all_that_can_be_loaded_is_imported():
    """Public names of Spark are left out: ``import *`` would fail for the first of them."""
    code = """
from arrow_shuffle import *
from connector import *
names = set(globals())
assert {"open_shuffle", "write_shuffle", "Shuffle", "HashPartitioner"} <= names
assert not {"foreach_batch", "ShuffleMapTask"} & names
import arrow_shuffle
assert not hasattr(arrow_shuffle, "no_name_of_ours")
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "what", "package"),
    [
        ("from arrow_shuffle import foreach_batch", "arrow_shuffle.foreach_batch", "pyspark"),
        ("import connector; connector.ShuffleMapTask", "connector.ShuffleMapTask", "pyspark"),
        ("shuffle.to_spark()", "to_spark()", "pyspark"),
        ("shuffle.select('k').write(path + '2', spark=True)", "spark=True", "pyspark"),
        ("shuffle.merge(spark=True)", "spark=True", "pyspark"),
        (
            "shuffle.map_groups(lambda frame: frame, 'k bigint')",
            "map_groups, unless its function takes a pyarrow.Table",
            "pyspark",
        ),
        (
            "import arrow_shuffle, pyarrow.dataset as ds\n"
            "source = ds.dataset(pa.table({'k': [1]}))\n"
            "arrow_shuffle.write_shuffle(source, path, keys='k', spark=True)",
            "spark=True",
            "pyspark",
        ),
        ("shuffle.to_pandas()", "a pandas DataFrame", "pandas"),
        ("shuffle.read().read_pandas()", "a pandas DataFrame", "pandas"),
        ("shuffle.to_polars()", "to_polars()", "polars"),
        ("shuffle.to_dask()", "to_dask()", "dask"),
        ("shuffle.to_ray()", "to_ray()", "ray"),
        ("shuffle.to_torch(batch_size=1)", "to_torch()", "torch"),
        ("arrow_shuffle.open_shuffle('s3://bucket/x')", "an object store", "obstore"),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path, code, what, package):
    begin = """
import pyarrow as pa
import arrow_shuffle

path = sys.argv[1]
arrow_shuffle.write_shuffle(pa.table({"k": [1]}), path, num_subpartitions=1, keys="k")
shuffle = arrow_shuffle.open_shuffle(path)
"""
    done = run(begin + code, tmp_path / "s")
    last = done.stderr.splitlines()[-1]
    assert last == f"arrow_format.errors.MissingPackageError: {message(what, package)}"
    assert "During handling" not in done.stderr


@pytest.mark.slow
def test_the_command_says_it_too():
    code = "from connector.cli.main import main\nsys.exit(main(['inspect', 's3://bucket/x']))"
    done = run(code)
    assert done.returncode == 2
    said = message("an object store", "obstore")
    assert done.stderr == f"arrow-shuffle: MissingPackageError: {said}\n"


def test_the_error_is_ours_and_that_of_an_import():
    with pytest.raises(MissingPackageError) as raised, needed_by("x"):
        raise ModuleNotFoundError(name="polars")
    error = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(error, OptionError)
    assert isinstance(error, ImportError)
    assert (str(error), error.name) == (message("x", "polars"), "polars")


@pytest.mark.parametrize("name", ["numpy", "polars.io", None])
def test_other_failing_imports_are_as_they_were(name):
    error = ModuleNotFoundError("as it was", name=name)
    with pytest.raises(ModuleNotFoundError, match="as it was"), needed_by("x"):
        raise error


def test_nothing_is_said_of_what_is_installed():
    before = set(sys.modules)
    for package in EXTRAS.keys() - {"ray", "torch"}:  # too large for the environment of the tests
        require(package, "x")
    with needed_by("x"):
        pa.table({})
    assert set(sys.modules) == before
