"""Versions by number, time and tag."""

import os
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from arrow_format.errors import OptionError, ShuffleNotFoundError
from arrow_format.jobs.tags import tag_shuffle
from arrow_format.log.names import entry_path
from arrow_format.log.version_names import parse_version_name
from arrow_format.read.shuffle import open_shuffle
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import collect, numbered, values, write_tasks

BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def path(path, monkeypatch):
    """Versions of 12:00, 12:01, ..., 12:04, with a tag between the third and the fourth."""
    for minute in range(5):
        at = BEGIN + timedelta(minutes=minute)
        monkeypatch.setattr(time, "time_ns", lambda at=at: int(at.timestamp()) * 1_000_000_000)
        write_tasks(path, [[numbered([0], minute)]], 5, mode="append" if minute else "overwrite")
        if minute == 2:
            tag_shuffle(path, "release-7", 2)
    monkeypatch.undo()
    return path


def opened(path, name):
    return open_shuffle(path, name).version


@pytest.mark.parametrize(
    ("seconds", "version"),
    [(0, 1), (59.999, 1), (60, 2), (119, 2), (120, 3), (179, 3), (180, 5), (10**8, 6)],
)
def test_a_time_is_the_newest_version_by_then(path, seconds, version):
    moment = BEGIN + timedelta(seconds=seconds)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for name in (moment, moment.isoformat(), elsewhere.isoformat(" "), elsewhere):
        assert opened(path, name) == version
    assert values(path, moment) == list(range(min(version, 3) + max(version - 4, 0)))


def at(path, when, *versions):
    """Let the storage have put the entries of versions at a time."""
    for version in versions:
        os.utime(path / entry_path(version), (when.timestamp(), when.timestamp()))


@pytest.mark.slow
@guarantee("versions by time")
@pytest.mark.parametrize("ahead", [timedelta(hours=3), timedelta(days=80 * 365)])
def test_a_writer_whose_clock_was_ahead_does_not_hide_later_versions(path, monkeypatch, ahead):
    later = BEGIN + timedelta(hours=1)
    for minute in range(4):
        clock = later + timedelta(minutes=minute) + (ahead if minute == 1 else timedelta(0))
        monkeypatch.setattr(time, "time_ns", lambda at=clock: int(at.timestamp()) * 1_000_000_000)
        write_tasks(path, [[numbered([0], 9)]], 5, mode="append" if minute < 3 else "overwrite")
        at(path, later + timedelta(minutes=minute), 7 + minute)
    monkeypatch.undo()
    said = [open_shuffle(path, version).snapshot.newest.committed_at_ms for version in (8, 9, 10)]
    assert len(set(said)) == 1, "the log never goes back"
    for minute in range(4):
        assert opened(path, later + timedelta(minutes=minute, seconds=59)) == 7 + minute
    assert opened(path, BEGIN + timedelta(seconds=60)) == 2
    collect(path)
    with pytest.raises(ShuffleNotFoundError, match="was committed at 2026-11-20 13:03:00"):
        opened(path, later)


def test_a_storage_that_rounds_times_down_is_no_clock_that_is_behind(path):
    for number in range(1, 7):
        at(path, BEGIN + timedelta(minutes=number - 1 - (number > 3), seconds=-1.5), number)
    assert opened(path, BEGIN + timedelta(seconds=59)) == 1
    assert opened(path, BEGIN + timedelta(seconds=60)) == 2


def test_a_time_without_a_zone_is_local(path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert opened(path, "2026-11-20 17:31") == 2
        assert opened(path, datetime(2026, 11, 20, 17, 31)) == 2
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_date_is_the_beginning_of_that_day(path):
    assert opened(path, "2026-11-22") == 6
    with pytest.raises(ShuffleNotFoundError, match="was committed at 2026-11-20 12:00:00"):
        opened(path, "2026-11-19")


def test_before_the_first_and_in_the_expired_past_the_error_names_the_oldest(path):
    with pytest.raises(ShuffleNotFoundError, match=r"version 1 was committed at 2026-11-20 12:00"):
        opened(path, BEGIN - timedelta(milliseconds=1))
    os.utime(path)  # the entries' own times are now, which the collector believes
    collect(path)
    match = r"version 6 is the oldest that has not expired, and was committed at 2026-11-20 12:04"
    with pytest.raises(ShuffleNotFoundError, match=match):
        opened(path, BEGIN + timedelta(minutes=2))
    assert opened(path, BEGIN + timedelta(minutes=4)) == 6


def test_numbers_and_tags_are_names_too(path):
    assert opened(path, "3") == opened(path, 3) == 3
    assert opened(path, "release-7") == 2
    with pytest.raises(
        ShuffleNotFoundError, match=r"no version has the tag .release-8.; .* release-7"
    ):
        opened(path, "release-8")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", True, 1.5, b"1", "x" * 101, "12:00"])
def test_other_names_are_refused(path, name):
    with pytest.raises(OptionError, match="expected a number, a date and time as 2026-11-20 12:00"):
        opened(path, name)


@pytest.mark.parametrize("when", [datetime.min, datetime.max, "0001-01-01", "9999-12-31T23:59:59"])
def test_times_at_the_ends_of_the_calendar(path, when):
    if (isinstance(when, datetime) and when == datetime.min) or when == "0001-01-01":
        with pytest.raises(ShuffleNotFoundError, match="no version that can be opened"):
            opened(path, when)
    else:
        assert opened(path, when) == 6


def test_text_is_parsed_as_what_it_looks_like():
    assert parse_version_name(" 12 ") == 12
    assert parse_version_name("20261120") == 20261120
    assert parse_version_name("2026-11-20") == datetime(2026, 11, 20)
    assert parse_version_name("v2026-11-20") == "v2026-11-20"
