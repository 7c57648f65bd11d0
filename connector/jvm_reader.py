"""The reader in Spark's JVM: its jar, what a session needs for it, and whether it reads.

It is an addition: everything works without it, by the data source in Python. Its Java is in
``connector/jvm``, and ``make jar`` builds it. The doctor asks here too, where a driver may lack
what reads, so no more than the standard library is imported.
"""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arrow_format.errors import MissingPackageError, OptionError, SchemaError
from connector.session import session_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.read.shuffle import Shuffle

JAR = Path(__file__).parent / "jvm" / "arrow_shuffle.jar"
"""Of all versions of Spark that are supported."""

FORMAT = "arrow_shuffle_jvm"
PROBE_FORMAT = "arrow_shuffle_jvm_probe"
CATALOG_CLASS = "arrowshuffle.spark.ShuffleCatalog"
CATALOG = "shuffles"
BUCKETING = "spark.sql.sources.v2.bucketing.enabled"

_NO_FORMAT = "DATA_SOURCE_NOT_FOUND"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_S3_OF_HADOOP = "s3a://"
"""What this package calls ``s3://``."""


def spark_config(
    warehouse: str | os.PathLike[str] | None = None, *, catalog: str = CATALOG
) -> dict[str, str]:
    """Return settings by which a session gets the reader in Spark's JVM, and names of shuffles.

    .. code-block:: python

        from pyspark.sql import SparkSession

        settings = arrow_shuffle.spark_config(warehouse="/data/shuffles")
        builder = SparkSession.builder.master("local[2]").config(map=settings)

    With them ``SELECT ... FROM shuffles.sales.orders`` reads ``<warehouse>/sales/orders``, and a
    path is a name as well: ``SELECT ... FROM shuffles.`/data/orders```. Joins and aggregations of
    such tables by their keys need no exchange. They are settings of a session that begins: a
    session that runs does not load another jar.

    Parameters
    ----------
    warehouse
        Directory or URI below which names are found, as Spark's JVM calls it: ``s3a://bucket/w``
        where Hadoop does. A local one may be relative. When None, only paths are names.
    catalog
        Name of the catalog in SQL.

    Returns
    -------
    dict[str, str]
        Four settings at most: ``spark.jars``, the catalog and its warehouse, and
        ``spark.sql.sources.v2.bucketing.enabled``, which is Spark's default from 4.1 on. A session
        has one ``spark.jars``: join yours with a comma, ``settings["spark.jars"] += ",mine.jar"``.

    Raises
    ------
    OptionError
        The catalog's name is no name, or Spark's own.
    MissingPackageError
        The jar is not where this package is, as in a zip of it.
    """
    if not _NAME.fullmatch(catalog) or catalog == "spark_catalog":
        msg = f"catalog={catalog!r}: expected a name of letters and digits that is not Spark's own"
        raise OptionError(msg)
    if not JAR.is_file():
        msg = f"{JAR} is not there: the reader in the JVM needs this package installed, as by pip"
        raise MissingPackageError(msg, name="arrow_shuffle.jar")
    settings = {
        "spark.jars": str(JAR),
        f"spark.sql.catalog.{catalog}": CATALOG_CLASS,
        BUCKETING: "true",
    }
    if warehouse is not None:
        text = os.fspath(warehouse)
        settings[f"spark.sql.catalog.{catalog}.warehouse"] = (
            text if _is_uri(text) else str(Path(text).absolute())
        )
    return settings


def _is_uri(path: str) -> bool:
    return _SCHEME.match(path) is not None


@cache
def own_version() -> str | None:
    """Return the version of the jar of this package; None where it is not there."""
    try:
        with zipfile.ZipFile(JAR) as jar:
            manifest = jar.read("META-INF/MANIFEST.MF").decode()
    except OSError:
        return None
    found = re.search(r"^Implementation-Version: (\S+)", manifest, re.MULTILINE)
    return None if found is None else found[1]


