"""What is found wrong with a wheel before anybody installs it."""

from email.message import EmailMessage

import pytest

from arrow_format import __version__
from tests.check_dist import (
    PACKAGES,
    files_of_packages,
    main,
    problems,
    release_problems,
    wheel_problems,
)

INFO = f"arrow_shuffle-{__version__}.dist-info"
LICENSE = f"{INFO}/licenses/LICENSE"


def metadata(requires="numpy>=2.0", version=__version__, readme="[x](https://host/x)"):
    message = EmailMessage()
    message["Version"] = version
    message["Requires-Dist"] = requires
    message.set_payload(readme)
    return message


def names():
    return files_of_packages() | {LICENSE, f"{INFO}/METADATA"}


def test_a_right_one_is_silent():
    assert wheel_problems(names(), metadata(), __version__) == []
    optional = "pyspark>=4.0; extra == 'spark'"
    assert wheel_problems(names(), metadata(requires=optional), __version__) == []


@pytest.mark.parametrize("name", [*(f"{p}/py.typed" for p in PACKAGES), "connector/read.py"])
def test_a_missing_file_is_named(name):
    assert wheel_problems(names() - {name}, metadata(), __version__) == [f"lacks {name}"]


@pytest.mark.parametrize("name", ["tests/__init__.py", "arrow_format/notes.md", "hatch_build.py"])
def test_a_file_too_many_is_named(name):
    said = [f"has {name}, which is not of the packages"]
    assert wheel_problems(names() | {name}, metadata(), __version__) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"requires": "pyspark>=4.0"}, "installs pyspark without an extra"),
        ({"version": "0.0.1"}, f"is version 0.0.1, and the package {__version__}"),
        ({"readme": "[x](guide/x.md#a)"}, "README: guide/x.md#a leads nowhere"),
    ],
)
def test_wrong_metadata_is_named(given, said):
    assert wheel_problems(names(), metadata(**given), __version__) == [said]


def test_a_wheel_without_license_is_named():
    assert wheel_problems(names() - {LICENSE}, metadata(), __version__) == ["lacks the license"]


def test_a_directory_without_them_is_a_problem(tmp_path, capsys):
    (tmp_path / "other-1.0.tar.gz").touch()
    (said,) = problems(tmp_path)
    assert "has ['other-1.0.tar.gz'], expected arrow_shuffle-" in said
    assert main(str(tmp_path)) == 1
    assert said in capsys.readouterr().out


def test_a_release_needs_a_dated_entry_in_the_changelog():
    assert "CHANGELOG.md: give [9.9.9] the date of today" in release_problems("9.9.9")
