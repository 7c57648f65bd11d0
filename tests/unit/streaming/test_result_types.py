"""Result types: what they are, and who may say which."""

import pytest

from arrow_format import ResultPartitionType, WriteOptions, open_shuffle
from arrow_format.errors import (
    OptionError,
)
from arrow_format.log.names import entry_path
from arrow_format.log.result import ResultDescription
from arrow_shuffle import consume
from tests.support.results import TYPES, rows, write
from tests.support.small_shuffles import files_below


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("BLOCKING_PERSISTENT", (True, True, False, True, False)),
        ("BLOCKING", (True, False, False, True, True)),
        ("PIPELINED", (False, False, False, False, True)),
        ("PIPELINED_BOUNDED", (False, False, True, False, True)),
    ],
)
def test_the_properties_of_each_type(kind, properties):
    result_type = ResultPartitionType[kind]
    assert properties == (
        result_type.is_blocking,
        result_type.is_persistent,
        result_type.is_bounded,
        result_type.is_reconsumable,
        result_type.is_released_by_consumers,
    )
    assert result_type.is_pipelined is not result_type.is_blocking
    assert result_type.has_back_pressure is result_type.is_bounded


@pytest.mark.parametrize("kind", TYPES)
def test_the_type_is_in_the_log_and_an_append_keeps_it(tmp_path, kind):
    write(tmp_path / "s", 1, result_type=kind.name.lower())
    write(tmp_path / "s", 2)
    assert open_shuffle(tmp_path / "s").result.type is kind


def test_who_says_nothing_gets_a_persistent_one(tmp_path):
    write(tmp_path / "s", 1)
    assert open_shuffle(tmp_path / "s").result == ResultDescription()
    log = (tmp_path / "s" / entry_path(1)).read_bytes()
    assert b'"result"' not in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"result_type": "EPHEMERAL"}, "result_type='EPHEMERAL': expected one of BLOCKING_PERS"),
        ({"result_type": 3}, "result_type=3"),
        ({"max_unconsumed_bytes": 5}, "only a result of type PIPELINED_BOUNDED has bounds"),
        (
            {"result_type": "PIPELINED", "max_unconsumed_versions": 5},
            "only a result of type PIPELINED_BOUNDED has bounds, and this one is PIPELINED",
        ),
        ({"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 0}, "from 1 to"),
        ({"back_pressure_timeout": -1}, "back_pressure_timeout=-1"),
        (
            {"result_type": "BLOCKING", "back_pressure_timeout": 600.0},
            "back_pressure_timeout=600.0: only a result of type PIPELINED_BOUNDED waits for its",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        WriteOptions(**options)


def test_an_append_of_another_type_is_refused(tmp_path):
    write(tmp_path / "s", 1, result_type="PIPELINED")
    with pytest.raises(
        OptionError, match=r"s: result_type=BLOCKING: the existing result is PIPELINED"
    ):
        write(tmp_path / "s", 2, result_type="BLOCKING")
    assert rows(open_shuffle(tmp_path / "s")) == [1]
    write(tmp_path / "s", 2, mode="overwrite", result_type="BLOCKING")
    assert rows(open_shuffle(tmp_path / "s")) == [2]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "x" * 101, None, 3])
def test_a_bad_name_of_a_consumer_is_refused(tmp_path, name):
    with pytest.raises(OptionError, match="expected 1 to 100 letters"):
        consume(tmp_path / "s", consumer=name)
    assert files_below(tmp_path) == []
