"""Options of streams: strings to checked values; names lose their case on the way through Spark."""

from datetime import timedelta

import pytest

from arrow_format import FlushOptions
from arrow_format.errors import OptionError
from connector.options.stream import (
    StepLimits,
    parse_schema_options,
    parse_sink_options,
    parse_source_options,
)


def test_sinks():
    parsed = parse_sink_options(
        {"path": "/s", "keys": "a", "numsubpartitions": "3", "checkpointlocation": "/c",
         "queryname": "q", "EMPTYVERSIONS": "True"}
    )  # fmt: skip
    assert (parsed.target.num_subpartitions, parsed.empty_versions) == (3, True)
    assert not parse_sink_options({"path": "/s"}).empty_versions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emptyVersions": "no"}, "option emptyVersions='no': expected true or false"),
        ({"color": "red"}, "option 'color' is not known; options of a stream's sink are keys"),
        ({"startingVersion": "1"}, "option 'startingVersion' is not known"),
        ({"subpartitions": "1"}, "option 'subpartitions' is not known"),
        ({"numSubpartitions": "many"}, "option numSubpartitions='many': expected a whole number"),
        (
            {"flush.maxInterval": "2"},
            "flush.maxInterval='2': .* with a unit, as 500ms, 90s, 2min or 1h$",
        ),
        ({"flush.maxInterval": "never"}, "flush.maxInterval='never'"),
        ({"flush.memoryBufferOnly": "1"}, "flush.memoryBufferOnly='1'"),
        ({"flush.maxBufferedBytes": "much"}, "flush.maxBufferedBytes='much'"),
        ({"flush.maxBufferedBytes": "1k"}, "option flush.maxBufferedBytes='1k': expected a whole"),
        ({"flush.interval": "1s"}, r"'flush.interval' is not known \(did you mean 'flush.maxInt"),
        (
            {"flush.maxInterval": "0s"},
            "option flush.maxInterval='0s': expected a whole number above zero with a unit",
        ),
    ],
)
def test_bad_options_of_sinks(options, message):
    with pytest.raises(OptionError, match=message):
        parse_sink_options({"path": "/s", "flush.maxInterval": "1h"} | options)


def test_options_of_a_flush_are_read_whatever_their_case():
    assert parse_sink_options({"path": "/s"}).flush == FlushOptions()
    parsed = parse_sink_options(
        {"path": "/s", "FLUSH.MAXINTERVAL": "2 min", "flush.memoryBufferOnly": "True",
         "flush.maxbufferedbytes": "8m"}
    )  # fmt: skip
    assert parsed.flush == FlushOptions(
        max_interval=timedelta(minutes=2), memory_buffer_only=True, max_buffered_bytes=8 << 20
    )


def test_sources():
    parsed = parse_source_options(
        {"path": "/s", "maxversionspertrigger": "2", "maxBytesPerTrigger": "2k",
         "startingVersion": "LATEST", "onOverwrite": "deliver", "subpartitions": "1-2"}
    )  # fmt: skip
    assert parsed.limits == StepLimits(2, None, 2048)
    assert (parsed.starting_version, parsed.on_overwrite) == (None, "deliver")
    assert parsed.scan.subpartitions == (1, 2)
    assert parse_source_options({"path": "/s"}).limits.are_none


def test_the_schema_is_asked_for_by_batches_and_streams_alike():
    for options in ({"version": "3"}, {"startingVersion": "3"}, {"keys": "a"}):
        assert parse_schema_options({"path": "/s"} | options).path == "/s"
    with pytest.raises(OptionError, match="option 'color' is not known; write options are"):
        parse_schema_options({"path": "/s", "color": "red"})


def test_no_path():
    for parse in (parse_sink_options, parse_source_options, parse_schema_options):
        with pytest.raises(OptionError, match="no path was given"):
            parse({})
