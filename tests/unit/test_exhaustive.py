"""What a change tries of a matrix: few cases, in which each value occurs."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import exhaustive
from tests.support.exhaustive import covering, examples, part, times

pytest_plugins = ["pytester"]

CASES = st.lists(st.fixed_dictionaries({name: st.sampled_from("abc") for name in "pqr"}))


@pytest.fixture
def by_day(monkeypatch):
    monkeypatch.setattr(exhaustive, "IS_NIGHT", False)


@given(CASES, st.lists(st.sampled_from("pqr"), unique=True), st.integers(0, 9))
def test_each_value_occurs_and_few_cases_do(cases, parameters, least):
    chosen = covering(cases, parameters, least=least)
    assert chosen == sorted(set(chosen))
    assert len(chosen) >= min(least, len(cases))
    values = [{(name, case[name]) for name in parameters or "pqr"} for case in cases]
    assert set().union(*(values[one] for one in chosen)) == set().union(*values)
    assert len(chosen) <= max(least, len(set().union(*values)))


def test_other_parameters_vary_with_those_that_matter():
    matrix = [{"codec": codec, "n": str(n)} for codec, n in product(["zstd", "none"], range(8))]
    one, other = (matrix[number] for number in covering(matrix, ["codec"]))
    assert one["codec"] != other["codec"]
    assert one["n"] != other["n"]
    assert {matrix[number]["n"] for number in covering(matrix)} == {*map(str, range(8))}


def test_tests_differ_in_the_value_of_what_need_not_occur_whole():
    matrix = [{"store": s, "fault": f} for s, f in product(["s3", "az", "gs"], ["cut", "gone"])]
    chosen = [covering(matrix, but="store", start=start) for start in range(6)]
    assert all({matrix[n]["fault"] for n in each} == {"cut", "gone"} for each in chosen)
    assert {len(each) for each in chosen} == {2}
    assert {matrix[n]["store"] for each in chosen for n in each} == {"s3", "az", "gs"}
    assert len(covering(matrix, but="store, fault")) == 1
    stores = [{"store": s} for s in ["s3", "az", "gs"]]
    assert {*(covering(stores, but="store", start=start)[0] for start in range(3))} == {0, 1, 2}


@pytest.mark.parametrize(
    ("most", "chosen"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, [*range(10)])]
)
def test_a_part_is_spread_from_the_first_to_the_last(by_day, most, chosen):
    assert [*part(range(10), most)] == chosen
    assert times(most, 99) == most


def test_a_night_leaves_nothing_out(monkeypatch):
    monkeypatch.setattr(exhaustive, "IS_NIGHT", True)
    assert [*part(range(10), 2)] == [*range(10)]
    assert times(1, 99) == examples(1, 99) == 99


def test_a_turn_has_fewer_examples(by_day, monkeypatch):
    for is_turn, most in ((False, 6), (True, 4)):
        monkeypatch.setattr(exhaustive, "IS_TURN", is_turn)
        assert examples(6, 99) == most


TESTS = """
import pytest
from tests.support.exhaustive import exhaustive, nightly

@exhaustive("codec")
@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_some(codec, n): ...

@nightly
def test_whole(): ...

class TestGroup:
    @exhaustive()
    def test_alone(self): ...
"""


@pytest.mark.parametrize(("is_night", "passed", "left_out"), [(False, 3, 7), (True, 10, 0)])
def test_the_rest_is_deselected_once(pytester, monkeypatch, is_night, passed, left_out):
    monkeypatch.setattr(exhaustive, "IS_NIGHT", is_night)
    prepare(pytester)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:randomly")
    result.assert_outcomes(passed=passed, deselected=left_out)


def prepare(pytester):
    pytester.makeini("[pytest]\nmarkers = [\n exhaustive\n nightly\n guarantee\n together\n")
    pytester.makeconftest(
        "from tests.support.exhaustive import choose\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    choose(config, items)\n"
        "    choose(config, items)\n"
    )


DEAR = """
import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.support.guarantees import guarantee

@pytest.mark.parametrize("n", range(6))
def test_some(n): ...

def test_alone(): ...

@guarantee("late files")
def test_kept(): ...

@guarantee("late files")
@pytest.mark.parametrize("n", range(8))
def test_several(n): ...

@guarantee("late files")
class Machine(RuleBasedStateMachine):
    @rule()
    def act(self): ...

TestMachine = Machine.TestCase
"""


@pytest.mark.slow
def test_a_module_that_is_together_has_one_turn(pytester, monkeypatch):
    monkeypatch.setattr(exhaustive, "IS_NIGHT", False)
    prepare(pytester)
    (pytester.path / "integration").mkdir()
    text = (
        "import pytest\npytestmark = pytest.mark.together\ndef test_one(): ...\ndef test_two(): ..."
    )
    (pytester.path / "integration" / "test_it.py").write_text(text)
    passed = []
    for turn in range(8):
        monkeypatch.setenv("TURN", f"{turn:x}")
        outcomes = pytester.runpytest_inprocess("-p", "no:cacheprovider").parseoutcomes()
        passed.append(outcomes.get("passed", 0))
    assert sorted(passed) == [0] * 7 + [2]


@pytest.mark.slow
def test_cases_take_turns_and_of_a_guarantee_each_test_keeps_one(pytester, monkeypatch):
    monkeypatch.setattr(exhaustive, "IS_NIGHT", False)
    prepare(pytester)
    directories = ("tests/compat", "tests/unit", "tests/property", "integration")
    for directory in directories:
        (pytester.path / directory).mkdir(parents=True)
        name = f"test_of_{directory.replace('/', '_')}.py"
        (pytester.path / directory / name).write_text(DEAR)

    def run(turn):
        monkeypatch.setenv("TURN", turn)
        arguments = ("--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
        names = pytester.runpytest_inprocess(*arguments).outlines
        return [
            {name.partition("::")[2] for name in names if name.startswith(directory)}
            for directory in directories
        ]

    everything = run("")[0]
    assert len(everything) == 17
    assert run("") == [everything] * 4
    turns = [run(f"c0ffee{turn}") for turn in range(8)]
    for golden, unit, dear, spark in turns:
        assert golden == everything
        assert {"test_alone", "test_kept", "TestMachine::runTest"} <= unit
        assert {"test_kept", "TestMachine::runTest"} <= dear
        for chosen in (unit, dear):
            assert len([name for name in chosen if name.startswith("test_several")]) == 2
        assert len(spark) in {2, 3}
    assert sum("test_alone" in dear for _, _, dear, _ in turns) == 2
    for number in (1, 2):
        assert set().union(*(each[number] for each in turns[2:6])) == everything
    assert set().union(*(each[3] for each in turns)) == everything
    assert run("0") == turns[0]
