"""Bad options and arguments: each its own message; what comes later says "not supported yet"."""

import pyarrow as pa
import pytest

import arrow_format
from arrow_format import OptionError, ShuffleExistsError, WriteOptions, write_shuffle
from arrow_format.options import MAX_CHUNK_BYTES, check_mode, check_num_subpartitions
from tests.support.small_shuffles import FAST

TABLE = pa.table({"a": [1, 2, 3]})


def test_defaults_are_those_of_the_contract():
    options = WriteOptions()
    assert options.sort_buffer_bytes == 128 << 20
    assert (options.codec, options.codec_level, options.chunk_bytes) == ("zstd", 1, 256 << 10)
    assert (options.local_dirs, options.write_order, options.sync) == ((), "rotated", True)
    assert options.rewrite == "never", "a write costs no more than was asked for"
    assert not options.schema_evolution, "a mistyped name must not become a column"
    assert options.statistics is None
    for given, kept in (("all", "all"), ("day", ("day",)), (["a", "b"], ("a", "b")), ((), ())):
        assert WriteOptions(statistics=given).statistics == kept


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sort_buffer_bytes", 1_023, "sort_buffer_bytes=1023: expected a whole number of bytes"),
        ("sort_buffer_bytes", "1g", "sort_buffer_bytes='1g'"),
        ("sort_buffer_bytes", 1e9, "sort_buffer_bytes=1000000000.0"),
        ("sort_buffer_bytes", True, "sort_buffer_bytes=True"),
        ("codec", "lz4", "codec='lz4': expected one of 'zstd', 'none'"),
        ("codec", None, "codec=None: expected one of 'zstd', 'none'"),
        ("codec_level", 23, "codec_level=23: expected a whole number of zstd levels from -7 to 22"),
        ("chunk_bytes", 0, "chunk_bytes=0: expected a whole number of bytes from 1 to 4,194,304"),
        ("chunk_bytes", MAX_CHUNK_BYTES + 1, "chunk_bytes=4194305"),
        ("write_order", "random", "write_order='random': expected one of 'rotated', 'natural'"),
        ("rewrite", "merge", "rewrite='merge': expected one of 'never', 'auto', 'always'"),
        ("sync", 1, "sync=1: expected True or False"),
        ("schema_evolution", "true", "schema_evolution='true': expected True or False"),
        ("statistics", (1,), r"statistics=\(1,\): expected 'all', or names of columns"),
        ("statistics", False, "statistics=False: expected 'all'"),
        ("local_dirs", ("tmp",), "local_dirs=.*expected a tuple of different absolute directories"),
        ("local_dirs", ("/tmp", "/tmp"), "local_dirs=.*expected a tuple of different absolute"),
        ("local_dirs", ("/tmp", "/tmp/"), "local_dirs=.*expected a tuple of different absolute"),
        ("local_dirs", ("//tmp", "/a/../tmp"), "local_dirs=.*expected a tuple of different abs"),
        ("local_dirs", "/tmp", "local_dirs='/tmp': expected a tuple"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name, value, message):
    with pytest.raises(OptionError, match=message):
        WriteOptions(**{name: value})


@pytest.mark.parametrize("n", [0, -1, 1_000_001, "8", 8.0, True])
def test_bad_numbers_of_subpartitions(tmp_path, n):
    with pytest.raises(OptionError, match=f"num_subpartitions={n!r}: expected a whole number"):
        write_shuffle(TABLE, tmp_path / "x", num_subpartitions=n, keys="a")
    assert not (tmp_path / "x").exists()


def test_the_bounds_of_n_are_allowed():
    assert check_num_subpartitions(1) == 1
    assert check_num_subpartitions(1_000_000) == 1_000_000


@pytest.mark.parametrize("mode", ["Append", "", None, "errors"])
def test_bad_modes(tmp_path, mode):
    with pytest.raises(OptionError, match=r"mode=.*'errorifexists', 'overwrite', 'append'"):
        write_shuffle(TABLE, tmp_path / "x", num_subpartitions=2, keys="a", mode=mode)
    assert check_mode("append") == "append"


@pytest.mark.parametrize("mode", ["error", "default"])
def test_words_of_spark_for_a_mode(tmp_path, mode):
    write_shuffle(TABLE, tmp_path / "x", num_subpartitions=2, keys="a", mode=mode)
    with pytest.raises(ShuffleExistsError, match="there is a shuffle already"):
        write_shuffle(TABLE, tmp_path / "x", num_subpartitions=2, keys="a", mode=mode)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "found neither"),
        ({"keys": "a", "partitioner": arrow_format.RoundRobinPartitioner()}, "found both"),
        ({"keys": ()}, "expected one column name or several"),
        ({"keys": ("a", "a")}, "a column is named twice"),
        ({"keys": 5}, "expected"),
        ({"partitioner": "hash"}, "partitioner='hash': expected HashPartitioner"),
        ({"partitioner": arrow_format.RoundRobinPartitioner}, "expected HashPartitioner"),
    ],
)
def test_exactly_one_way_to_partition(tmp_path, arguments, message):
    with pytest.raises(OptionError, match=message):
        write_shuffle(TABLE, tmp_path / "x", num_subpartitions=2, **arguments)
    assert not (tmp_path / "x").exists()


def test_the_package_lists_what_it_has():
    for name in arrow_format.__all__:
        assert getattr(getattr(arrow_format, name), "__name__", "BROADCAST") == name
    assert set(arrow_format.__all__) <= set(dir(arrow_format))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        arrow_format.nothing  # noqa: B018


def test_every_error_is_a_shuffle_error_with_its_own_name():
    errors = {name for name in arrow_format.__all__ if name.endswith("Error")}
    assert {"CorruptShuffleError", "OutOfDiskError", "OptionError"} <= errors
    for name in errors:
        assert issubclass(getattr(arrow_format, name), arrow_format.ShuffleError)


def test_options_do_not_change():
    with pytest.raises(AttributeError):
        FAST.codec = "none"
