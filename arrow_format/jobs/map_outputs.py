"""Checks of the map outputs of a job before they are committed, and their totals."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import CorruptShuffleError, ShuffleError
from arrow_format.log.framing import MALFORMED
from arrow_format.log.outputs import MapOutputs, decode_outputs, encode_outputs
from arrow_format.log.totals import sum_totals
from arrow_format.model import Natural
from arrow_format.options import normal_directory
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.local_dirs import ReadRoots
from arrow_format.write.counters import sum_counters
from arrow_format.write.tombstones import FIRST_MAP_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.totals import Totals
    from arrow_format.model import Int64Array, MapOutput, MapStatus, PartitionedFile
    from arrow_format.storage.open import ObjectStat, Storage


class CompleteOutputs(NamedTuple):
    """The map outputs of a job, each of one attempt."""

    outputs: MapOutputs
    """By map task."""
    totals: Totals
    """Their rows and bytes per subpartition."""
    counters: dict[str, int]
    tombstones: Sequence[MapOutput]
    """By map task; see :mod:`arrow_format.jobs.tombstones`."""
    tombstone_rows: Int64Array
    """Their rows per subpartition."""


def complete_outputs(
    job: ShuffleJob, statuses: Iterable[MapStatus], expected: int | None
) -> CompleteOutputs:
    """Return the map outputs of a job, one of each map task.

    Statuses are taken one by one and not kept: their totals would take gigabytes where there are
    tens of thousands of map tasks and subpartitions. Totals that are absent or do not add up are
    not believed: the indexes are read.

    Raises ShuffleError where a map output is missing, of another job, or of several attempts, or
    there is more than one of a map task.
    """
    n = job.num_subpartitions
    outputs, uncounted, tombstones = [], [], []
    totals = np.zeros(n, np.int64), np.zeros(n, np.int64)
    counters: dict[str, int] = {}
    for status in statuses:
        outputs.append(status.output)
        if status.tombstones is not None:
            tombstones.append(status.tombstones)
        counters = sum_counters([counters, _counters_of(job, status)])
        own = _own_totals(status, n)
        if own is None:
            uncounted.append(status.output)
        else:
            _add(totals, own)
    complete = in_task_order(job, outputs, expected)
    for read in _read_totals(job, uncounted):
        _add(totals, read)
    tombstones.sort(key=lambda output: output.map_task)
    _check_tombstones(job, tombstones, [output.map_task for output in complete])
    tombstone_rows, _ = sum_totals([*_read_totals(job, tombstones)], n)
    return CompleteOutputs(complete, totals, counters, tombstones, tombstone_rows)


def _counters_of(job: ShuffleJob, status: MapStatus) -> dict[str, int]:
    try:
        return msgspec.convert(status.counters, dict[str, Natural])
    except msgspec.ValidationError as error:
        msg = _refused(job, status.output, f"has counters that are none ({error})")
        raise ShuffleError(msg) from error


def _refused(job: ShuffleJob, output: MapOutput, problem: str) -> str:
    return (
        f"{job.storage.root}: map task {output.map_task}, attempt {output.attempt}, {problem}; "
        "nothing was committed. Pass map statuses on as the tasks gave them"
    )


def _add(totals: Totals, more: Totals) -> None:
    for total, added in zip(totals, more, strict=True):
        total += added


def in_task_order(
    job: ShuffleJob, outputs: Sequence[MapOutput], expected: int | None
) -> MapOutputs:
    """Return map outputs by map task; raises ShuffleError as :func:`complete_outputs`."""
    outputs = sorted(outputs, key=lambda output: output.map_task)
    _check_job(job, outputs)
    count = len(outputs) if expected is None else expected
    tasks = [output.map_task for output in outputs]
    times = Counter(tasks)
    if tasks != list(range(count)):
        missing = sorted(set(range(count)) - set(tasks))
        twice = sorted(task for task, count in times.items() if count > 1)
        msg = (
            f"{job.storage.root}: expected one map output of each of {count} map tasks, found "
            f"{len(tasks)} (missing: {missing[:5] or 'none'}, more than once: "
            f"{twice[:5] or 'none'}); nothing was committed"
        )
        raise ShuffleError(msg)
    complete = MapOutputs.of(outputs)
    _check_files_of(job, complete)
    return complete


def _check_tombstones(
    job: ShuffleJob, tombstones: Sequence[MapOutput], tasks: Sequence[int]
) -> None:
    """Raise ShuffleError where tombstones are not those of map tasks of a job, once of each."""
    _check_job(job, tombstones)
    known = Counter(FIRST_MAP_TASK + task for task in tasks)
    for output in tombstones:
        if not known.pop(output.map_task, 0):
            raise ShuffleError(_refused(job, output, "has tombstones of another map task"))
    if tombstones:
        _check_files_of(job, MapOutputs.of(tombstones))


def _check_job(job: ShuffleJob, outputs: Sequence[MapOutput]) -> None:
    foreign = [output for output in outputs if output.job_id != job.job_id]
    if foreign:
        msg = (
            f"{job.storage.root}: map task {foreign[0].map_task} is of job {foreign[0].job_id}, "
            f"not of {job.job_id}; nothing was committed"
        )
        raise ShuffleError(msg)


def _check_files_of(job: ShuffleJob, outputs: MapOutputs) -> None:
    all_are_readable = next(_refused_by_readers(outputs), None) is None
    for output in outputs:
        for problem in _problems(job, output, is_readable=all_are_readable):
            raise ShuffleError(_refused(job, output, problem))


def _refused_by_readers(outputs: MapOutputs) -> Iterator[str]:
    """Yield why readers would refuse some of these map outputs."""
    try:
        decode_outputs(encode_outputs(outputs))
    except MALFORMED as error:
        yield f"has a status that readers would refuse ({error})"


def _problems(job: ShuffleJob, output: MapOutput, *, is_readable: bool) -> Iterator[str]:
    """Yield why the files of a map output are not those that one attempt of its task wrote."""
    if not is_readable:
        yield from _refused_by_readers(MapOutputs.of([output]))
    # Each attempt chooses a random id of its own and numbers its files; a file that is named twice
    # would be read twice.
    names = [file.path.rpartition("/")[2] for file in output.files]
    attempts = {name.rpartition("-")[0] for name in names}
    own = f"{output.map_task:05d}-{output.attempt}-"
    if (
        len(set(names)) < len(names)
        or len(attempts) > 1
        or not all(name.startswith(own) for name in attempts)
    ):
        yield f"has the files {', '.join(sorted(names))}, which are not those of one attempt"
    known = {"", *map(normal_directory, job.local_roots)}
    for file in output.files:
        if file.root and normal_directory(file.root) not in known:
            yield f"has a file in {file.root}, which is none of the local directories of the job"


def _read_totals(job: ShuffleJob, outputs: Sequence[MapOutput]) -> Iterator[Totals]:
    """Yield the totals of each file of map outputs, from its index."""
    roots = ReadRoots(job.storage)

    def totals_of(file: PartitionedFile) -> Totals:
        return PartitionedFileReader(roots.storage_of(file, job.job_id), file).totals

    calls = [partial(totals_of, file) for output in outputs for file in output.files]
    at_once = max(job.storage.max_requests, 1)
    for start in range(0, len(calls), at_once):
        yield from run_concurrently(calls[start : start + at_once], at_once)


def _own_totals(status: MapStatus, num_subpartitions: int) -> Totals | None:
    """Return the totals of a status, if it has any and they add up."""
    rows, sizes = status.subpartition_rows, status.subpartition_bytes
    if rows is None or sizes is None or not len(rows) == len(sizes) == num_subpartitions:
        return None
    adds_up = int(rows.sum()) == status.output.delivered_rows(num_subpartitions)
    return (rows, sizes) if adds_up and int(sizes.sum()) == status.output.num_bytes else None


def check_files(
    storage: Storage,
    outputs: Iterable[MapOutput],
    advice: str,
    listed: Mapping[str, ObjectStat] | None = None,
) -> None:
    """Check that every file of map outputs exists and has its length; else CorruptShuffleError.

    Also that the objects of their masks exist.

    Parameters
    ----------
    storage
        The shuffle.
    outputs
        Map outputs of any jobs.
    advice
        Appended to the error when a file is missing: likely cause and remedy.
    listed
        Files of the shuffle from a listing; only those that it lacks are looked up one by one.
    """
    roots = ReadRoots(storage)
    known = {path: stat.num_bytes for path, stat in (listed or {}).items()}
    checks = [
        partial(_check_file, roots.storage_of(file, output.job_id), output, path, size, advice)
        for output in outputs
        for file in output.files
        for path, size in ((file.data_path, file.data_bytes), (file.index_path, file.index_bytes))
        if file.root or known.get(path) != size
    ]
    masks = {
        file.mask.path: output for output in outputs for file in output.files if file.mask.path
    }
    checks += [
        partial(_check_file, storage, output, path, None, advice)
        for path, output in masks.items()
        if path not in known
    ]
    run_concurrently(checks, storage.max_requests)


def _check_file(
    storage: Storage, output: MapOutput, path: str, expected: int | None, advice: str
) -> None:
    """Check that a file is there, and its length if one is expected."""
    stat = storage.stat(path)
    if stat is None or expected not in (None, stat.num_bytes):
        problem = "is not there" if stat is None else f"has {stat.num_bytes} bytes"
        msg = (
            f"{storage.root}/{path} (map task {output.map_task}, attempt {output.attempt}): "
            f"{problem}{'' if expected is None else f', expected {expected} bytes'}; {advice}"
        )
        raise CorruptShuffleError(msg)
