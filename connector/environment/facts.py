"""What is seen of an environment, as plain values, without judgement, and how it is collected.

It is seen on the driver, in the Python of data sources, on executors and at a path.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrow_format.errors import ShuffleError
from connector.environment import probe
from connector.java import JavaNotFoundError, require_java
from connector.jvm_reader import NO_READER, JvmReader, ask, own_version
from connector.session import default_parallelism, is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from arrow_format.storage.open import Storage

_COMPRESSION = "spark.sql.execution.arrow.compression.codec"
_LOOKUP_TIMEOUT_S = 60.0
STORE_SCHEMES = ("s3://", "gs://", "az://")


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """One module of one process."""

    version: str | None
    """None where it is missing or cannot be imported; ``?`` if it does not say."""
    error: str | None = None
    """Why it cannot be imported, where it is there."""


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What one executor saw at the path."""

    sees: bool
    """Whether it sees the driver's file."""
    is_seen: bool
    """Whether the driver sees the executor's file."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One Python process."""

    host: str
    executable: str
    python: str
    """Version, such as ``3.11.7``."""
    packages: Mapping[str, PackageFacts]
    seconds_apart: float = 0.0
    """How far its clock is from the driver's at least; 0 for what may be the time of a message."""
    place: PlaceFacts | None = None
    has_lookup: bool = True
    """Whether the Python in which Spark looks for data sources is a program here too."""

    @staticmethod
    def of(facts: Mapping[str, Any], **more: Any) -> ProcessFacts:  # noqa: ANN401
        """Return what :func:`~connector.environment.probe.process_facts` returned."""
        packages = {name: PackageFacts(**package) for name, package in facts["packages"].items()}
        return ProcessFacts(facts["host"], facts["executable"], facts["python"], packages, **more)

    @property
    def missing(self) -> list[str]:
        """Packages that are not there."""
        return [name for name, of in self.packages.items() if of.version is None is of.error]

    def version(self, name: str) -> str | None:
        """Version of a package."""
        return self.packages[name].version


@dataclass(frozen=True, slots=True)
class LookupFacts:
    """The Python in which Spark's JVM looks for data sources."""

    executable: str
    said_by: str
    """What chose it, such as ``PYSPARK_DRIVER_PYTHON``."""
    process: ProcessFacts | None = None
    error: str | None = None
    """Why it did not answer."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A Spark session."""

    is_connect: bool
    spark: str
    """Version of Spark itself, which may be another than that of PySpark."""
    compression: str
    """``spark.sql.execution.arrow.compression.codec``."""
    executor_python: str | None = None
    """What the driver asks executors to start; None where a server decides."""
    runs_here: bool = True
    """Whether that is a program on the driver too, where Spark plans with it."""
    lookup: LookupFacts | None = None
    """None where a server decides."""
    format_error: str | None = None
    """Spark's answer to ``format("arrow_shuffle")``; None where it was found."""
    is_active: bool = True
    """Whether Spark finds formats in it from this thread, for writers and streams."""
    jvm: JvmReader = NO_READER
    """Its reader in the JVM, and whether that opened the file that was put at the path."""
    executors_error: str | None = None
    """Why the job on executors failed."""

    @property
    def data_source(self) -> str:
        """Where the data source runs."""
        lookup = self.lookup
        return "driver" if lookup is None else f"Python of the data source ({lookup.executable})"

    @property
    def asked(self) -> str:
        """What the driver asks executors to start, for a message."""
        python = self.executor_python
        return "" if python is None else f" (the driver asks for {python})"

    @property
    def failed_on(self) -> str:
        """Executors on which the job failed."""
        found = re.findall(r"TID \d+\) \((\S+) executor", self.executors_error or "")
        hosts = ", ".join(sorted(set(found)))
        return f"executors on {hosts}" if hosts else "executors"

    def failed(self, pattern: str) -> re.Match[str] | None:
        """Return where the error of the job on executors matches."""
        return re.search(pattern, self.executors_error or "")


