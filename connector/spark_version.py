"""What the installed PySpark can do: the only module that knows its version.

What a version lacks is refused before any task runs, with the version that has it. Types and
classes that a version lacks are stand-ins, so that no other module has to ask.

Source: PySpark 4.0.5, 4.1.4, 4.2.1 and 4.3.0.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql import types as spark_types
from pyspark.sql.pandas import types as spark_arrow
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, UserDefinedType

from arrow_format.errors import OptionError, SchemaError
from arrow_format.ingest.spark_footer import METADATA_KEY

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import GeographyType, GeometryType, StructField, TimeType

__all__ = [
    "ADMISSION_CONTROL", "SPARK", "DataSourceStreamArrowWriter", "GeographyType", "GeometryType",
    "PandasSettings", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxFiles",
    "ReadMaxRows", "SupportsTriggerAvailableNow", "TimeType", "column_metadata", "from_arrow_type",
    "from_pandas_frame", "is_spatial",
    "refuse_blocking_consumer", "refuse_limits", "refuse_missing_types", "refuse_no_columns",
    "to_arrow_schema", "to_arrow_type", "to_pandas_columns",
]  # fmt: skip

SPARK = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])
"""Major and minor version."""

HERE = f"PySpark {pyspark.__version__}"

FIRST_WITH = (
    (re.compile(r"time\([7-9]\)"), (4, 3)),
    (re.compile(r"time(\([0-6]\))?"), (4, 1)),
    (re.compile(r"geometry\(.*\)"), (4, 1)),
    (re.compile(r"geography\(.*\)"), (4, 1)),
)
"""Types by their names in Spark's JSON, and the first version that has them."""

ADMISSION_CONTROL = SPARK >= (4, 2)
"""Whether Spark says where a micro-batch begins, and commits it when it has ended."""


# Types -------------------------------------------------------------------------------------------


if not TYPE_CHECKING:

    class _Missing:
        """Stands for a type that this version lacks: nothing is an instance of it."""

    TimeType = getattr(spark_types, "TimeType", _Missing)
    GeometryType = getattr(spark_types, "GeometryType", _Missing)
    GeographyType = getattr(spark_types, "GeographyType", _Missing)

_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(spark_arrow.to_arrow_type).parameters
    else {}  # before 4.2 there is no other
)


