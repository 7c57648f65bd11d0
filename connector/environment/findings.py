"""What is wrong with an environment, decided from facts alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from arrow_format.storage.protocol import SHARED_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connector.environment.facts import (
        EnvironmentFacts,
        LookupFacts,
        PackageFacts,
        PathFacts,
        ProcessFacts,
        SessionFacts,
    )

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
STORE_SCHEMES = ("s3://", "gs://", "az://")

MAX_SECONDS_APART = 5.0
"""Clocks decide when something expires, after an hour or more: seconds do no harm."""

GET_PACKAGE = (
    "bring it there: in the image, as --archives of a packed environment, or as a zip of it in "
    "spark.submit.pyFiles or spark.addArtifacts (docs: Deployment)"
)


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
    found = [*_before_session(facts)]
    if facts.path is not None:
        found += _of_path(facts, facts.path)
    if facts.session_error is not None:
        remedy = "Mend what is found above it first, or read Spark's log"
        found.append(Finding("session", facts.session_error, "driver", remedy))
    if facts.session is not None:
        found += _of_session(facts, facts.session)
    found += _of_executors(facts)
    return found


# The driver ---------------------------------------------------------------------------------------


def _before_session(facts: EnvironmentFacts) -> Iterator[Finding]:
    driver = facts.driver
    yield from _of_packages(driver, "driver", driver)
    if facts.java_error is not None:
        what, _, remedy = facts.java_error.partition(": ")
        yield Finding("java", what, "driver", f"{remedy[:1].upper()}{remedy[1:]}".rstrip("."))
    pyspark = driver.packages["pyspark"].version
    if facts.spark_home is not None and pyspark is not None:
        of_home = facts.spark_home_version
        if of_home is None or _minor(of_home) != _minor(pyspark):
            has = "no Spark" if of_home is None else f"Spark {of_home}"
            yield Finding(
                "spark-home",
                f"SPARK_HOME is {facts.spark_home}, which has {has}, and the installed PySpark is "
                f"{pyspark}",
                "driver",
                "Unset SPARK_HOME, or install the PySpark of that version",
            )
    yield from _of_pandas(driver)


def _of_pandas(driver: ProcessFacts) -> Iterator[Finding]:
    pandas, pyspark = (driver.packages[name].version for name in ("pandas", "pyspark"))
    if pandas and pyspark and _numbers(pandas) >= (3,) and _numbers(pyspark) >= (4, 2):
        yield Finding(
            "pandas-3",
            f"PySpark {pyspark} warns of every pandas from 3 on, and this is pandas {pandas}",
            "driver",
            "Nothing here needs an older one; pip install 'pandas<3' to be rid of the warning",
            "note",
        )


def _of_path(facts: EnvironmentFacts, path: PathFacts) -> Iterator[Finding]:
    if path.error is not None:
        code = "conditional-puts" if path.is_refused else "path"
        code = "object-stores" if "arrow-shuffle[object-stores]" in path.error else code
        remedy = {
            "conditional-puts": "No write is safe there, and all are refused. The guide, Object "
            "stores, has what a store must do",
            "object-stores": "Install it on the driver and on all executors",
        }.get(code, "Check the path and who may write there")
        yield Finding(code, path.error, "driver", remedy)
    if path.deletion_error is not None:
        yield Finding(
            "no-deletion",
            f"nothing can be deleted at {path.path}: {path.deletion_error}",
            "driver",
            "Writes, deletions of rows, merges and tags work so; collections and releases need "
            "credentials that may delete objects",
            "note",
        )
    if path.is_versioned:
        yield Finding(
            "kept-versions",
            f"the store of {path.path} has versioning, and keeps the bytes of objects that are "
            "deleted",
            "driver",
            "Let a lifecycle rule remove noncurrent versions: collections free no space before, "
            "and deleted rows are not gone. The guide, Deletion by key, has how to see them",
            "note",
        )
    if path.seconds_apart > MAX_SECONDS_APART:
        yield _clock("store", f"the clock behind {path.path}", path.seconds_apart)
    if path.path.startswith(STORE_SCHEMES):
        for where, executors in _by_what(facts.executors):
            if _lacks_store(executors[0]) and not _lacks_ours(executors[0]):
                yield Finding(
                    "object-stores",
                    f"obstore is missing, which {path.path} needs",
                    where,
                    "Install arrow-shuffle[object-stores] there too",
                )


# The session --------------------------------------------------------------------------------------


def _of_session(facts: EnvironmentFacts, session: SessionFacts) -> Iterator[Finding]:
    pyspark = facts.driver.packages["pyspark"].version
    if pyspark is not None and _minor(pyspark) != _minor(session.spark):
        yield Finding(
            "spark-version",
            f"PySpark is {pyspark} and runs Spark {session.spark}",
            "driver",
            f"Install pyspark=={session.spark}, and check SPARK_HOME",
        )
    if session.compression == "lz4":
        yield Finding(
            "lz4",
            "spark.sql.execution.arrow.compression.codec is lz4, with which Spark hands over "
            "batches a hundred times slower (measured with 4.3)",
            "session",
            "Set it to none or zstd",
        )
    if session.format_error is not None:
        yield _format_not_found(session)
    elif session.lookup is not None and session.lookup.process is not None:
        where = f"Python of the data source ({session.lookup.executable})"
        yield from _of_packages(session.lookup.process, where, facts.driver)
    if not session.is_active:
        yield Finding(
            "thread",
            "no session is active in this thread, so df.write.format('arrow_shuffle') and "
            "writeStream.start() say DATA_SOURCE_NOT_FOUND in it",
            "this thread",
            "Use write_shuffle, which needs none, or call there spark._jvm.org.apache.spark.sql."
            "SparkSession.setActiveSession(spark._jsparkSession)",
            "note",
        )
    if not session.runs_here:
        yield Finding(
            "python-apart",
            f"PYSPARK_PYTHON is {session.executor_python}, which is no program here; Spark plans "
            "reads of read_shuffle with it, on the driver",
            "driver",
            "Have one at the same path here. Of a packed environment: unpack it here too, or make "
            "a link, such as ln -s /path/of/this/environment environment",
        )
    if session.executors_error is not None:
        yield _executors_failed(session, session.executors_error)


def _format_not_found(session: SessionFacts) -> Finding:
    code = "format-not-found"
    lookup = session.lookup
    if "DATA_SOURCE_NOT_FOUND" not in (session.format_error or ""):
        said = _last_line(session.format_error or "")
        return Finding(
            "format-fails",
            f"format('arrow_shuffle') was found and fails: {said}",
            "driver" if lookup is None else f"Python of the data source ({lookup.executable})",
            "Mend what is found of its packages",
        )
    if lookup is None:
        return Finding(
            code,
            "the server does not find the format 'arrow_shuffle'",
            "Connect server",
            "Its Python, PYSPARK_DRIVER_PYTHON of the server's environment, else PYSPARK_PYTHON, "
            "else python3, must have arrow-shuffle; or bring a zip of it with "
            "spark.addArtifacts(zip, pyfile=True) and call "
            "spark.dataSource.register(arrow_shuffle.ArrowShuffleDataSource)",
        )
    remedy = (
        "Before the session begins, set PYSPARK_PYTHON to a Python that has arrow-shuffle and set "
        "PYSPARK_DRIVER_PYTHON to the same or unset it; or call "
        "spark.dataSource.register(arrow_shuffle.ArrowShuffleDataSource), which then runs with "
        "PYSPARK_PYTHON"
    )
    looked = (
        "Spark does not find the format 'arrow_shuffle': it looks with "
        f"{lookup.executable} ({lookup.said_by})"
    )
    if lookup.process is None:
        return Finding(code, f"{looked}, which did not answer: {lookup.error}", "driver", remedy)
    lacks = [name for name, package in lookup.process.packages.items() if _lacks(package)]
    lacks = [name for name in lacks if name not in OPTIONAL]
    broken = [package.error for package in lookup.process.packages.values() if package.error]
    if lacks:
        return Finding(code, f"{looked}, which lacks {', '.join(lacks)}", "driver", remedy)
    if broken:
        return Finding(code, f"{looked}, where {broken[0]}", "driver", remedy)
    return Finding(
        code,
        f"{looked}, which has all it needs now",
        "driver",
        "Start the session again, since Spark looks once; and look for another module pyspark_* "
        "that fails to import there, which disables all data sources in Python",
    )


def _executors_failed(session: SessionFacts, error: str) -> Finding:
    hosts = sorted(set(re.findall(r"TID \d+\) \((\S+) executor", error)))
    where = f"executors on {', '.join(hosts)}" if hosts else "executors"
    versions = re.search(r"different version: (\S+) than that in driver: (\d+\.\d+)", error)
    asked = (
        ""
        if session.executor_python is None
        else f" (the driver asks for {session.executor_python})"
    )
    same = (
        "Set PYSPARK_PYTHON, in the driver's environment before the session begins, to a Python "
        "that every host has"
    )
    if versions is not None:
        return Finding(
            "python-version",
            f"Python is {versions[1]} there and {versions[2]} on the driver{asked}",
            where,
            f"{same}, of the driver's minor version",
        )
    program = re.search(r'Cannot run program "([^"]+)"', error)
    if program is not None:
        return Finding("no-python", f"{program[1]} cannot be run there", where, same)
    module = re.search(r"No module named '([^']+)'", error)
    if module is not None:
        what = f"Python lacks {module[1]} there{asked}"
        return Finding("package-missing", what, where, f"Then {GET_PACKAGE}")
    return Finding(
        "executors",
        f"a job of a few functions failed there: {_last_line(error)}",
        where,
        "Read the logs of the executors",
    )


# Executors ----------------------------------------------------------------------------------------


def _of_executors(facts: EnvironmentFacts) -> Iterator[Finding]:
    for where, processes in _by_what(facts.executors):
        yield from _of_packages(processes[0], where, facts.driver)
    for host, on_host in groupby(sorted(facts.executors, key=_host), key=_host):
        processes = list(on_host)
        where = f"executors on {host}"
        session = facts.session
        if not all(one.has_lookup for one in processes) and session and session.lookup:
            yield _no_lookup(where, session.lookup)
        apart = max(process.seconds_apart for process in processes)
        if apart > MAX_SECONDS_APART:
            yield _clock(where, "their clock", apart)
        if facts.path is not None:
            is_store = facts.path.path.startswith(STORE_SCHEMES)
            able = [one for one in processes if not (is_store and _lacks_store(one))]
            yield from _of_place(where, able, facts.path.path)


def _no_lookup(where: str, lookup: LookupFacts) -> Finding:
    return Finding(
        "python-apart",
        f"{lookup.executable} ({lookup.said_by}) is no program there, and format('arrow_shuffle') "
        "runs with it",
        where,
        "Before the session begins, unset PYSPARK_DRIVER_PYTHON and set PYSPARK_PYTHON to one that "
        "is at the same path on driver and executors",
    )


def _of_place(where: str, processes: list[ProcessFacts], path: str) -> Iterator[Finding]:
    places = [process.place for process in processes if process.place is not None]
    errors = sorted({place.error for place in places if place.error is not None})
    remedy = SHARED_PATH
    if any(not place.sees for place in places):
        said = f" ({errors[0]})" if errors else ""
        yield Finding(
            "path-apart",
            f"a file that the driver put into {path} is not there{said}",
            where,
            remedy,
        )
    elif errors:
        yield Finding(
            "path-apart",
            f"nothing can be written into {path}: {errors[0]}",
            where,
            "Let the user of the executors write there",
        )
    elif any(not place.is_seen for place in places):
        what = f"the driver does not see a file that was put into {path} there"
        yield Finding("path-apart", what, where, remedy)


def _clock(where: str, whose: str, seconds: float) -> Finding:
    return Finding(
        "clock",
        f"{whose} is {seconds:.0f} s from the driver's at least",
        where,
        "Keep clocks right (NTP): they decide when versions and jobs expire",
    )


def _host(process: ProcessFacts) -> str:
    return process.host


def _by_what(executors: Iterable[ProcessFacts]) -> Iterator[tuple[str, list[ProcessFacts]]]:
    """Yield executors that have the same, and where they are."""

    def what(process: ProcessFacts) -> str:
        return repr((process.executable, process.python, sorted(process.packages.items(), key=str)))

    for _, same in groupby(sorted(executors, key=what), key=what):
        processes = list(same)
        hosts = sorted({process.host for process in processes})
        yield f"executors on {', '.join(hosts)} ({processes[0].executable})", processes


# Packages -----------------------------------------------------------------------------------------


def _of_packages(process: ProcessFacts, where: str, driver: ProcessFacts) -> Iterator[Finding]:
    packages = process.packages
    missing = [name for name in packages if _lacks(packages[name]) and name not in OPTIONAL]
    if missing:
        ours = [name for name in missing if name in OUR_PACKAGES]
        others = [name for name in missing if name not in OUR_PACKAGES]
        named = [*(["arrow-shuffle"] if ours else []), *others]
        what = f"{', '.join(named)} {'is' if len(named) == 1 else 'are'} missing"
        if ours and len(ours) < len(OUR_PACKAGES):
            what += f" (of arrow-shuffle: {', '.join(ours)})"
        remedy = "pip install 'arrow-shuffle[spark]'"
        if process is not driver:
            is_another = process.host == driver.host and process.executable != driver.executable
            remedy = (
                f"set PYSPARK_PYTHON={driver.executable}, the program's own Python, where Spark is "
                f"started, before it is; or {GET_PACKAGE}"
                if is_another
                else GET_PACKAGE
            )
        yield Finding("package-missing", what, where, _sentence(remedy))
    for name, package in packages.items():
        if package.error is not None and not missing:
            what = f"{name} cannot be imported: {package.error}"
            yield Finding("package-broken", what, where, "Install it again there")
    for name, lowest in LOWEST.items():
        version = packages[name].version
        if version is not None and _numbers(version) < _numbers(lowest):
            yield Finding(
                "package-old",
                f"{name} is {version}, and {lowest} is the oldest that works",
                where,
                f"pip install '{name}>={lowest}'",
            )
    if process is not driver:
        yield from _of_other_versions(process, where, driver)


def _of_other_versions(
    process: ProcessFacts, where: str, driver: ProcessFacts
) -> Iterator[Finding]:
    for name, package in process.packages.items():
        version, drivers = package.version, driver.packages[name].version
        if None in (version, drivers) or version == drivers or name in OUR_PACKAGES[1:]:
            continue
        if name == "arrow_format":
            yield Finding(
                "package-version",
                f"arrow-shuffle is {version} there and {drivers} on the driver",
                where,
                f"Use one version: {GET_PACKAGE}",
            )
        elif name != "pyspark":  # of executors, it is that of their Spark
            yield Finding(
                "package-version",
                f"{name} is {version} there and {drivers} on the driver",
                where,
                "It may work; use one version to be sure",
                "note",
            )


def _lacks(package: PackageFacts) -> bool:
    return package.version is None and package.error is None


def _lacks_ours(process: ProcessFacts) -> bool:
    return any(_lacks(process.packages[name]) for name in OUR_PACKAGES)


def _lacks_store(process: ProcessFacts) -> bool:
    return _lacks(process.packages["obstore"]) or _lacks_ours(process)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _minor(version: str) -> tuple[int, ...]:
    return _numbers(version)[:2]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if not text.startswith("pip ") else text


def _last_line(text: str) -> str:
    """Return the line that says most of a Java or Python stack trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return next(iter([*reversed(causes), *reversed(errors), *lines[:1]]), "it gave no reason")
