"""Options by name: what a bad one is called, and which text is shown, whatever field it sets."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import MergePolicy, OptionError, WriteOptions
from arrow_format.options import DURATION, check_integer
from connector.options import batch, stream
from connector.options.batch import TargetOptions, parse_read_options, parse_target_options
from connector.options.named import build
from connector.options.stream import parse_sink_options, parse_source_options

WAYS = [
    (parse_target_options, (*batch.WRITE_OPTIONS, *batch.BATCH_WRITE_OPTIONS)),
    (parse_sink_options, (*batch.WRITE_OPTIONS, *stream.SINK_OPTIONS)),
    (parse_read_options, (*batch.READ_OPTIONS, *batch.BATCH_READ_OPTIONS)),
    (parse_source_options, (*batch.READ_OPTIONS, *stream.SOURCE_OPTIONS)),
]
CASES = [(parse, option) for parse, options in WAYS for option in options]
TEXTS = st.text("aA,:[]{}\"'-_0123456789kms é", max_size=12) | st.sampled_from(
    [
        "true",
        "all",
        "none",
        "range",
        "1h",
        "64m",
        "a desc",
        "PIPELINED",
        "BLOCKING",
        "0",
        "9" * 5_000,
    ]
)


def check(parse, option, text):
    """An option takes a text, or refuses it by the name and the text that were given."""
    try:
        parse({"path": "/s", option.name: text})
    except OptionError as error:
        message = str(error)
        if "has no effect without" in message or f"option {option.name}=" not in message:
            # Another option is missing.
            assert re.match(r"option [\w.]+: ", message)
            return
        assert message.startswith(f"option {option.name}={text!r}: ")
        # Fields of Python are none of Spark's users.
        assert not re.search(r"[a-z]_[a-z]", message.replace(repr(text), ""))


@given(st.sampled_from(CASES), TEXTS)
def test_any_text_is_taken_or_refused_by_the_name_and_text_that_were_given(case, text):
    check(*case, text)


@pytest.mark.parametrize(("parse", "option"), CASES)
def test_a_number_that_python_does_not_read(parse, option):
    check(parse, option, "9" * 5_000)


@pytest.mark.parametrize(
    ("parse", "name", "place"),
    [
        (parse_read_options, "startingVersion", "a stream's source"),
        (parse_target_options, "flush.maxInterval", "a stream's sink"),
        (parse_sink_options, "txnappid", "batch writes"),
        (parse_sink_options, "subpartitions", "reads"),
        (parse_source_options, "version", "batch reads"),
        (parse_source_options, "latestBy", "batch reads"),
        (parse_source_options, "codec", "writes"),
    ],
)
def test_an_option_in_the_wrong_place_is_no_slip_of_the_pen(parse, name, place):
    message = f"^option '{name}' is not known here: it is one of {place}$"
    with pytest.raises(OptionError, match=message):
        parse({"path": "/s", name: "1"})


def test_what_does_not_fit_together_is_named_as_it_was_given():
    with pytest.raises(OptionError, match=r"^option rangeBounds='\[1\]': only partitioner=range"):
        parse_target_options({"path": "/s", "keys": "a", "rangebounds": "[1]"})
    with pytest.raises(OptionError, match=r"^option txnVersion: missing, and an application and"):
        parse_target_options({"path": "/s", "txnAppId": "nightly"})
    with pytest.raises(OptionError, match=r"^option keys: partitioner=hash needs column names"):
        parse_target_options({"path": "/s", "partitioner": "hash"})
    with pytest.raises(OptionError, match=r"^option keys='a,b': partitioner=column needs the one"):
        parse_target_options({"path": "/s", "partitioner": "column", "keys": "a,b"})


def test_an_error_of_what_is_no_option_stays_as_it_is():
    with pytest.raises(OptionError, match=r"^sync='no': expected True or False"):
        build(WriteOptions, {}, sync="no")
    with pytest.raises(OptionError, match=r"^option localDirs: expected a tuple"):
        build(WriteOptions, {}, local_dirs="/a")
    assert build(TargetOptions, {"keys": "a"}, path="/s").keys == "a"


def test_fields_keep_what_their_checks_return():
    assert type(MergePolicy(min_regions=np.int64(3)).min_regions) is int
    assert type(WriteOptions(back_pressure_timeout=3).back_pressure_timeout) is float


def test_an_error_of_a_value_says_whose_also_where_it_was_sent():
    for given_, name in ((object(), "x"), (DURATION, "x y")):
        with pytest.raises(OptionError) as caught:
            check_integer(name, given_, 1, 2, "bytes")
        sent = pickle.loads(pickle.dumps(caught.value))
        assert (sent.argument, str(sent)) == (name, str(caught.value))
        assert sent.problem == "expected a whole number of bytes from 1 to 2"
    assert OptionError("x").argument == ""