# What a session has -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JvmReader:
    """What a session says of its reader in the JVM."""

    version: str | None
    """As the manifest of the jar has it; None where the session has none."""
    error: str | None = None
    """Why it does not answer, or why it cannot open a path; None where it can."""


NO_READER = JvmReader(None)


def jvm_reader_of(spark: SparkSession) -> JvmReader:
    """Return what a session has, classic or of Spark Connect; it is asked once."""
    answers = _answers_of(session_id(spark))
    if "" not in answers:
        answers[""] = ask(spark)
    return answers[""]


def reader_at(spark: SparkSession, path: str) -> JvmReader:
    """Return what a session has, and of an object store whether its JVM can open a path there.

    A store answers by requests to it, with credentials of Hadoop: once for each path.
    """
    reader = jvm_reader_of(spark)
    if reader.version is None or not _is_uri(path):
        return reader
    answers = _answers_of(session_id(spark))
    if path not in answers:
        answers[path] = ask(spark, path)
    return answers[path]


@lru_cache(100)
def _answers_of(session_id: str) -> dict[str, JvmReader]:
    del session_id
    return {}


def ask(spark: SparkSession, path: str | None = None) -> JvmReader:
    """Ask a session for the version of its reader, and whether it can open a file or directory."""
    options = {} if path is None else {"path": path}
    try:
        (row,) = spark.read.format(PROBE_FORMAT).options(**options).load().collect()
    except Exception as error:  # whatever Spark, py4j and grpc raise
        is_missing = _condition(error) == _NO_FORMAT
        return JvmReader(None, None if is_missing else f"{type(error).__name__}: {error}")
    return JvmReader(row.version or "unknown", row.error)


def _condition(error: Any) -> str | None:  # noqa: ANN401
    """Return the name that Spark gives an error; None where it has none."""
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        return error.getCondition()
    thrown = getattr(error, "java_exception", None)
    if thrown is None:
        return None
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    has_one = is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable")
    return str(thrown.getCondition()) if has_one else None


# Who reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """What a read of a shuffle asks for, as far as it decides who reads for Spark."""

    filter: Literal["SQL", "Arrow", "keys"] | None = None
    """What kind of filter there is."""
    is_latest: bool = False
    """Whether it asks for the last row of each key."""
    has_subpartitions: bool = False
    is_divided: bool = False
    """Whether it says how rows are divided into Spark partitions."""
    is_of_changes: bool = False
    """Whether it reads what versions added, and not all of one."""
    sort_by: str = ""
    """Columns by which rows are sorted; empty where they are not."""
    has_options: bool = False
    """Whether the shuffle was opened with options other than the defaults."""
    has_storage_options: bool = False
    are_alike: bool = False
    """Whether names of columns differ in case alone."""
    lacks_type: bool = False
    """Whether Spark has no type for a column, be it one that is not read."""


def why_not_jvm(
    spark: SparkSession,
    shuffle: Shuffle,
    *,
    filter: object = None,
    keys: object = None,
    subpartitions: object = None,
    is_divided: bool = False,
) -> str | None:
    """Return why a selection of a shuffle is read in Python; None: the session's JVM reads it."""
    asked = Asked(
        filter="keys" if keys is not None else _kind(filter),
        is_latest=shuffle.latest_column is not None,
        has_subpartitions=subpartitions is not None,
        is_divided=is_divided,
        is_of_changes=shuffle.span is not None,
        sort_by=", ".join(column for column, _ in shuffle.sort_by),
        has_options=shuffle.options != type(shuffle.options)(),
        has_storage_options=bool(shuffle.storage.options),
        are_alike=len({name.lower() for name in shuffle.schema.names}) < len(shuffle.schema.names),
        lacks_type=_lacks_type(shuffle),
    )
    return why_python(reader_at(spark, shuffle.path), own_version(), asked)


def _lacks_type(shuffle: Shuffle) -> bool:
    from connector.spark_types import spark_schema_of_stored

    try:
        spark_schema_of_stored(shuffle.schema, shuffle.spark_schema)
    except SchemaError:
        return True
    return False


