"""A micro-batch is written once, and a second write of it is not silent."""

import pytest

from arrow_format import OptionError, WriteOptions, open_shuffle
from connector import foreach_batch

pytestmark = pytest.mark.spark
FAST = WriteOptions(sync=False)


def writer(path, **how):
    return foreach_batch(path, keys="id", num_subpartitions=2, options=FAST, **how)


def test_a_batch_that_is_there_is_warned_of(spark, tmp_path, caplog):
    write = writer(tmp_path / "s", application="a")
    for number in (0, 1):
        write(spark.range(10), number)
    assert not caplog.records
    write(spark.range(10, 30), 1)
    (record,) = caplog.records
    assert "batch 1 of a is in the shuffle, and its rows were not written" in record.getMessage()
    writer(tmp_path / "s", application="b")(spark.range(10, 30), 1)
    assert open_shuffle(tmp_path / "s").num_rows == 40
    assert len(caplog.records) == 1


def test_outside_of_a_query_it_needs_a_name(spark, tmp_path):
    with pytest.raises(OptionError, match="application: the id of the streaming query is not"):
        writer(tmp_path / "s")(spark.range(3), 0)
