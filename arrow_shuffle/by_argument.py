"""Functions that ``connector`` and ``arrow_format`` both have; the first argument says whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, overload

import arrow_format
import connector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.jobs.merge import MergeReport
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.aggregation_plan import Aggregation
    from arrow_format.operators.inputs import Filter, Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.join_plan import JoinKind
    from arrow_format.operators.join_shuffles import Then
    from arrow_format.operators.map_subpartitions import Columns, Function
    from arrow_format.options import MergeBy, ReadOptions, WriteMode, WriteOptions
    from arrow_format.storage.open import Place
    from arrow_format.streaming.consumption import Consumption
    from arrow_format.write.merge_policy import MergePolicy
    from connector.read import SparkConsumption

    On: TypeAlias = str | Sequence[str | tuple[str, str]] | None


@overload
def consume(
    spark: SparkSession,
    path: Place,
    *,
    consumer: str,
    request_timeout: str | float = 0.0,
    allow_empty: bool = False,
    flush: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> SparkConsumption: ...
@overload
def consume(
    path: Place,
    *,
    consumer: str,
    request_timeout: float = 0.0,
    allow_empty: bool = False,
    flush: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Consumption: ...
def consume(*place: Any, **request: Any) -> SparkConsumption | Consumption:
    """Request a result as a consumer; wait for it if it does not exist yet.

    ``consume(spark, path, consumer=...)`` reads it with Spark, see :func:`connector.consume`.
    ``consume(path, consumer=...)`` reads it in this process, see :func:`arrow_format.consume`.
    Parameters, result and errors are theirs.
    """
    if _is_for_spark(place, request):
        return connector.consume(*place, **request)
    return arrow_format.consume(*place, **request)


@overload
def merge_shuffle(
    spark: SparkSession,
    path: Place,
    *,
    by: MergeBy = "subpartition",
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> MergeReport: ...
@overload
def merge_shuffle(
    path: Place,
    *,
    by: MergeBy = "map_output",
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ...,
) -> MergeReport: ...
def merge_shuffle(*place: Any, **how: Any) -> MergeReport:
    """Merge map outputs of the newest version into a new version of the same rows.

    ``merge_shuffle(spark, path)`` does it in tasks of Spark, see :func:`connector.merge_shuffle`.
    ``merge_shuffle(path)`` does it in this process, see :func:`arrow_format.merge_shuffle`.
    Parameters, result and errors are theirs.
    """
    if _is_for_spark(place, how):
        return connector.merge_shuffle(*place, **how)
    return arrow_format.merge_shuffle(*place, **how)


def _is_for_spark(place: Sequence[object], named: Mapping[str, object]) -> bool:
    """Whether a session is among the arguments of a function that takes it before the path."""
    is_session = bool(place) and hasattr(type(place[0]), "readStream")
    return is_session or len(place) + ("spark" in named) + ("path" in named) > 1


class _Common(TypedDict, total=False):
    """Arguments of operations on kept shuffles, with a session and without."""

    subpartitions: int | Iterable[int] | None
    target_partition_bytes: int
    num_subpartitions: int | None
    mode: WriteMode
    options: Options
    storage_options: Mapping[str, str] | None


class _Here(TypedDict, total=False):
    """Arguments without a session."""

    executor: Executor | None
    time_zone: str | None


class _Map(_Common, total=False):
    columns: Sequence[str] | Sequence[Columns] | None
    filter: Filter | Sequence[Filter]
    version: int | Sequence[int | None] | None
    keys: str | Sequence[str] | None


class _MapHere(_Map, _Here, total=False): ...


class _Join(_Common, total=False):
    left_columns: Sequence[str] | None
    right_columns: Sequence[str] | None
    left_filter: Filter
    right_filter: Filter
    suffixes: tuple[str, str] | None
    then: Then | None
    schema: StructType | pa.Schema | str | None
    version: int | Sequence[int | None] | None
    check: bool
    keys: str | Sequence[str] | None


class _JoinHere(_Join, _Here, total=False): ...


class _Aggregate(_Common, total=False):
    filter: Filter
    version: int | None
    partition_by: str | Sequence[str] | None


class _AggregateHere(_Aggregate, _Here, total=False): ...


@overload
def map_subpartitions(
    spark: SparkSession,
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: StructType | pa.Schema | str,
    *,
    into: Place,
    **more: Unpack[_Map],
) -> ShuffleReceipt: ...
@overload
def map_subpartitions(
    spark: SparkSession,
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: StructType | pa.Schema | str,
    **more: Unpack[_Map],
) -> DataFrame: ...
@overload
def map_subpartitions(
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: pa.Schema,
    *,
    into: Place,
    **more: Unpack[_MapHere],
) -> ShuffleReceipt: ...
@overload
def map_subpartitions(
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: pa.Schema,
    **more: Unpack[_MapHere],
) -> BatchReader: ...
def map_subpartitions(*first: Any, **more: Any) -> DataFrame | BatchReader | ShuffleReceipt:
    """Call a function once per subpartition of one shuffle or several, where that is read.

    ``map_subpartitions(spark, ...)`` in Spark's tasks, see :func:`connector.map_subpartitions`;
    without a session in this process, see :func:`arrow_format.map_subpartitions`.
    Parameters, result and errors are theirs.
    """
    return _operate("map_subpartitions", first, more)


@overload
def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: On = None,
    how: JoinKind = "inner",
    *,
    into: Place,
    **more: Unpack[_Join],
) -> ShuffleReceipt: ...
@overload
def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: On = None,
    how: JoinKind = "inner",
    **more: Unpack[_Join],
) -> DataFrame: ...
@overload
def join_shuffles(
    left: Path,
    right: Path,
    on: On = None,
    how: JoinKind = "inner",
    *,
    into: Place,
    **more: Unpack[_JoinHere],
) -> ShuffleReceipt: ...
@overload
def join_shuffles(
    left: Path,
    right: Path,
    on: On = None,
    how: JoinKind = "inner",
    **more: Unpack[_JoinHere],
) -> BatchReader: ...
def join_shuffles(*first: Any, **more: Any) -> DataFrame | BatchReader | ShuffleReceipt:
    """Join two co-partitioned shuffles where they are read.

    ``join_shuffles(spark, left, right, ...)`` in Spark's tasks, see
    :func:`connector.join_shuffles`; without a session in this process, see
    :func:`arrow_format.join_shuffles`. Parameters, result and errors are theirs.
    """
    return _operate("join_shuffles", first, more)


@overload
def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    into: Place,
    **more: Unpack[_Aggregate],
) -> ShuffleReceipt: ...
@overload
def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    **more: Unpack[_Aggregate],
) -> DataFrame: ...
@overload
def aggregate_shuffle(
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    into: Place,
    **more: Unpack[_AggregateHere],
) -> ShuffleReceipt: ...
@overload
def aggregate_shuffle(
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    **more: Unpack[_AggregateHere],
) -> BatchReader: ...
def aggregate_shuffle(*first: Any, **more: Any) -> DataFrame | BatchReader | ShuffleReceipt:
    """Aggregate the rows of a shuffle with equal keys where they are read.

    ``aggregate_shuffle(spark, shuffle, ...)`` in Spark's tasks, see
    :func:`connector.aggregate_shuffle`; without a session in this process, see
    :func:`arrow_format.aggregate_shuffle`. Parameters, result and errors are theirs.
    """
    return _operate("aggregate_shuffle", first, more)


def _operate(
    function: str, first: tuple[Any, ...], more: dict[str, Any]
) -> DataFrame | BatchReader | ShuffleReceipt:
    is_session = "spark" in more or (bool(first) and hasattr(type(first[0]), "readStream"))
    package: Any = connector if is_session else arrow_format
    result: DataFrame | BatchReader | ShuffleReceipt = getattr(package, function)(*first, **more)
    return result
