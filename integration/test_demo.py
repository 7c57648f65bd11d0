"""The demo as ``make demo`` runs it: it must end well, and what it says must be so."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from arrow_format import open_shuffle
from integration.programs.datasets import NUM_FLIGHTS
from tests.support.spark_session import QUICK_START

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.spark, pytest.mark.together]


def run_demo(*arguments, **environment):
    """Run the demo with the environment that the Makefile sets."""
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    python["SPARK_SUBMIT_OPTS"] = QUICK_START
    return subprocess.run(
        [sys.executable, "-m", "integration.programs.demo", *map(str, arguments)],
        cwd=ROOT,
        env={**inherited, **python, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kept")
    return run_demo("--keep", directory), directory


def test_it_ends_well_and_quietly(demo):
    completed, _ = demo
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    assert "Everything agrees with Spark." in completed.stdout
    assert "\x1b" not in completed.stdout


def test_it_tells_what_it_did(demo):
    said = " ".join(demo[0].stdout.split())
    for fact in (
        "336,776 flights",
        "in 12 tasks",
        "12 map outputs of 12 regions",
        "Largest is subpartition 5: ",
        "4 of 16 are empty.",
        "Largest is subpartition 42: ",
        "All 16 rows equal Spark's own answer",
        "All 4,044 rows equal Spark's own answer",
        'each in the subpartition that repartition(16, "carrier") puts it in',
        'each in the subpartition that repartition(200, "tailnum") puts it in',
        "The largest subpartition, 5, opened and queried in",
    ):
        assert fact in said, fact


@pytest.mark.parametrize(
    ("name", "num_subpartitions"), [("flights-by-carrier", 16), ("flights-by-tailnum", 200)]
)
def test_it_leaves_whole_shuffles(demo, name, num_subpartitions):
    shuffle = open_shuffle(demo[1] / name)
    assert shuffle.num_subpartitions == num_subpartitions
    assert shuffle.num_rows == NUM_FLIGHTS
    assert len(shuffle.map_outputs) == 12
    assert shuffle.verify().ok


def test_the_small_sort_buffer_made_several_regions(demo):
    files = [f for o in open_shuffle(demo[1] / "flights-by-tailnum").map_outputs for f in o.files]
    assert all(file.num_regions > 1 for file in files)


def test_flights_without_tailnum_stand_in_subpartition_42(demo):
    rows = open_shuffle(demo[1] / "flights-by-tailnum").subpartition(42, ["tailnum"]).read_all()
    assert rows["tailnum"].null_count == 2_512
    assert pc.count_distinct(rows["tailnum"]).as_py() > 1


def test_without_java_it_says_so_in_one_line(tmp_path):
    completed = run_demo(JAVA_HOME=str(tmp_path))
    assert completed.returncode == 1
    assert len(completed.stderr.splitlines()) == 1
    assert "Java 17 or newer" in completed.stderr
    assert completed.stdout == ""


def test_a_scale_that_makes_no_sense_is_refused():
    completed = run_demo("--scale", "-1")
    assert completed.returncode == 2
    assert "more than 0" in completed.stderr