@dataclass(frozen=True, slots=True)
class PathFacts:
    """The path, as the driver sees it."""

    path: str
    """Where the files were put: the path itself, or the nearest directory above it."""
    error: str | None = None
    is_refused: bool = False
    """Whether the error is that the store does not keep what commits rest on."""
    deletion_error: str | None = None
    """Of a store: why nothing can be deleted there, though it can be written."""
    is_versioned: bool = False
    """Whether a store shows that it keeps the bytes of deleted objects."""
    seconds_apart: float = 0.0
    """How far the clock of the store or file system is from the driver's at least."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """All that was seen; what could not be asked for is None."""

    driver: ProcessFacts
    java_error: str | None = None
    spark_home: str | None = None
    """``SPARK_HOME``, where it is set."""
    spark_home_version: str | None = None
    jar: str | None = None
    """Version of the jar of the reader in the JVM that is beside this package."""
    path: PathFacts | None = None
    session_error: str | None = None
    """Why no session started."""
    session: SessionFacts | None = None
    executors: tuple[ProcessFacts, ...] = ()
    """One for each Python process that was met; a busy cluster may have more."""

    @property
    def pyspark(self) -> str | None:
        """Version of PySpark on the driver."""
        return self.driver.version("pyspark")

    @property
    def pandas(self) -> str | None:
        """Version of pandas on the driver."""
        return self.driver.version("pandas")

    @property
    def is_store(self) -> bool:
        """Whether the path is in an object store."""
        return self.path is not None and self.path.path.startswith(STORE_SCHEMES)


def collect(
    spark: SparkSession | None = None,
    path: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    needs_java: bool = False,
) -> EnvironmentFacts:
    """Return what is seen of the driver, of a session with its executors, and of a path."""
    java_error = None
    if needs_java:
        try:
            require_java()
        except JavaNotFoundError as error:
            java_error = str(error)
    home = os.environ.get("SPARK_HOME") or None
    session = None if spark is None else _session(spark)
    executors: tuple[ProcessFacts, ...] = ()
    with _files_at(path, storage_options) as (path_facts, place, is_seen):
        if spark is not None and session is not None:
            if place is not None and path_facts is not None and session.jvm.version is not None:
                session = replace(session, jvm=ask(spark, f"{path_facts.path}/{place['name']}"))
            try:
                executors = _executors(spark, session.lookup, place, is_seen)
            except Exception as error:  # whatever Spark and py4j raise
                session = replace(session, executors_error=str(error))
    return EnvironmentFacts(
        driver=ProcessFacts.of(probe.process_facts()),
        java_error=java_error,
        spark_home=home,
        spark_home_version=None if home is None else _version_of_home(Path(home)),
        jar=own_version(),
        path=path_facts,
        session=session,
        executors=executors,
    )


def _version_of_home(home: Path) -> str | None:
    """Return the version of Spark in a directory; None where there is none."""
    names = [jar.name for jar in sorted(home.glob("jars/spark-core_*.jar"))]
    versions = (re.search(r"-(\d+\.\d+[^-]*)\.jar", name) for name in names)
    return next((version[1] for version in versions if version is not None), None)


# The session --------------------------------------------------------------------------------------


def _session(spark: SparkSession) -> SessionFacts:
    """Return what is seen of a session from the driver."""
    connects = is_connect(spark)
    program = None if connects else spark.sparkContext.pythonExec
    return SessionFacts(
        is_connect=connects,
        spark=spark.version,
        compression=str(spark.conf.get(_COMPRESSION, "none")),
        executor_python=program,
        runs_here=program is None or shutil.which(program) is not None,
        lookup=None if connects else _lookup(spark),
        format_error=_format_error(spark),
        jvm=ask(spark),
        is_active=connects or _is_active(spark),
    )


def _lookup(spark: SparkSession) -> LookupFacts:
    """Ask the Python in which the JVM looks for data sources; its environment chose it."""
    jvm: Any = spark.sparkContext._jvm
    executable, said_by = "python3", "neither PYSPARK_DRIVER_PYTHON nor PYSPARK_PYTHON is set"
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        value = jvm.System.getenv(name)
        if value:
            executable, said_by = str(value), name
            break
    found = shutil.which(executable)
    if found is None:
        return LookupFacts(executable, said_by, error="there is no such program")
    try:
        done = subprocess.run(
            [found, "-c", inspect.getsource(probe)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOOKUP_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return LookupFacts(executable, said_by, error=f"it did not run ({error})")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, LookupError):
        printed = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        what = f"it ended with status {done.returncode} and printed {printed!r}"
        return LookupFacts(executable, said_by, error=f"{what}; is it a Python?")
    return LookupFacts(executable, said_by, process=ProcessFacts.of(answer))


def _is_active(spark: SparkSession) -> bool:
    """Whether the JVM's thread of this one has an active session."""
    jvm: Any = spark.sparkContext._jvm
    return bool(jvm.org.apache.spark.sql.SparkSession.getActiveSession().isDefined())


def _format_error(spark: SparkSession) -> str | None:
    """Return Spark's answer where it does not find or cannot run the data source."""
    try:
        _ = spark.read.format("arrow_shuffle").load("/arrow-shuffle-doctor/nothing").schema
    except Exception as error:  # whatever Spark and py4j raise
        return None if "ShuffleNotFoundError" in str(error) else str(error)
    return None


# Executors ----------------------------------------------------------------------------------------


