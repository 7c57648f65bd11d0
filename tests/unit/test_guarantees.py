"""Guarantees: marks are read from the source of tests, and pages are made of them."""

import pytest

from tests.support.guarantees import GUARANTEES, guarantee, marked_tests
from tests.support.reference_pages import errors_page, guarantees_page, problems

SOURCE = """
@pytest.mark.parametrize("n", [1])
@guarantee("row order", "snapshots")
def test_rows(n): ...

class TestGroup:
    @guarantee("snapshots")
    def test_more(self): ...

@guarantee("faults")
class Machine: ...

TestMachine = Machine.TestCase

@nightly
@guarantee("counts")
def test_at_night(): ...
"""


def test_marks_are_read_from_functions_classes_and_machines(tmp_path):
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_some.py").write_text(SOURCE)
    file = "tests/unit/test_some.py"
    assert marked_tests(tmp_path) == {
        "row order": [f"{file}::test_rows"],
        "snapshots": [f"{file}::test_rows", f"{file}::TestGroup::test_more"],
        "faults": [f"{file}::TestMachine"],
    }


def test_a_file_that_only_a_night_tries_keeps_no_guarantee(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(f"pytestmark = nightly\n{SOURCE}")
    assert marked_tests(tmp_path) == {}


def test_an_unknown_guarantee_is_refused():
    with pytest.raises(ValueError, match="no such guarantee: \\['speed'\\]"):
        guarantee("speed")


@pytest.mark.slow
def test_every_guarantee_has_a_test_and_every_mark_a_guarantee():
    assert not [problem for problem in problems() if "not current" not in problem]


def test_pages_hold_every_guarantee_and_every_error():
    page = guarantees_page()
    assert all(text in page for section in GUARANTEES.values() for text in section.values())
    assert "| `ClosedError` | `ShuffleError` |" in errors_page()
