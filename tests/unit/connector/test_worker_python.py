"""The Python that Spark runs functions in, asked without a session."""

import stat
import sys
from pathlib import Path

import pytest

from connector.worker_python import check_worker_python, what_lacks

SAYS = "#!/bin/sh\necho 'a greeting'\necho '{answer}'\n"
THIS = [*sys.version_info[:2]]


@pytest.fixture
def program(tmp_path: Path):
    """A Python that gives an answer."""

    def made(text: str) -> str:
        path = tmp_path / "python"
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    yield made
    what_lacks.cache_clear()


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        (f"[{THIS}, []]", ()),
        (f'[{THIS}, ["arrow_format", "connector"]]', ("arrow-shuffle",)),
        (f'[{THIS}, ["connector", "zstandard"]]', ("arrow-shuffle", "zstandard")),
        (f'[{THIS}, ["pyarrow"]]', ("pyarrow",)),
        ("[[3, 8], []]", (f"Python {THIS[0]}.{THIS[1]}",)),
        ("no answer", ()),
    ],
)
def test_it_is_asked_what_it_lacks(program, answer, lacks):
    assert what_lacks(program(SAYS.format(answer=answer))) == lacks


def test_one_that_fails_is_left_to_spark(program, tmp_path):
    assert what_lacks(program("#!/bin/sh\nexit 3\n")) == ()
    assert what_lacks(str(tmp_path / "none")) == ()


def test_the_python_of_this_environment_is_not_asked():
    assert what_lacks(str(Path(sys.executable).with_name("python-that-is-not-there"))) == ()


def test_it_is_the_one_of_this_environment_here():
    assert what_lacks(sys.executable) == ()
    assert check_worker_python.__module__ == "connector.worker_python"
