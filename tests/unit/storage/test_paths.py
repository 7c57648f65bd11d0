"""Wherever a path is taken, what looks like a URI and is none of ours makes no local directory."""

from functools import partial

import pyarrow as pa
import pytest

import arrow_format
import arrow_shuffle
from arrow_format import OptionError, WriteOptions
from connector.cli import main as cli
from connector.cli.output import BAD_USAGE
from connector.options.batch import parse_read_options, parse_target_options
from connector.options.stream import parse_sink_options
from connector.source.reader import schema_of_source
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import write_rows

FUNCTIONS = {
    "write_shuffle": lambda path: write_rows(path, pa.table({"k": [1]}), "k"),
    "open_shuffle": arrow_format.open_shuffle,
    "open_shuffle_changes": lambda path: arrow_format.open_shuffle_changes(path, 0),
    "merge_shuffle": partial(arrow_format.merge_shuffle, by="map_output"),
    "collect_garbage": arrow_format.collect_garbage,
    "flush_pending": arrow_format.flush_pending,
    "consume": lambda path: arrow_shuffle.consume(path, consumer="c"),
    "consume with patience": lambda path: arrow_shuffle.consume(
        path, consumer="c", request_timeout=5
    ),
    "release_shuffle": arrow_format.release_shuffle,
    "list_consumers": arrow_format.list_consumers,
    "forget_consumer": lambda path: arrow_format.forget_consumer(path, "c"),
}
FOREIGN = ["dbfs:/x/y", "s3:/bucket/x", "C:/x", "hdfs://host/x", "a:b"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty directory, which stays empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@guarantee("foreign URIs")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    with pytest.raises(OptionError, match=r"^path=dbfs:\.\.\.: "):
        FUNCTIONS[name]("dbfs:/x/y")


@guarantee("foreign URIs")
@pytest.mark.parametrize(
    "command",
    ["inspect", "head", "plan", "verify", "merge", "gc", "consumers", "release", "flush"],
)
def test_the_command(command, capsys):
    more = ["--subpartition", "0"] if command == "head" else []
    assert cli.main([command, "hdfs://host/x", *more]) == BAD_USAGE
    assert "path=hdfs:...: " in capsys.readouterr().err


@guarantee("foreign URIs")
@pytest.mark.parametrize("path", FOREIGN)
def test_options_of_the_data_source(path):
    """That it is a URI the options let pass; what opens it refuses it."""
    assert parse_target_options({"path": path}).path == path
    assert parse_sink_options({"path": path}).target.path == path
    with pytest.raises(OptionError, match=r":\.\.\.: "):
        schema_of_source({"path": path})


@pytest.mark.parametrize("path", ["./a:b", "x", "x/dbfs:/y", "2024:1"])
def test_relative_paths_in_options(path):
    with pytest.raises(OptionError, match="is relative; give an absolute path"):
        parse_read_options({"path": path})


@pytest.mark.parametrize("path", [*FOREIGN, "file:///x", "x"])
def test_local_directories(path):
    with pytest.raises(OptionError, match="expected a tuple of different absolute directories"):
        WriteOptions(local_dirs=(path,))
    with pytest.raises(OptionError, match=r"^option localDirs=.* different absolute dir"):
        parse_target_options({"path": "/s", "localDirs": path})