def to_arrow_type(type_: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark passes values; TIMESTAMP is labelled UTC.

    As Spark 4.3 has it, in each version: those before 4.2 drop metadata of nested fields. Raises
    PySparkException where there is none.
    """
    if isinstance(type_, UserDefinedType):
        return to_arrow_type(type_.sqlType())
    if isinstance(type_, StructType):
        return pa.struct([_to_arrow_field(field) for field in type_.fields])
    if isinstance(type_, ArrayType):
        element = to_arrow_type(type_.elementType)
        return pa.list_(pa.field("element", element, nullable=type_.containsNull))
    if isinstance(type_, MapType):
        key = pa.field("key", to_arrow_type(type_.keyType), nullable=False)
        value = to_arrow_type(type_.valueType)
        return pa.map_(key, pa.field("value", value, nullable=type_.valueContainsNull))
    if isinstance(type_, StringType):
        return pa.string()
    return spark_arrow.to_arrow_type(type_, **_UTC)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows, see :func:`to_arrow_type`.

    Metadata of columns are metadata of fields, as Spark 4.2 and newer keep them.
    """
    return pa.schema([_to_arrow_field(field) for field in schema.fields])


def _to_arrow_field(field: StructField) -> pa.Field:
    metadata = {METADATA_KEY: json.dumps(field.metadata).encode()} if field.metadata else None
    return pa.field(field.name, to_arrow_type(field.dataType), field.nullable, metadata)


def column_metadata(field: pa.Field) -> dict[str, Any] | None:
    """Return the metadata of a column that Spark kept in those of a field; None without any.

    Raises ValueError for what is not the JSON of an object.
    """
    text = (field.metadata or {}).get(METADATA_KEY)
    metadata = None if text is None else json.loads(text)
    if not isinstance(metadata, dict | NoneType):
        msg = f"{text!r} is not a JSON object"
        raise ValueError(msg)  # noqa: TRY004 - of the text, not of an argument's type
    return metadata


def from_arrow_type(type_: pa.DataType) -> DataType:
    """Return Spark's type for a type of Arrow; a timestamp without time zone is TIMESTAMP_NTZ.

    Raises PySparkException where there is none.
    """
    return spark_arrow.from_arrow_type(type_, prefer_timestamp_ntz=True)


def is_spatial(type_: pa.StructType) -> bool:
    """Whether Spark keeps VARIANT, GEOMETRY or GEOGRAPHY in a struct of Arrow."""
    tests = (getattr(spark_arrow, f"is_{name}", None) for name in ("geometry", "geography"))
    return spark_arrow.is_variant(type_) or any(test is not None and test(type_) for test in tests)


def refuse_missing_types(schema_json: object, path: str = "") -> None:
    """Refuse types in the JSON of a Spark schema that this version lacks; SchemaError names both.

    ``path`` is that of the column, with dots. What is no schema is left to Spark's parser.
    """
    if isinstance(schema_json, str):
        for pattern, version in FIRST_WITH:
            if version > SPARK and pattern.fullmatch(schema_json):
                first = ".".join(map(str, version))
                msg = (
                    f"column {path!r} has type {schema_json}, which {HERE} lacks: use PySpark "
                    f"{first} or newer, read other columns, or read it without Spark"
                )
                raise SchemaError(msg)
    elif isinstance(schema_json, dict):
        prefix = f"{path}." if path else ""
        for field in schema_json.get("fields", ()):
            refuse_missing_types(field["type"], prefix + field["name"])
        for inside in ("element", "key", "value"):
            refuse_missing_types(schema_json.get(f"{inside}Type"), prefix + inside)


def refuse_no_columns(schema: StructType) -> None:
    """Refuse a read of no columns where Spark would find no rows either; OptionError."""
    if not schema.fields and SPARK < (4, 1):
        msg = (
            f"no columns are to be read, and {HERE} takes batches without columns for batches "
            "without rows: read one column, or with_subpartition=True, or use PySpark 4.1 or newer"
        )
        raise OptionError(msg)


# pandas ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PandasSettings:
    """The session's settings of conversions from and to pandas in ``applyInPandas``."""

    time_zone: str
    by_name: bool
    """Whether columns of results are matched by name; by position otherwise."""
    is_safe: bool
    """Whether overflows and truncated values are errors."""
    ints_to_decimals: bool
    nullable_ints: bool
    """Whether integers become types of pandas that have nulls."""

    @staticmethod
    def of(conf: Any, time_zone: str) -> PandasSettings:  # noqa: ANN401
        """Read the settings of a session; those that a version lacks are off.

        Without a session, ``conf`` is None: they are those of a session in which none was set.
        """
        if conf is None:
            # The default of each: 4.3 was the first to convert safely.
            return PandasSettings(time_zone, True, SPARK >= (4, 3), False, False)

        def is_set(name: str) -> bool:
            # A default that is given would win over the version's own: 4.3 converts safely.
            try:
                value = conf.get(f"spark.sql.{name}")
            except Exception:
                value = conf.get(f"spark.sql.{name}", "false")
            return str(value).lower() == "true"

        return PandasSettings(
            time_zone=time_zone,
            by_name=is_set("legacy.execution.pandas.groupedMap.assignColumnsByName"),
            is_safe=is_set("execution.pandas.convertToArrowArraySafely"),
            ints_to_decimals=is_set("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
            nullable_ints=is_set("execution.pythonUDF.pandas.preferIntExtensionDtype"),
        )


def to_pandas_columns(table: pa.Table, settings: PandasSettings) -> list[Any]:
    """Return the columns of a table as ``applyInPandas`` passes them: a Series each."""
    if SPARK >= (4, 2):
        from pyspark.sql.conversion import ArrowBatchTransformer

        columns: list[Any] = ArrowBatchTransformer.to_pandas(
            table, timezone=settings.time_zone, prefer_int_ext_dtype=settings.nullable_ints
        )
        return columns
    serializer = _pandas_serializer(settings, may_cast=True)
    numbered = "idx" in inspect.signature(serializer.arrow_to_pandas).parameters
    return [
        serializer.arrow_to_pandas(column, *([i] if numbered else []))
        for i, column in enumerate(table.itercolumns())
    ]


def from_pandas_frame(
    frame: Any,  # noqa: ANN401
    schema: StructType,
    settings: PandasSettings,
    *,
    may_cast: bool,
) -> pa.RecordBatch:
    """Return a frame in the types of a schema, as ``applyInPandas`` converts its results.

    ``may_cast`` is whether Arrow may cast a column that does not convert value by value, as
    ``applyInPandas`` lets it. Raises what Spark raises.
    """
    if SPARK >= (4, 2):
        from pyspark.sql.conversion import PandasToArrowConversion

        return PandasToArrowConversion.convert(
            frame,
            schema,
            timezone=settings.time_zone,
            safecheck=settings.is_safe,
            arrow_cast=may_cast,
            assign_cols_by_name=settings.by_name,
            int_to_decimal_coercion_enabled=settings.ints_to_decimals,
        )
    serializer = _pandas_serializer(settings, may_cast=may_cast)
    struct = pa.struct(list(to_arrow_schema(schema)))
    return pa.RecordBatch.from_struct_array(serializer._create_struct_array(frame, struct))


def _pandas_serializer(settings: PandasSettings, *, may_cast: bool) -> Any:  # noqa: ANN401
    from pyspark.sql.pandas import serializers

    made: Any = getattr(serializers, "ArrowStreamPandasUDFSerializer")  # noqa: B009  4.3 lacks it
    known = inspect.signature(made).parameters
    coercion = {"int_to_decimal_coercion_enabled": settings.ints_to_decimals}
    return made(
        settings.time_zone,
        settings.is_safe,
        settings.by_name,
        arrow_cast=may_cast,
        **{name: value for name, value in coercion.items() if name in known},
    )


# Streams -----------------------------------------------------------------------------------------


if not TYPE_CHECKING:
    if ADMISSION_CONTROL:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxFiles,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    else:
        ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxFiles = ReadMaxRows = _Missing
        SupportsTriggerAvailableNow = object

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(
            datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
        ):
            """The worker of Spark 4.0 passes batches to a sink that is this writer as well."""


def refuse_limits() -> None:
    """Refuse limits of a stream's batches where Spark cannot keep them; OptionError."""
    if not ADMISSION_CONTROL:
        msg = (
            f"options maxVersionsPerTrigger, maxRowsPerTrigger and maxBytesPerTrigger: {HERE} does "
            "not tell a source in Python where a batch begins; leave them out, or use PySpark 4.2 "
            "or newer"
        )
        raise OptionError(msg)


def refuse_blocking_consumer(path: str) -> None:
    """Refuse the consumer of a result that is released when it is consumed; OptionError.

    Versions before 4.2 commit a batch when they plan the next one, and such a result has no next.
    """
    if not ADMISSION_CONTROL:
        msg = (
            f"{path}: {HERE} does not tell a stream that its last batch has ended, so a consumer "
            "would never release this BLOCKING result: consume it with arrow_shuffle.consume, or "
            "use PySpark 4.2 or newer"
        )
        raise OptionError(msg)
