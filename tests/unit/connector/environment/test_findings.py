"""What is found from facts: one thing is wrong at a time, and anything may be."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from arrow_format.report import printable
from connector.environment import findings as table_of_findings
from connector.environment import probe
from connector.environment.facts import (
    EnvironmentFacts,
    LookupFacts,
    PackageFacts,
    PathFacts,
    PlaceFacts,
    ProcessFacts,
    SessionFacts,
    _apart,
)
from connector.environment.findings import LOWEST, OUR_PACKAGES, findings
from connector.environment.report import EnvironmentReport
from connector.jvm_reader import JvmReader

ROOT = Path(__file__).resolve().parents[4]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MISSING = PackageFacts(None)
VERSIONS = {
    **dict.fromkeys(OUR_PACKAGES, "0.2.0"),
    "pyspark": "4.3.0",
    "pyarrow": "26.0.1",
    "pandas": "2.3.3",
    "numpy": "2.4.6",
    "msgspec": "0.20.0",
    "zstandard": "0.25.0",
    "obstore": "0.12.1",
}
PACKAGES = {name: PackageFacts(version) for name, version in VERSIONS.items()}
NOT_FOUND = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: arrow_shuffle."
SPARK_SAYS = "Job aborted: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.9 executor 1): "


def process(host="worker", executable="/env/bin/python", place=None, seconds_apart=0.0, **packages):
    """A Python process with all that is needed, and these packages instead."""
    changed = {n: PackageFacts(p) if isinstance(p, str) else p for n, p in packages.items()}
    return ProcessFacts(
        host, executable, "3.11.7", PACKAGES | changed, seconds_apart=seconds_apart, place=place
    )


DRIVER = process("driver")
LOOKUP = LookupFacts("python3", "PYSPARK_PYTHON", process=DRIVER)
SESSION = SessionFacts(is_connect=False, spark="4.3.0", compression="none", lookup=LOOKUP)
SOUND = EnvironmentFacts(
    DRIVER, jar="0.2.0+a", session=SESSION, executors=(process(), process("other"))
)
CONNECT = replace(SESSION, is_connect=True, lookup=None)


def with_session(**changes):
    return replace(SOUND, session=replace(SESSION, **changes))


def with_lookup(error=None, **packages):
    lookup = LookupFacts("python3", "PYSPARK_PYTHON", error=error)
    if error is None:
        lookup = replace(lookup, process=process(**packages))
    return with_session(lookup=lookup, format_error=NOT_FOUND)


def with_executor(**changes):
    return replace(SOUND, executors=(process(), process("bad", **changes)))


def at_path(*places, path="/data", **changes):
    executors = tuple(process(f"host-{i}", place=place) for i, place in enumerate(places))
    return replace(SOUND, path=PathFacts(path, **changes), executors=executors)


BROKEN = {
    "java": (
        replace(SOUND, java_error="Spark needs Java 17, but /x is Java 11: install one."),
        ["java"],
        ["driver", "Java 11", "Install one"],
    ),
    "the driver lacks a package": (
        replace(SOUND, driver=process("driver", zstandard=MISSING)),
        ["package-missing"],
        ["driver", "zstandard is missing", "pip install 'arrow-shuffle[spark]'"],
    ),
    "the driver has an old package": (
        replace(SOUND, driver=process("driver", pyarrow="24.0.0")),
        ["package-old", "package-version", "package-version"],
        ["pyarrow is 24.0.0, and 25 is the oldest", "pip install 'pyarrow>=25'"],
    ),
    "a package that does not import": (
        replace(
            SOUND, driver=process("driver", pandas=PackageFacts(None, "ValueError: numpy.dtype"))
        ),
        ["package-broken"],
        ["pandas cannot be imported: ValueError: numpy.dtype", "Install it again"],
    ),
    "pandas 3": (
        replace(SOUND, driver=process("driver", pandas="3.0.1"), executors=()),
        ["pandas-3", "package-version"],
        ["pandas 3.0.1", "Nothing here needs an older one"],
    ),
    "another Spark's home": (
        replace(SOUND, spark_home="/opt/spark", spark_home_version="4.1.4"),
        ["spark-home"],
        ["/opt/spark, which has Spark 4.1.4", "PySpark is 4.3.0", "Unset SPARK_HOME"],
    ),
    "a home without a Spark": (
        replace(SOUND, spark_home="/opt", spark_home_version=None),
        ["spark-home"],
        ["/opt, which has no Spark"],
    ),
    "another Spark": (
        with_session(spark="4.2.1"),
        ["spark-version"],
        ["PySpark is 4.3.0 and runs Spark 4.2.1", "Install pyspark==4.2.1"],
    ),
    "no session": (
        replace(SOUND, session=None, session_error="no session started: refused"),
        ["session"],
        ["refused"],
    ),
    "lz4": (with_session(compression="lz4"), ["lz4"], ["none or zstd"]),
    "format: no program": (
        with_lookup(error="there is no such program"),
        ["format-not-found"],
        ["python3 (PYSPARK_PYTHON), which did not answer", "set PYSPARK_PYTHON to a Python that"],
    ),
    "format: without the package": (
        with_lookup(**dict.fromkeys(OUR_PACKAGES, MISSING)),
        ["format-not-found"],
        [f"which lacks {', '.join(OUR_PACKAGES)}"],
    ),
    "format: a broken package": (
        with_lookup(pyarrow=PackageFacts(None, "ImportError: libarrow.so")),
        ["format-not-found"],
        ["where ImportError: libarrow.so"],
    ),
    "format: none of these": (
        with_session(format_error=NOT_FOUND),
        ["format-not-found"],
        ["all it needs now", "Start the session again"],
    ),
    "format: of a server": (
        replace(SOUND, session=replace(CONNECT, format_error=NOT_FOUND)),
        ["format-not-found"],
        ["Connect server", "PYSPARK_DRIVER_PYTHON of the server's environment"],
    ),
    "format: found, and fails": (
        with_session(format_error="py4j\nValueError: what\n at org.x"),
        ["format-fails"],
        ["was found and fails: ValueError: what"],
    ),
    "executors: another Python": (
        with_session(
            executor_python="python3",
            executors_error=SPARK_SAYS
            + "Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
        ),
        ["python-version"],
        ["executors on 10.0.0.9", "3.9 there and 3.11 on the driver (the driver asks for python3)"],
    ),
    "executors: no Python": (
        with_session(executors_error=SPARK_SAYS + 'Cannot run program "/no/python": error=2'),
        ["no-python"],
        ["/no/python cannot be run there", "a Python that every host has"],
    ),
    "executors: no pyspark": (
        with_session(executors_error=SPARK_SAYS + "No module named 'pyspark'"),
        ["package-missing"],
        ["Python lacks pyspark there", "spark.submit.pyFiles"],
    ),
    "executors: something else": (
        with_session(executors_error="x\nCaused by: java.io.IOException: disk\n"),
        ["executors"],
        ["java.io.IOException: disk"],
    ),
    "executors: without the package": (
        with_executor(**dict.fromkeys(OUR_PACKAGES, MISSING)),
        ["package-missing"],
        ["executors on bad", "arrow-shuffle is missing", "--archives", "spark.submit.pyFiles"],
    ),
    "executors: with part of it": (
        with_executor(connector=MISSING),
        ["package-missing"],
        ["(of arrow-shuffle: connector)"],
    ),
    "executors: of another version": (
        with_executor(**dict.fromkeys(OUR_PACKAGES, "0.1.0")),
        ["package-version"],
        ["executors on bad", "arrow-shuffle is 0.1.0 there and 0.2.0 on the driver"],
    ),
    "executors: a clock apart": (
        with_executor(seconds_apart=90.0),
        ["clock"],
        ["executors on bad: their clock is 90 s from the driver's", "NTP"],
    ),
    "the executors' Python: not here": (
        with_session(executor_python="./environment/bin/python", runs_here=False),
        ["python-apart"],
        ["driver", "./environment/bin/python, which is no program here", "make a link"],
    ),
    "the data source's Python: not there": (
        replace(SOUND, executors=(replace(process("bad"), has_lookup=False),)),
        ["python-apart"],
        ["executors on bad: python3 (PYSPARK_PYTHON) is no program there", "at the same path"],
    ),
    "a store's clock apart": (at_path(seconds_apart=90.0), ["clock"], ["the clock behind /data"]),
    "the path: another directory there": (
        at_path(PlaceFacts(True, True), PlaceFacts(False, False)),
        ["path-apart"],
        ["executors on host-1", "that the driver put into /data is not there", "every host"],
    ),
    "the path: not writable there": (
        at_path(PlaceFacts(True, False, "PermissionError: no")),
        ["path-apart"],
        ["nothing can be written into /data: PermissionError: no"],
    ),
    "the path: seen by one side": (
        at_path(PlaceFacts(True, False)),
        ["path-apart"],
        ["the driver does not see a file"],
    ),
    "the path: not writable": (
        at_path(error="/data: Permission denied"),
        ["path"],
        ["Permission denied", "who may write"],
    ),
    "a store without conditional puts": (
        at_path(path="s3://b", error="s3://b: the store ignores ...", is_refused=True),
        ["conditional-puts"],
        ["the store ignores", "No write is safe there", "Object stores"],
    ),
    "a store without leave to delete": (
        at_path(path="s3://b", deletion_error="s3://b/x: 403 Forbidden"),
        ["no-deletion"],
        ["nothing can be deleted at s3://b: s3://b/x: 403", "collections and releases need"],
    ),
    "a store that keeps versions": (
        at_path(path="s3://b", is_versioned=True),
        ["kept-versions"],
        ["the store of s3://b has versioning", "Let a lifecycle rule remove"],
    ),
    "the reader in the JVM: fails": (
        with_session(jvm=JvmReader(None, "Py4JJavaError: x\nCaused by: java.lang.Error: odd\n")),
        ["jvm-reader"],
        ["session", "was found and fails: Caused by: java.lang.Error: odd", "reads in Python"],
    ),
    "the reader in the JVM: of another package": (
        with_session(jvm=JvmReader("0.1.0+0123456789ab")),
        ["jvm-reader-version"],
        ["is 0.1.0+0123456789ab, and this package has 0.2.0+a", "spark_config() of this package"],
    ),
    "the reader in the JVM: without the file system of the path": (
        replace(
            at_path(PlaceFacts(True, True), path="s3://b"),
            session=replace(SESSION, jvm=JvmReader("0.2.0+a", 'No FileSystem for scheme "s3"')),
        ),
        ["jvm-reader-path"],
        ["cannot open a file in s3://b: No FileSystem", "Give Hadoop the file system"],
    ),
    "no session in this thread": (
        with_session(is_active=False),
        ["thread"],
        ["this thread: no session is active", "Use write_shuffle, which needs none"],
    ),
    "a store: no obstore here": (
        at_path(path="s3://b", error="needs obstore: pip install 'arrow-shuffle[object-stores]'"),
        ["object-stores"],
        ["Install it on the driver and on all executors"],
    ),
    "a store: no obstore there": (
        replace(
            at_path(path="s3://b"),
            executors=(process("bad", obstore=MISSING, place=PlaceFacts(False, False, "no")),),
        ),
        ["object-stores"],
        ["executors on bad", "obstore is missing, which s3://b needs"],
    ),
}


@pytest.mark.parametrize(("facts", "codes", "texts"), BROKEN.values(), ids=BROKEN)
def test_one_cause_is_named_and_what_to_do(facts, codes, texts):
    found = findings(facts)
    assert [finding.code for finding in found] == codes
    for text in texts:
        assert text in str(found[0])


def test_each_row_of_the_tables_is_found_somewhere():
    tables = [value for value in vars(table_of_findings).values() if isinstance(value, tuple)]
    rows = [row for table in tables for row in table if hasattr(row, "remedy")]
    found = {one.remedy for facts, _, _ in BROKEN.values() for one in findings(facts)}
    written = [re.escape(row.remedy).replace(r"\{", "{") for row in rows]
    patterns = [re.sub(r"\{[^}]*\}", ".*", text) for text in written]
    assert len(rows) > 20
    assert [p for p in patterns if not any(re.fullmatch(p, one) for one in found)] == []


def test_nothing_is_found_where_nothing_is_wrong():
    assert findings(SOUND) == []
    assert findings(at_path(PlaceFacts(True, True))) == []
    assert findings(replace(SOUND, session=CONNECT)) == []
    assert findings(with_session(jvm=JvmReader("0.2.0+a"))) == []
    assert findings(with_executor(obstore=MISSING)) == [], "only stores need it"


def test_all_that_is_probed_is_known():
    assert set(PACKAGES) == set(probe.PACKAGES) == set(LOWEST) | set(OUR_PACKAGES)
    built = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(OUR_PACKAGES) == sorted(built)


def test_lower_bounds_are_those_of_the_distribution():
    extras = PYPROJECT["project"]["optional-dependencies"]
    texts = [*PYPROJECT["project"]["dependencies"], *extras["spark"], *extras["pandas"]]
    requirements = map(Requirement, [*texts, *extras["object-stores"]])
    lowest = {
        one.name: spec.version
        for one in requirements
        for spec in one.specifier
        if spec.operator == ">="
    }
    assert {name: lowest[name] for name in LOWEST} == LOWEST
    assert set(lowest) - set(LOWEST) == {"rich", "sqlglot", "typer"}, "of filters and the command"


# Laws --------------------------------------------------------------------------------------------

versions = st.one_of(st.none(), st.sampled_from(["?", "0.1", "4.3.0", "26.0.1"]), st.text())
packages = st.builds(PackageFacts, versions, st.one_of(st.none(), st.text(min_size=1)))
errors = st.one_of(st.none(), st.text(min_size=1), st.just(NOT_FOUND), st.just(SPARK_SAYS))
places = st.builds(PlaceFacts, st.booleans(), st.booleans(), errors)
processes = st.builds(
    ProcessFacts,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["/x/python", "/y/python"]),
    st.just("3.11.7"),
    st.fixed_dictionaries(dict.fromkeys(PACKAGES, packages)),
    seconds_apart=st.sampled_from([0.0, 60.0]),
    place=st.one_of(st.none(), places),
    has_lookup=st.booleans(),
)
lookups = st.builds(LookupFacts, st.text(), st.text(), st.one_of(st.none(), processes), errors)
sessions = st.builds(
    SessionFacts,
    is_connect=st.booleans(),
    spark=st.sampled_from(["4.3.0", "4.2.1", ""]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    runs_here=st.booleans(),
    lookup=st.one_of(st.none(), lookups),
    format_error=errors,
    executors_error=errors,
)
paths = st.builds(PathFacts, st.sampled_from(["/d", "s3://b"]), errors, st.sampled_from([0.0, 9.0]))
environments = st.builds(
    EnvironmentFacts,
    processes,
    java_error=st.sampled_from([None, "Spark needs Java 17, but there is none: install one."]),
    spark_home=errors,
    spark_home_version=errors,
    path=st.one_of(st.none(), paths),
    session_error=errors,
    session=st.one_of(st.none(), sessions),
    executors=st.lists(processes, max_size=3).map(tuple),
)


@given(environments)
def test_any_facts_make_a_report(facts):
    found = findings(facts)
    assert all(one.what and one.where and one.remedy for one in found)
    report = EnvironmentReport(tuple(found), facts)
    assert report.ok == all(one.severity == "note" for one in found)
    text = str(report)
    assert all(printable(one.what) in text and printable(one.remedy) in text for one in found)
    assert json.loads(json.dumps(report.as_json()))["ok"] == report.ok


@given(environments)
def test_tasks_of_one_process_add_nothing(facts):
    twice = replace(facts, executors=facts.executors * 2)
    assert findings(twice) == findings(facts)


@given(st.floats(0, 1e9), st.floats(0, 1e3), st.floats(0, 1), st.floats(-1e6, 1e6, allow_nan=False))
def test_a_clock_is_never_more_apart_than_it_is_said_to_be(began, took, part, shift):
    """Asked somewhen between two times, a clock that is off says at least what is certain."""
    said = _apart(began + took * part + shift, began, began + took)
    assert max(0.0, abs(shift) - took) - 1e-3 <= said <= abs(shift) + 1e-3
