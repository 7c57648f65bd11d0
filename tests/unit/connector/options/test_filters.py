"""Filters as options: text and time zone, and the forms that are no text, there and back."""

import base64
import pickle
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import OptionError
from connector.options.batch import parse_read_options, parse_target_options
from connector.options.filters import ARROW_FILTER_KIND, format_arrow_filter
from connector.options.stream import parse_sink_options, parse_source_options


def test_a_filter_is_text_with_a_time_zone():
    given = {"path": "/s", "FILTER": "k < 3", "timezone": "America/New_York"}
    for parsed in (parse_read_options(given), parse_source_options(given).scan):
        assert (parsed.filter, parsed.time_zone) == ("k < 3", "America/New_York")
    assert parse_read_options({"path": "/s"}).time_zone is None
    with pytest.raises(OptionError, match=r"^option timeZone='Nowhere': expected a region"):
        parse_read_options({"path": "/s", "timeZone": "Nowhere"})
    with pytest.raises(OptionError, match=r"option 'FILTER' is not known"):
        parse_sink_options(given)
    with pytest.raises(OptionError, match=r"option 'where' is not known: give option filter"):
        parse_read_options({"path": "/s", "where": "k < 3"})


def test_an_expression_travels_as_it_is():
    for expression in (
        pc.field("k") == 3,
        (pc.field("day") >= pc.scalar(date(2024, 6, 1))) & pc.field("s").isin(["a'b", "日", None]),
    ):
        text = format_arrow_filter(expression)
        parsed = parse_read_options({"path": "/s", "arrowfilter": text}).arrow_filter
        assert parsed.equals(expression)


def test_keys_travel_with_their_types():
    keys = pa.record_batch(
        {"k": pa.array([1, None], pa.int32()), "s": pa.array([b"\xff", b""], pa.binary())}
    )
    assert ARROW_FILTER_KIND.of_text("arrowFilter", format_arrow_filter(keys)).equals(keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k < 3",
        "keys",
        "keys AAAA",
        "expression AAAA",
        "expression !",
        f"keys {base64.b64encode(pickle.dumps(pc.field('k'))).decode()}",
        f"expression {base64.b64encode(pickle.dumps(pc.field('k'))).decode()}",
    ],
)
def test_what_nobody_but_to_spark_writes_is_refused(text):
    with pytest.raises(OptionError, match=r"option arrowFilter=.*: expected nothing; to_spark"):
        parse_read_options({"path": "/s", "arrowFilter": text})


def test_it_is_of_batch_reads_alone_and_goes_with_no_text():
    text = format_arrow_filter(pc.field("k") == 3)
    for parse in (parse_target_options, parse_source_options):
        with pytest.raises(OptionError, match=r"option 'arrowFilter' is not known"):
            parse({"path": "/s", "arrowFilter": text})
    with pytest.raises(OptionError, match=r"^option filter='k': the DataFrame has a filter; use "):
        parse_read_options({"path": "/s", "arrowFilter": text, "filter": "k"})
