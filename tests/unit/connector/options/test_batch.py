"""Options of the data source: texts to checked values."""

import pytest

from arrow_format import OptionError, ReadOptions, ResultPartitionType
from arrow_format.log.snapshot import VersionSpan
from connector.options.batch import parse_read_options, parse_target_options
from connector.options.stream import parse_sink_options
from connector.options.text import SUBPARTITIONS, Pin, format_subpartitions


def test_subpartitions_there_and_back():
    assert SUBPARTITIONS.of_text("subpartitions", "3, 7-9,12") == (3, 7, 8, 9, 12)
    assert format_subpartitions((3, 7, 8, 9, 12)) == "3,7-9,12"


@pytest.mark.parametrize("text", ["0-99999999999", "1000000", "5,3-1000000"])
def test_numbers_that_no_shuffle_has_are_not_counted_out(text):
    with pytest.raises(OptionError, match=r"expected numbers below 1,000,000"):
        SUBPARTITIONS.of_text("subpartitions", text)


def test_options_of_reading_reach_the_reader():
    parsed = parse_read_options({"path": "/s", "memoryBytes": "128m", "MEMORYMAP": "true"})
    assert parsed.options == ReadOptions(memory_bytes=128 << 20, memory_map=True)
    assert parse_read_options({"path": "/s"}).options == ReadOptions()


def test_splitting_needs_coalescing():
    assert parse_read_options({"path": "/s", "splitSkewed": "true"}).split_skewed
    with pytest.raises(OptionError, match=r"^option splitSkewed='true': without coalesce each"):
        parse_read_options({"path": "/s", "splitSkewed": "true", "coalesce": "false"})


@pytest.mark.parametrize("span", [None, VersionSpan(0, 1, 3), VersionSpan(2, 2, 17)])
@pytest.mark.parametrize("commit_id", ["c0ffee", "5ae0c6d4-a503", "-_-", "9"])
def test_what_a_frame_reads_travels_as_an_option(span, commit_id):
    options = {"path": "/s", "version": "17", "pin": str(Pin(commit_id, span))}
    parsed = parse_read_options(options)
    assert (parsed.version, parsed.pin) == (17, (commit_id, span))
    with pytest.raises(OptionError, match=r"option 'pin' is not known"):
        parse_target_options(options)


@pytest.mark.parametrize("pin", ["", "c0ffee 1-2", "c0ffee 1-2-x", "../c", "c0ffee 1-2-3 "])
def test_a_bad_pin_is_refused(pin):
    with pytest.raises(OptionError, match=r"option pin=.*to_spark\(\) alone sets it"):
        parse_read_options({"path": "/s", "version": "17", "pin": pin})
    with pytest.raises(OptionError, match=r"option pin='c0ffee': expected option version with it"):
        parse_read_options({"path": "/s", "pin": "c0ffee"})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("17", 17),
        (" 017 ", 17),
        ("release-7", "release-7"),
        ("2026-11-20T12:00Z", "2026-11-20T12:00Z"),
        ("2026-11-20 12:00+01:00", "2026-11-20 12:00+01:00"),
    ],
)
def test_a_version_is_a_number_a_time_or_a_tag(text, version):
    assert parse_read_options({"path": "/s", "version": text}).version == version


@pytest.mark.parametrize("text", ["", "a b", "12:00", "2026-13-01 00:00", "x/y"])
def test_other_names_of_versions_are_refused(text):
    with pytest.raises(OptionError, match=r"^option version=.*: expected a number, a date and"):
        parse_read_options({"path": "/s", "version": text})


@pytest.mark.parametrize("text", ["2026-11-20", "2026-11-20 12:00"])
def test_a_time_needs_a_zone_since_that_of_the_session_is_not_known(text):
    with pytest.raises(OptionError, match=r"expected a time with a zone.*open_shuffle takes that"):
        parse_read_options({"path": "/s", "version": text})


def test_an_expected_version_is_of_batch_writes_alone():
    assert parse_target_options({"path": "/s", "expectedVersion": "3"}).expected_version == 3
    assert parse_target_options({"path": "/s"}).expected_version is None
    assert parse_read_options({"path": "/s", "expectedversion": "3"}).version is None
    for text, problem in [("x", "expected a whole number"), ("-1", "from 0 to")]:
        with pytest.raises(OptionError, match=f"^option expectedVersion='{text}': .*{problem}"):
            parse_target_options({"path": "/s", "expectedVersion": text})
    with pytest.raises(OptionError, match="option 'expectedVersion' is not known"):
        parse_sink_options({"path": "/s", "expectedVersion": "3"})


# Options of an object store -----------------------------------------------------------------------


