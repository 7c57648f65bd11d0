"""What is wrong with an environment, decided from facts alone: tables of kinds of findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby, islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from arrow_format.storage.protocol import SHARED_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from connector.environment.facts import EnvironmentFacts, LookupFacts, ProcessFacts

LOWEST = {
    "msgspec": "0.20",
    "numpy": "2.0",
    "obstore": "0.12",
    "pandas": "2.2.2",
    "pyarrow": "25",
    "pyspark": "4.0",
    "zstandard": "0.25",
}
"""Lower bounds of the packages; a test compares them with ``pyproject.toml``."""

OUR_PACKAGES = ("arrow_format", "arrow_shuffle", "connector", "pyspark_arrow_shuffle")
OPTIONAL = ("obstore",)

MAX_SECONDS_APART = 5.0
"""Clocks decide when something expires, after an hour or more: seconds do no harm."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that hinders, or that one should know.

    Attributes
    ----------
    code
        Name of the kind of finding, which stays the same from version to version.
    what
        What was found.
    where
        The driver, or which executors.
    remedy
        What to do.
    severity
        ``problem``, or ``note`` where nothing has to be done.
    """

    code: str
    what: str
    where: str
    remedy: str
    severity: Literal["problem", "note"] = "problem"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.remedy}"


def findings(facts: EnvironmentFacts) -> list[Finding]:
    """Return what is wrong, causes before what follows from them."""
    session = facts.session
    found = [*_of_packages(facts.driver, "driver", facts), *_found(_DRIVER, facts)]
    if facts.path is not None:
        found += islice(_found(_UNUSABLE_PATH, facts), 1)
        found += _found(_PATH, facts)
    found += _found(_NO_SESSION, facts)
    if session is not None:
        found += _found(_SESSION, facts)
        found += islice(_found(_NO_FORMAT, facts), 1)
        if session.format_error is None and session.lookup and session.lookup.process:
            found += _of_packages(session.lookup.process, session.data_source, facts)
        found += _found(_JVM, facts)
        found += _found(_DRIVER_AT_WORK, facts)
        found += islice(_found(_EXECUTORS_FAILED, facts), 1)
    for where, process in _alike(facts.executors):
        found += _of_packages(process, where, facts, needs_obstore=facts.is_store)
    for host, processes in groupby(sorted(facts.executors, key=_host), key=_host):
        seen = _seen_on(host, [*processes], facts)
        found += [*_found(_HOST, seen), *islice(_found(_PLACE, seen), 1)]
    return found


class _Row(NamedTuple):
    """A kind of finding: ``when`` returns what makes it one, or nothing of a sound subject.

    The texts name in braces the subject ``s``, and what was returned, ``m``.
    """

    code: str
    where: str
    when: Callable[[Any], object]
    what: str
    remedy: str
    severity: Literal["problem", "note"] = "problem"


def _found(table: Iterable[_Row], *subjects: object) -> Iterator[Finding]:
    for row in table:
        for s in subjects:
            if m := row.when(s):
                what, where, remedy = (
                    text.format(s=s, m=m) for text in (row.what, row.where, row.remedy)
                )
                yield Finding(row.code, what, where, remedy, row.severity)


# Packages of a process: s has one of them, and the version that the driver has --------------------

GET_PACKAGE = (
    "bring it there: in the image, as --archives of a packed environment, or as a zip of it in "
    "spark.submit.pyFiles or spark.addArtifacts (docs: Deployment)"
)

_PACKAGES = (
    _Row("object-stores", "{s.where}",
         lambda s: s.name in OPTIONAL and s.lacks_it_alone and s.path,
         "{s.name} is missing, which {m} needs",
         "Install arrow-shuffle[object-stores] there too"),
    _Row("package-broken", "{s.where}", lambda s: s.has_all and s.error,
         "{s.name} cannot be imported: {s.error}",
         "Install it again there"),
    _Row("package-old", "{s.where}", lambda s: _newer_than(s.version, LOWEST.get(s.name)),
         "{s.name} is {s.version}, and {m} is the oldest that works",
         "pip install '{s.name}>={m}'"),
    _Row("package-version", "{s.where}", lambda s: s.name == "arrow_format" and s.differs,
         "arrow-shuffle is {s.version} there and {s.drivers} on the driver",
         f"Use one version: {GET_PACKAGE}"),
    _Row("package-version", "{s.where}",
         # PySpark of executors is that of their Spark.
         lambda s: s.name not in (*OUR_PACKAGES, "pyspark") and s.differs,
         "{s.name} is {s.version} there and {s.drivers} on the driver",
         "It may work; use one version to be sure", "note"),
)  # fmt: skip


def _of_packages(
    process: ProcessFacts, where: str, facts: EnvironmentFacts, *, needs_obstore: bool = False
) -> Iterator[Finding]:
    missing = [name for name in process.missing if name not in OPTIONAL]
    if missing:
        what, remedy = _what_is_missing(missing, process, facts.driver)
        yield Finding("package-missing", what, where, remedy)
    seen = []
    for name, package in process.packages.items():
        drivers = facts.driver.version(name)
        differs = None not in (package.version, drivers) and package.version != drivers
        seen.append(
            SimpleNamespace(
                name=name, where=where, version=package.version, error=package.error,
                drivers=drivers, differs=differs, has_all=not missing,
                lacks_it_alone=name in process.missing and not _lacks_ours(process),
                path=facts.path.path if needs_obstore and facts.path else None,
            )
        )  # fmt: skip
    yield from _found(_PACKAGES, *seen)


def _lacks_ours(process: ProcessFacts) -> bool:
    return not {*OUR_PACKAGES}.isdisjoint(process.missing)


def _what_is_missing(
    missing: list[str], process: ProcessFacts, driver: ProcessFacts
) -> tuple[str, str]:
    """Return what a process lacks, and the remedy."""
    ours = [name for name in missing if name in OUR_PACKAGES]
    named = [*(["arrow-shuffle"] if ours else []), *(one for one in missing if one not in ours)]
    what = f"{', '.join(named)} {'is' if len(named) == 1 else 'are'} missing"
    if ours and len(ours) < len(OUR_PACKAGES):
        what += f" (of arrow-shuffle: {', '.join(ours)})"
    if process is driver:
        return what, "pip install 'arrow-shuffle[spark]'"
    if process.host == driver.host and process.executable != driver.executable:
        return what, (
            f"Set PYSPARK_PYTHON={driver.executable}, the program's own Python, where Spark is "
            f"started, before it is; or {GET_PACKAGE}"
        )
    return what, _sentence(GET_PACKAGE)


# The driver: s are all facts ----------------------------------------------------------------------

_DRIVER = (
    _Row("java", "driver", lambda s: s.java_error and _java(s.java_error), "{m[0]}", "{m[1]}"),
    _Row("spark-home", "driver", lambda s: _other_spark_at_home(s),
         "SPARK_HOME is {s.spark_home}, which has {m}, and the installed PySpark is {s.pyspark}",
         "Unset SPARK_HOME, or install the PySpark of that version"),
    _Row("pandas-3", "driver",
         lambda s: _numbers(s.pandas) >= (3,) and _numbers(s.pyspark) >= (4, 2),
         "PySpark {s.pyspark} warns of every pandas from 3 on, and this is pandas {s.pandas}",
         "Nothing here needs an older one; pip install 'pandas<3' to be rid of the warning",
         "note"),
)  # fmt: skip
_NO_SESSION = (
    _Row("session", "driver", lambda s: s.session_error is not None, "{s.session_error}",
         "Mend what is found above it first, or read Spark's log"),
)  # fmt: skip


def _java(error: str) -> tuple[str, str]:
    what, _, remedy = error.partition(": ")
    return what, _sentence(remedy).rstrip(".")


def _other_spark_at_home(facts: EnvironmentFacts) -> str | None:
    """Return what is in SPARK_HOME, where it is not the Spark of the installed PySpark."""
    of_home = facts.spark_home_version
    if facts.spark_home is None or facts.pyspark is None:
        return None
    if of_home is None:
        return "no Spark"
    return None if _minor(of_home) == _minor(facts.pyspark) else f"Spark {of_home}"


# The path: s are all facts ------------------------------------------------------------------------

KEEP_CLOCKS = "Keep clocks right (NTP): they decide when versions and jobs expire"

_UNUSABLE_PATH = (
    _Row("object-stores", "driver",
         lambda s: "arrow-shuffle[object-stores]" in (s.path.error or ""), "{s.path.error}",
         "Install it on the driver and on all executors"),
    _Row("conditional-puts", "driver", lambda s: s.path.error is not None and s.path.is_refused,
         "{s.path.error}",
         "No write is safe there, and all are refused. The guide, Object stores, has what a store "
         "must do"),
    _Row("path", "driver", lambda s: s.path.error is not None, "{s.path.error}",
         "Check the path and who may write there"),
)  # fmt: skip
_PATH = (
    _Row("no-deletion", "driver", lambda s: s.path.deletion_error is not None,
         "nothing can be deleted at {s.path.path}: {s.path.deletion_error}",
         "Writes, deletions of rows, merges and tags work so; collections and releases need "
         "credentials that may delete objects", "note"),
    _Row("kept-versions", "driver", lambda s: s.path.is_versioned,
         "the store of {s.path.path} has versioning, and keeps the bytes of objects that are "
         "deleted",
         "Let a lifecycle rule remove noncurrent versions: collections free no space before, and "
         "deleted rows are not gone. The guide, Deletion by key, has how to see them", "note"),
    _Row("clock", "store", lambda s: s.path.seconds_apart > MAX_SECONDS_APART,
         "the clock behind {s.path.path} is {s.path.seconds_apart:.0f} s from the driver's at "
         "least", KEEP_CLOCKS),
)  # fmt: skip


# The session: s are all facts ---------------------------------------------------------------------

_LOOKED = (
    "Spark does not find the format 'arrow_shuffle': it looks with {s.session.lookup.executable} "
    "({s.session.lookup.said_by})"
)
_SAME_PYTHON = (
    "Set PYSPARK_PYTHON, in the driver's environment before the session begins, to a Python that "
    "every host has"
)

_SESSION = (
    _Row("spark-version", "driver",
         lambda s: s.pyspark is not None and _minor(s.pyspark) != _minor(s.session.spark),
         "PySpark is {s.pyspark} and runs Spark {s.session.spark}",
         "Install pyspark=={s.session.spark}, and check SPARK_HOME"),
    _Row("lz4", "session", lambda s: s.session.compression == "lz4",
         "spark.sql.execution.arrow.compression.codec is lz4, with which Spark hands over batches "
         "a hundred times slower (measured with 4.3)",
         "Set it to none or zstd"),
)  # fmt: skip
_NO_FORMAT = (
    _Row("format-fails", "{s.session.data_source}",
         lambda s: _fails(s.session.format_error),
         "format('arrow_shuffle') was found and fails: {m}",
         "Mend what is found of its packages"),
    _Row("format-not-found", "Connect server",
         lambda s: s.session.format_error is not None and s.session.lookup is None,
         "the server does not find the format 'arrow_shuffle'",
         "Its Python, PYSPARK_DRIVER_PYTHON of the server's environment, else PYSPARK_PYTHON, else "
         "python3, must have arrow-shuffle; or bring a zip of it with spark.addArtifacts(zip, "
         "pyfile=True) and call spark.dataSource.register(arrow_shuffle.ArrowShuffleDataSource)"),
    _Row("format-not-found", "driver",
         lambda s: s.session.format_error is not None and _cannot_have_it(s.session.lookup),
         f"{_LOOKED}, {{m}}",
         "Before the session begins, set PYSPARK_PYTHON to a Python that has arrow-shuffle and set "
         "PYSPARK_DRIVER_PYTHON to the same or unset it; or call spark.dataSource.register("
         "arrow_shuffle.ArrowShuffleDataSource), which then runs with PYSPARK_PYTHON"),
    _Row("format-not-found", "driver", lambda s: s.session.format_error is not None,
         f"{_LOOKED}, which has all it needs now",
         "Start the session again, since Spark looks once; and look for another module pyspark_* "
         "that fails to import there, which disables all data sources in Python"),
)  # fmt: skip
_JVM = (
    _Row("jvm-reader", "session",
         lambda s: s.session.jvm.version is None and _last_line_of(s.session.jvm.error),
         "the reader in Spark's JVM was found and fails: {m}",
         "Begin the session with arrow_shuffle.spark_config() of this package; to_spark() reads in "
         "Python until then"),
    _Row("jvm-reader-version", "session",
         lambda s: s.session.jvm.version is not None and s.session.jvm.version != s.jar,
         "the reader in Spark's JVM is {s.session.jvm.version}, and this package has {s.jar}",
         "Begin the session with arrow_shuffle.spark_config() of this package, and without another "
         "arrow_shuffle.jar in spark.jars or on the class path"),
    _Row("jvm-reader-path", "driver",
         lambda s: s.session.jvm.version is not None and _last_line_of(s.session.jvm.error),
         "Spark's JVM cannot open a file in {s.path.path}: {m}",
         "Give Hadoop the file system and its credentials (docs: SQL), or read in Python: "
         "to_spark() does where the JVM cannot", "note"),
)  # fmt: skip
_DRIVER_AT_WORK = (
    _Row("thread", "this thread", lambda s: not s.session.is_active,
         "no session is active in this thread, so df.write.format('arrow_shuffle') and "
         "writeStream.start() say DATA_SOURCE_NOT_FOUND in it",
         "Use write_shuffle, which needs none, or call there spark._jvm.org.apache.spark.sql."
         "SparkSession.setActiveSession(spark._jsparkSession)", "note"),
    _Row("python-apart", "driver", lambda s: not s.session.runs_here,
         "PYSPARK_PYTHON is {s.session.executor_python}, which is no program here; Spark plans "
         "reads of to_spark() with it, on the driver",
         "Have one at the same path here. Of a packed environment: unpack it here too, or make a "
         "link, such as ln -s /path/of/this/environment environment"),
)  # fmt: skip
_EXECUTORS_FAILED = (
    _Row("python-version", "{s.session.failed_on}",
         lambda s: s.session.failed(r"different version: (\S+) than that in driver: (\d+\.\d+)"),
         "Python is {m[1]} there and {m[2]} on the driver{s.session.asked}",
         f"{_SAME_PYTHON}, of the driver's minor version"),
    _Row("no-python", "{s.session.failed_on}",
         lambda s: s.session.failed(r'Cannot run program "([^"]+)"'),
         "{m[1]} cannot be run there", _SAME_PYTHON),
    _Row("package-missing", "{s.session.failed_on}",
         lambda s: s.session.failed(r"No module named '([^']+)'"),
         "Python lacks {m[1]} there{s.session.asked}", f"Then {GET_PACKAGE}"),
    _Row("executors", "{s.session.failed_on}",
         lambda s: s.session.executors_error is not None and _last_line(s.session.executors_error),
         "a job of a few functions failed there: {m}", "Read the logs of the executors"),
)  # fmt: skip


def _fails(error: str | None) -> str | None:
    """Return what a format that was found says, where it fails."""
    is_missing = error is None or "DATA_SOURCE_NOT_FOUND" in error
    return None if is_missing else _last_line(error or "")


def _cannot_have_it(lookup: LookupFacts) -> str | None:
    """Return why the Python in which Spark looks has no such format."""
    if lookup.process is None:
        return f"which did not answer: {lookup.error}"
    lacks = [name for name in lookup.process.missing if name not in OPTIONAL]
    if lacks:
        return f"which lacks {', '.join(lacks)}"
    broken = (package.error for package in lookup.process.packages.values() if package.error)
    return next((f"where {error}" for error in broken), None)


def _last_line_of(error: str | None) -> str | None:
    return None if error is None else _last_line(error)


def _last_line(text: str) -> str:
    """Return the line that says most of a Java or Python stack trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return next(iter([*reversed(causes), *reversed(errors), *lines[:1]]), "it gave no reason")