def _kind(filter: object) -> Literal["SQL", "Arrow"] | None:
    return None if filter is None else "SQL" if isinstance(filter, str) else "Arrow"


def why_python(reader: JvmReader, own: str | None, asked: Asked) -> str | None:
    """Return why rows are read by the data source in Python; None: the JVM's reader reads them.

    Parameters
    ----------
    reader
        What the session has.
    own
        Version of the jar of this package.
    asked
        What is asked for.
    """
    reasons = {
        f"the session's does not answer ({reader.error})": reader.version is None and reader.error,
        "the session does not have it (arrow_shuffle.spark_config)": reader.version is None,
        f"the session's is of {reader.version}, this package of {own}": reader.version != own,
        f"it cannot open the path ({reader.error})": reader.error is not None,
        "it has no storage_options, but the settings of Hadoop": asked.has_storage_options,
        "it has no ReadOptions": asked.has_options,
        "it reads versions, not what they added": asked.is_of_changes,
        f"it does not keep the order of {asked.sort_by}": asked.sort_by,
        "it has no latest_by": asked.is_latest,
        "it has no key_values": asked.filter == "keys",
        "its filters are text, not expressions of Arrow": asked.filter == "Arrow",
        "it takes no subpartitions": asked.has_subpartitions,
        "it divides rows into Spark partitions by itself": asked.is_divided,
        "names of columns differ in case alone": asked.are_alike,
        "this Spark has no type for a column": asked.lacks_type,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def frame_of_jvm(
    spark: SparkSession, shuffle: Shuffle, schema: StructType, filter: str | None, pin: str
) -> DataFrame:
    """Return the lazy DataFrame of a version, read in the JVM: columns of a schema, in its order.

    ``pin`` is the commit that the version must be.
    """
    # A path alone is one of ``fs.defaultFS``, which may be elsewhere.
    path = shuffle.path if _is_uri(shuffle.path) else f"file:{shuffle.path}"
    reader = spark.read.format(FORMAT).option("version", shuffle.version).option("pin", pin)
    frame = reader.load(path)
    if filter is not None:
        frame = frame.where(filter)
    names: list[str] = [f"`{name.replace('`', '``')}`" for name in schema.names]
    return frame.select(*names)


# Names --------------------------------------------------------------------------------------------


def path_of_table(spark: SparkSession | None, table: str) -> str:
    """Return the path of a table's name, ``sales.orders``, by the catalog of a session.

    The name may begin with that of a catalog of shuffles; else the catalog is ``shuffles``.

    Raises
    ------
    OptionError
        There is no session, or no such catalog in it, or no warehouse of it; or the name is none.
    """
    parts = table.split(".")
    if not all(part and part[0] not in " _" and not {*part} & {*"/\\`\0"} for part in parts):
        msg = (
            f"table={table!r}: expected a name such as 'sales.orders', without a catalog or with "
            "one, of parts that hold no '/' or '`' and do not begin with '_'"
        )
        raise OptionError(msg)
    if spark is None:
        msg = (
            f"table={table!r}: a name is one of a session's catalog, and there is no session: give "
            "spark=session, or a path"
        )
        raise OptionError(msg)
    name = CATALOG
    if len(parts) > 1 and spark.conf.get(f"spark.sql.catalog.{parts[0]}", None) == CATALOG_CLASS:
        name, *parts = parts
    warehouse = spark.conf.get(f"spark.sql.catalog.{name}.warehouse", None)
    if spark.conf.get(f"spark.sql.catalog.{name}", None) != CATALOG_CLASS or not warehouse:
        msg = (
            f"table={table!r}: the session has no catalog {name!r} with a warehouse: begin it with "
            "SparkSession.builder.config(map=arrow_shuffle.spark_config(warehouse=...)), or give a "
            "path"
        )
        raise OptionError(msg)
    if warehouse.startswith(_S3_OF_HADOOP):
        warehouse = f"s3://{warehouse.removeprefix(_S3_OF_HADOOP)}"
    return "/".join([warehouse.rstrip("/"), *parts])
