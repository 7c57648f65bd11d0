"""Names of scans: what is read, and by which way where there are several."""

import pytest

from arrow_format.storage import ObjectStorage, PosixStorage
from connector import described_source
from connector.described_source import describe


@pytest.fixture(autouse=True)
def nothing_read_yet(monkeypatch):
    monkeypatch.setattr(described_source, "_PLACES", {})


def test_a_long_list_of_subpartitions_is_cut():
    many = ",".join(map(str, range(100)))
    assert describe("/s", 3, None) == "arrow_shuffle /s version 3"
    assert describe("/s", 3, "3,7-9") == "arrow_shuffle /s version 3 subpartitions 3,7-9"
    assert describe("/s", 3, many).endswith(",22,...")


def test_one_address_by_two_endpoints_has_two_names():
    ours = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "true"}
    theirs = ours | {"aws_endpoint_url": "http://127.0.0.1:2"}
    places = [ObjectStorage("s3://bucket/s", options) for options in (ours, theirs, ours)]
    assert [described_source._which(place) for place in places] == ["", " (2)", ""]
    assert described_source._which(ObjectStorage("s3://bucket/other", theirs)) == ""
    assert [described_source._which(PosixStorage("/s")) for _ in range(2)] == ["", ""]