# Executors: s are those of a host -----------------------------------------------------------------

_HOST = (
    _Row("python-apart", "{s.where}", lambda s: not s.has_lookup and s.lookup,
         "{m.executable} ({m.said_by}) is no program there, and format('arrow_shuffle') runs with "
         "it",
         "Before the session begins, unset PYSPARK_DRIVER_PYTHON and set PYSPARK_PYTHON to one "
         "that is at the same path on driver and executors"),
    _Row("clock", "{s.where}", lambda s: s.seconds_apart > MAX_SECONDS_APART,
         "their clock is {s.seconds_apart:.0f} s from the driver's at least", KEEP_CLOCKS),
)  # fmt: skip
_PLACE = (
    _Row("path-apart", "{s.where}", lambda s: any(not place.sees for place in s.places),
         "a file that the driver put into {s.path} is not there{s.said}", SHARED_PATH),
    _Row("path-apart", "{s.where}", lambda s: s.errors,
         "nothing can be written into {s.path}: {m[0]}",
         "Let the user of the executors write there"),
    _Row("path-apart", "{s.where}", lambda s: any(not place.is_seen for place in s.places),
         "the driver does not see a file that was put into {s.path} there", SHARED_PATH),
)  # fmt: skip


def _host(process: ProcessFacts) -> str:
    return process.host