def test_options_of_an_object_store():
    options = {
        "path": "s3://bucket/shuffle",
        "storage.aws_region": "us-east-1",
        "Storage.AWS_Secret_Access_Key": "hunter2",
        "storage.aws_access_key_id": "AKID",
        "storage.secret.aws_session_token": "hunter3",
    }
    for parse in (parse_read_options, parse_target_options):
        parsed = parse(options)
        assert dict(parsed.storage_options) == {
            "aws_region": "us-east-1",
            "aws_secret_access_key": "hunter2",
            "aws_access_key_id": "AKID",
            "aws_session_token": "hunter3",
        }
        assert "hunter" not in repr(parsed)


@pytest.mark.parametrize(
    "name", ["azure_storage_account_key", "azure_storage_sas_key", "google_service_account_key"]
)
def test_a_secret_that_spark_would_show_is_refused(name):
    options = {"path": "az://container/shuffle", f"storage.{name}": "hunter2"}
    with pytest.raises(OptionError, match=rf"call it storage\.secret\.{name}") as error:
        parse_read_options(options)
    assert "hunter2" not in str(error.value)
    options = {"path": "az://container/shuffle", f"storage.secret.{name}": "hunter2"}
    assert parse_read_options(options).storage_options[name] == "hunter2"


@pytest.mark.parametrize("url", ["http://user:hunter2@proxy:3128", "https://a/b?sv=1&sig=hunter2"])
def test_a_secret_inside_of_a_url_is_refused(url):
    options = {"path": "s3://bucket/shuffle", "storage.proxy_url": url}
    with pytest.raises(OptionError, match=r"call it storage\.secret\.proxy_url") as error:
        parse_read_options(options)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resultType": "EPHEMERAL"}, "option resultType='EPHEMERAL': expected one of BLOCKING_P"),
        (
            {"maxUnconsumedVersions": "3"},
            "option maxUnconsumedVersions='3': only .* PIPELINED_BOUNDED .* no type was given",
        ),
        (
            {"maxUnconsumedBytes": "3k", "resultType": "pipelined"},
            "option maxUnconsumedBytes='3k': only .* PIPELINED_BOUNDED .* this one is PIPELINED",
        ),
        (
            {"backPressureTimeout": "1s", "resultType": "blocking"},
            "option backPressureTimeout='1s': only .* waits .* this one is BLOCKING;",
        ),
        (
            {"backPressureTimeout": "3"},
            "option backPressureTimeout='3': .* with a unit, as 30m, 1h, 7d or 0s$",
        ),
    ],
)
def test_bad_options_of_results(options, message):
    with pytest.raises(OptionError, match=message):
        parse_target_options({"path": "/s"} | options)


def test_options_of_results():
    bounded = {"resulttype": "pipelined_bounded", "maxunconsumedbytes": "3k"}
    parsed = parse_target_options({"path": "/s", "backpressuretimeout": "0s"} | bounded).options
    assert parsed.result_type is ResultPartitionType.PIPELINED_BOUNDED
    assert (parsed.max_unconsumed_bytes, parsed.back_pressure_timeout) == (3072, 0)
    # An append takes the type of what is there, and may say how long it waits for it.
    appended = parse_target_options({"path": "/s", "backPressureTimeout": "2min"}).options
    assert (appended.result_type, appended.back_pressure_timeout) == (None, 120)
    scan = parse_read_options({"path": "/s", "requesttimeout": "500ms", "consumer": "a"})
    assert (scan.request.timeout, scan.request.consumer) == (0.5, "a")


@pytest.mark.parametrize("parse", [parse_read_options, parse_target_options])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("columns", r": columns are chosen by \.schema\('k BIGINT, v STRING'\)"),
        ("versionAsOf", ": give option version: a number, a tag, or a time"),
        ("timestampAsOf", ": give option version: a number, a tag, or a time"),
        ("paths", r": a shuffle has one path, as in load\(path\); of several take df\.union"),
        ("numpartitions", r" \(did you mean 'numSubpartitions'\?\)"),
        ("kyes", r" \(did you mean 'keys'\?\)"),
        ("sort_by", r" \(did you mean 'sortBy'\?\)"),
        ("codec_level", r" \(did you mean 'codecLevel'\?\)"),
    ],
)
def test_an_unknown_option_says_what_is_meant(parse, name, hint):
    for given in (name, name.lower()):  # Spark hands names over without their case
        with pytest.raises(OptionError, match=f"^option '{given}' is not known{hint}$"):
            parse({"path": "/s", given: "1"})


@pytest.mark.parametrize("parse", [parse_read_options, parse_target_options])
def test_an_unknown_option_like_no_other_lists_all(parse):
    with pytest.raises(OptionError, match=r"option 'color' is not known; write options are keys, "):
        parse({"path": "/s", "color": "red"})


def test_an_empty_partitioner_is_that_of_the_existing_shuffle_whatever_the_keys():
    options = {"path": "/x", "partitioner": "", "keys": "v"}
    assert parse_target_options(options).partitioner is None