def _executors(
    spark: SparkSession,
    lookup: LookupFacts | None,
    place: dict[str, Any] | None,
    is_seen: Callable[[str], bool],
) -> tuple[ProcessFacts, ...]:
    """Return what the executors have; raises what Spark raises where they cannot say it.

    A plain function of Python needs neither our package nor pyarrow there. Its rows are few.
    """
    from pyspark import cloudpickle
    from pyspark.sql import functions as F

    pickles: Any = cloudpickle  # has no types
    pickles.register_pickle_by_value(probe)  # executors may lack this package
    try:
        program = None if lookup is None else lookup.executable
        ask = partial(probe.answer, place, program)
        function = F.udf(ask, "string", useArrow=False)
        num_tasks = max(2, default_parallelism(spark))
        began = time.time()
        frame = spark.range(0, num_tasks, 1, num_tasks).select(function("id").alias("facts"))
        answers = [json.loads(row.facts) for row in frame.collect()]
        ended = time.time()
    finally:
        pickles.unregister_pickle_by_value(probe)
    return tuple(_executor(answer, began, ended, is_seen) for answer in answers)


def _executor(
    answer: Mapping[str, Any], began: float, ended: float, is_seen: Callable[[str], bool]
) -> ProcessFacts:
    place = answer.get("place")
    seen = None
    if place is not None:
        wrote = place["wrote"] is not None and is_seen(place["wrote"])
        seen = PlaceFacts(place["sees"], wrote, place["error"])
    apart = _apart(answer["time"], began, ended)
    has_lookup = answer.get("has_lookup", True)
    return ProcessFacts.of(answer, seconds_apart=apart, place=seen, has_lookup=has_lookup)


def _apart(at: float, began: float, ended: float) -> float:
    """Return how far a clock is at least from one by which it was asked between two times."""
    return max(began - at, at - ended, 0.0)


# The path -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _files_at(
    path: str | None, storage_options: Mapping[str, str] | None
) -> Iterator[tuple[PathFacts | None, dict[str, Any] | None, Callable[[str], bool]]]:
    """Put a file at a path; yield what was seen, what executors need, and what sees their files.

    Without a path there is nothing to see. All files are removed at the end, if that is allowed.
    Where the driver cannot put its file there is nothing for executors to look for.
    """
    from arrow_format.storage.protocol import StoreRefusedError
    from arrow_format.storage.put_probe import PROBE_DIRECTORY

    if path is None:
        yield None, None, lambda _: False
        return
    name = f".tmp-doctor-{secrets.token_hex(8)}"
    storage: Storage | None = None
    try:
        storage = _existing(path, storage_options)
        if "://" in storage.root:  # where garbage collection finds what cannot be removed here
            name = f"{PROBE_DIRECTORY}/{name}"
        storage.check_puts(for_long=True)
        began = time.time()
        storage.put_if_absent(name, b"", sync=False)
        ended = time.time()
        status = storage.stat(name)
        modified_ms = None if status is None else status.modified_ms
        # A store may say seconds only.
        apart = 0.0 if modified_ms is None else _apart(modified_ms / 1000, began - 1, ended + 1)
    except (ShuffleError, ImportError, OSError) as error:
        where = path if storage is None else storage.root
        is_refused = isinstance(error, StoreRefusedError)
        yield PathFacts(where, str(error), is_refused=is_refused), None, lambda _: False
        return
    place: dict[str, Any] = {"name": name, "options": dict(storage_options or {})}
    place["uri" if "://" in storage.root else "directory"] = storage.root
    names = [name, f"{name}-gone"]

    def is_seen(own: str) -> bool:
        names.append(own)
        return storage.stat(own) is not None

    facts = PathFacts(
        storage.root,
        deletion_error=_deletion_error(storage, names[1]),
        is_versioned=status is not None and status.is_versioned,
        seconds_apart=apart,
    )
    try:
        yield facts, place, is_seen
    finally:
        with contextlib.suppress(ShuffleError):
            storage.delete_all(names)


def _deletion_error(storage: Storage, name: str) -> str | None:
    """Return why a file that was put cannot be deleted; None where it can."""
    try:
        storage.put_if_absent(name, b"", sync=False)
        storage.delete(name)
    except ShuffleError as error:
        return str(error)
    return None


def _existing(path: str, storage_options: Mapping[str, str] | None) -> Storage:
    """Open a path, or the nearest directory above it, where nothing has to be made."""
    from arrow_format.storage.open import open_storage

    storage = open_storage(path, storage_options)
    if "://" in storage.root:
        return storage
    directory = Path(storage.root)
    while not directory.is_dir():
        directory = directory.parent
    return open_storage(str(directory))