def _seen_on(host: str, processes: list[ProcessFacts], facts: EnvironmentFacts) -> SimpleNamespace:
    able = (
        one
        for one in processes
        if not (facts.is_store and ("obstore" in one.missing or _lacks_ours(one)))
    )
    places = [] if facts.path is None else [one.place for one in able if one.place is not None]
    errors = sorted({place.error for place in places if place.error is not None})
    return SimpleNamespace(
        where=f"executors on {host}",
        has_lookup=all(one.has_lookup for one in processes),
        lookup=facts.session and facts.session.lookup,
        seconds_apart=max(one.seconds_apart for one in processes),
        path=facts.path and facts.path.path,
        places=places,
        errors=errors,
        said=f" ({errors[0]})" if errors else "",
    )


def _alike(executors: Iterable[ProcessFacts]) -> Iterator[tuple[str, ProcessFacts]]:
    """Yield where the executors are that have the same, and one of them."""

    def what(process: ProcessFacts) -> str:
        return repr((process.executable, process.python, sorted(process.packages.items(), key=str)))

    for _, same in groupby(sorted(executors, key=what), key=what):
        processes = list(same)
        hosts = sorted({process.host for process in processes})
        yield f"executors on {', '.join(hosts)} ({processes[0].executable})", processes[0]


def _newer_than(version: str | None, lowest: str | None) -> str | None:
    """Return the lowest version, if that is newer than the one there."""
    return lowest if version is not None and _numbers(version) < _numbers(lowest) else None


def _numbers(version: str | None) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def _minor(version: str) -> tuple[int, ...]:
    return _numbers(version)[:2]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
