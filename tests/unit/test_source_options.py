"""Options of the data source: texts to checked values."""

import pytest

from arrow_format import OptionError, ReadOptions
from connector.source_options import (
    format_subpartitions,
    parse_read_options,
    parse_subpartitions,
    parse_target_options,
)


def test_subpartitions_there_and_back():
    assert parse_subpartitions("3, 7-9,12") == (3, 7, 8, 9, 12)
    assert format_subpartitions((3, 7, 8, 9, 12)) == "3,7-9,12"


@pytest.mark.parametrize("text", ["0-99999999999", "1000000", "5,3-1000000"])
def test_numbers_that_no_shuffle_has_are_not_counted_out(text):
    with pytest.raises(OptionError, match=r"expected numbers below 1,000,000"):
        parse_subpartitions(text)


def test_options_of_reading_reach_the_reader():
    found = parse_read_options({"path": "/s", "memoryBytes": "128m", "MEMORYMAP": "true"})
    assert found.options == ReadOptions(memory_bytes=128 << 20, memory_map=True)
    assert parse_read_options({"path": "/s"}).options == ReadOptions()


def test_splitting_needs_coalescing():
    assert parse_read_options({"path": "/s", "splitSkewed": "true"}).split_skewed
    with pytest.raises(OptionError, match=r"option splitSkewed: coalesce=false asks for exactly"):
        parse_read_options({"path": "/s", "splitSkewed": "true", "coalesce": "false"})


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
        found = parse(options)
        assert dict(found.storage_options) == {
            "aws_region": "us-east-1",
            "aws_secret_access_key": "hunter2",
            "aws_access_key_id": "AKID",
            "aws_session_token": "hunter3",
        }
        assert "hunter" not in repr(found)


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
