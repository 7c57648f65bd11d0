"""What `make quick` leaves out is run by `make test`, and is counted."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

MAKEFILE = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")

TESTS = """
import pytest

@pytest.fixture
def s3(): ...

@pytest.fixture(params=["posix", pytest.param("gs", marks=pytest.mark.slow)])
def storage(request): ...

def test_fast(): ...

@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
def test_slow(n): ...

def test_of_a_server(s3): ...

def test_of_a_storage(storage): ...

@pytest.mark.spark
def test_with_spark(): ...
"""


@pytest.mark.parametrize("parallel", [(), pytest.param(("-n1",), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("chosen", "passed", "left"),
    [("not spark and not slow", 2, 6), ("not spark", 7, 0), ("", 8, 0)],
)
def test_what_quick_leaves_out_is_said(pytester, monkeypatch, parallel, chosen, passed, left):
    monkeypatch.setenv("TURN", "")
    pytester.makeini("[pytest]\nmarkers = [\n slow\n spark\n exhaustive\n nightly\n guarantee\n")
    pytester.makeconftest(
        "from tests.support.exhaustive import choose\n"
        "from tests.support.left_out import *\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    choose(config, items)\n"
        "    mark_slow(config, items)\n"
    )
    (pytester.path / "tests" / "unit").mkdir(parents=True)
    (pytester.path / "tests" / "unit" / "test_it.py").write_text(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-m", chosen, *parallel)
    assert result.parseoutcomes()["passed"] == passed
    said = [line for line in result.outlines if "left to `make test`" in line]
    assert said == [f"{left} tests are slow or use Spark: left to `make test`"] * bool(left)


def test_make_test_runs_all_that_quick_leaves_out():
    recipes = {
        target: re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
        for target in ("quick", "test")
    }
    of_test = re.search(r"^IN_ORDER := (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert "pytest $(IN_ORDER) " in recipes["test"]
    assert {*re.findall(r"tests/\w+", recipes["quick"])} <= {*of_test}
    assert not re.search(r" -[mk] |--deselect|--ignore", recipes["test"].replace("-m pytest", ""))
