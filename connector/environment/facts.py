"""What was seen of an environment, as plain values: no effects, no judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    executors_error: str | None = None
    """Why the job on executors failed."""


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
    path: PathFacts | None = None
    session_error: str | None = None
    """Why no session started."""
    session: SessionFacts | None = None
    executors: tuple[ProcessFacts, ...] = field(default=())
    """One for each Python process that was met; a busy cluster may have more."""
