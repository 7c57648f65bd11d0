"""Decides which files to merge, and how, from numbers in the log alone; pure.

*Appending* copies the regions of several files into one: fewer files to open and fewer indexes to
read, at the cost of a copy. *Rewriting* joins many regions into one: a reader of one subpartition
then reads once instead of once per region, at about the cost of writing the rows again. A merge *by
subpartition* joins the regions of all files: a subpartition is in one region of one file then.
The figures behind the defaults are in ``docs/adr/0006-merge-policy.md``.

Source: FLIP-148, ``MergePolicy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.option_fields import check_fields, option
from arrow_format.options import REWRITE_CHOICES, RewriteChoice, choice, num_bytes, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.model import MapOutput, PartitionedFile

MAX_FAN_IN = 128
"""Most regions that a rewrite joins into one."""

MIN_RANGES = 64
MIN_RANGE_BYTES = 16 << 20
"""A merge by subpartition has ``MIN_RANGES`` tasks or more, unless they would get less than
``MIN_RANGE_BYTES`` each, so that the cores of a cluster share the work."""

INDEX_SHARE = 4
"""A task of a merge by subpartition, which reads the indexes of all inputs, gets at least so many
times their bytes of rows."""

MAX_RANGE_BYTES = 64 << 30
"""Most stored bytes of such a task, whatever the indexes: an object has at most 10,000 parts of 8
MiB, which is 78 GiB."""

SPARK_BYTES = 32 << 30
"""Stored bytes from which on a merge is better done by Spark: one process takes minutes."""


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """Adjacent map outputs or files ``[first, end)`` that become one file."""

    rewrite: bool
    """Whether regions are joined; otherwise they are copied as they are."""
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Sums over the files that would become one, from which a decision is made."""

    num_files: int
    num_regions: int
    data_bytes: int
    index_bytes: int
    region_subpartitions: int
    """Of each region how many subpartitions its file may have: those of files that have a range
    count for that range only."""
    num_rows: int = 0
    """Rows that they store, masked ones too."""
    masked_rows: int = 0

    @staticmethod
    def of(files: Iterable[PartitionedFile]) -> Facts:
        """Return the sums over ``files``."""
        several = tuple(files)
        return Facts(
            len(several),
            sum(file.num_regions for file in several),
            sum(file.data_bytes for file in several),
            sum(file.index_bytes for file in several),
            sum(
                file.num_regions * (file.end_subpartition - file.first_subpartition)
                for file in several
            ),
            sum(file.stored_rows for file in several),
            sum(file.mask.num_rows for file in several),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """When to merge; bad values raise :class:`OptionError` at construction.

    .. code-block:: python

        orders.merge(policy=arrow_shuffle.MergePolicy(rewrite="always"))

    Parameters
    ----------
    rewrite
        ``auto``: join regions where a reader of one subpartition gets too few bytes from each of
        too many regions, by the two bounds below. ``always``: join any two. ``never``: only append.
    min_regions
        Fewer regions are not rewritten: the reads saved are not worth the work.
    min_read_bytes
        Nothing is rewritten where a subpartition has at least this many stored bytes in a region on
        average. Reading fewer bytes costs as much: a read fetches and decodes a whole chunk, about
        four times this size.
    max_fan_in
        Most regions that are joined into one. With little memory it is fewer: see
        :func:`~arrow_format.write.rewrite_plan.plan_fan_in`.
    target_file_bytes
        Files are merged up to this size (data). A file of half this size is not copied, so that no
        byte is copied again and again as small files join.
    max_index_bytes
        Most bytes of the indexes of files merged into one, which are in memory together.
    max_masked_percent
        A map output of which a mask took more of its rows than this is merged by itself if nothing
        else is to be done with it: that frees the bytes of the rows that are gone, and no read
        decodes them any more. 100: never.
    """

    rewrite: RewriteChoice = option("auto", choice(*REWRITE_CHOICES))
    min_regions: int = option(8, whole(2, 1 << 40, "regions"))
    min_read_bytes: int = option(16 << 10, num_bytes(1, 1 << 40))
    max_fan_in: int = option(MAX_FAN_IN, whole(2, 1 << 20, "regions"))
    target_file_bytes: int = option(1 << 30, num_bytes(1, 1 << 50))
    max_index_bytes: int = option(32 << 20, num_bytes(1, 1 << 40))
    max_masked_percent: int = option(20, whole(0, 100, "percent"))

    def __post_init__(self) -> None:
        """Check every value."""
        check_fields(self)

    def should_rewrite(self, facts: Facts, num_subpartitions: int) -> bool:
        """Whether to join the regions of files.

        Parameters
        ----------
        facts
            Of the files that would become one.
        num_subpartitions
            Number of subpartitions.
        """
        if (
            self.rewrite == "never"
            or facts.num_regions < 2
            or facts.index_bytes > self.max_index_bytes
        ):
            return False
        return self.rewrite == "always" or self._is_scattered(facts, num_subpartitions)

    def should_merge_by_subpartition(
        self, facts: Facts, num_subpartitions: int, *, scales: bool = False
    ) -> bool:
        """Whether to join the regions of all files, so that a subpartition is in one of them.

        The numbers are those of :meth:`should_rewrite`, but for those that bound the memory of a
        merge into one file. ``facts`` are of all files of a version; it ``scales`` where some get
        another number of subpartitions by it.
        """
        if self.rewrite == "never":
            return False
        if scales or self.frees_enough(facts):
            return True
        if self.rewrite == "always":
            return facts.region_subpartitions > num_subpartitions
        return self._is_scattered(facts, num_subpartitions)

    def frees_enough(self, facts: Facts) -> bool:
        """Whether so many rows of files are masked that writing the others again is worth it."""
        return 100 * facts.masked_rows > self.max_masked_percent * facts.num_rows

    def _is_scattered(self, facts: Facts, num_subpartitions: int) -> bool:
        """Whether an average subpartition is in many regions, with few bytes in each."""
        # Rounded up: the first or last subpartitions of a file may be empty.
        num_reads = min(-(-facts.region_subpartitions // num_subpartitions), facts.num_regions)
        return (
            num_reads >= self.min_regions
            and facts.data_bytes / (num_reads * num_subpartitions) < self.min_read_bytes
        )

    def range_bytes(self, facts: Facts) -> int:
        """Return about the stored bytes of a file of a merge by subpartition.

        That is ``target_file_bytes``; less where there would be few tasks. But a task reads the
        indexes of all inputs, so its rows are at least four times as many bytes, as far as their
        file fits into an object store.
        """
        shared = max(-(-facts.data_bytes // MIN_RANGES), MIN_RANGE_BYTES)
        worth = max(min(self.target_file_bytes, shared), INDEX_SHARE * facts.index_bytes, 1)
        return min(worth, max(self.target_file_bytes, MAX_RANGE_BYTES))

    def plan_map_task(
        self, files: Sequence[PartitionedFile], num_subpartitions: int
    ) -> PlannedMerge | None:
        """Return the merge of a map task's files at its end; None to keep them.

        They are never appended: a map task has more than one file only where one did not fit.
        """
        if self.should_rewrite(Facts.of(files), num_subpartitions):
            return PlannedMerge(rewrite=True, first=0, end=len(files))
        return None

    def plan_version(
        self, outputs: Sequence[MapOutput], num_subpartitions: int, rescaled_to: int | None = None
    ) -> tuple[PlannedMerge, ...]:
        """Return which map outputs of a version to merge; the others stay as they are.

        Parameters
        ----------
        outputs
            Map outputs in reading order.
        num_subpartitions
            Number of subpartitions.
        rescaled_to
            The number that all files are to have: those of another one are rewritten, unless the
            policy never does. None: they keep theirs.

        Returns
        -------
        tuple
            Disjoint merges, in reading order.
        """
        wanted = None if self.rewrite == "never" else rescaled_to
        planned = (
            self._planned(outputs, first, end, num_subpartitions, wanted)
            for first, end in self._groups(outputs, are_alike=wanted is None)
        )
        return tuple(merge for merge in planned if merge is not None)

    def _planned(
        self,
        outputs: Sequence[MapOutput],
        first: int,
        end: int,
        num_subpartitions: int,
        wanted: int | None,
    ) -> PlannedMerge | None:
        files = [file for output in outputs[first:end] for file in output.files]
        facts = Facts.of(files)
        if wanted is not None and any(file.num_subpartitions != wanted for file in files):
            return PlannedMerge(rewrite=True, first=first, end=end)
        # Joined, rows of files of a multiple would be in another order within a subpartition.
        are_of_version = all(file.num_subpartitions <= num_subpartitions for file in files)
        if are_of_version and self.should_rewrite(facts, num_subpartitions):
            return PlannedMerge(rewrite=True, first=first, end=end)
        fits = facts.num_files == 1 or facts.index_bytes <= self.max_index_bytes
        joins = facts.num_files > 1 and facts.data_bytes <= self.target_file_bytes
        if fits and (joins or self.frees_enough(facts)):
            return PlannedMerge(rewrite=False, first=first, end=end)
        return None

    def _groups(self, outputs: Sequence[MapOutput], *, are_alike: bool) -> list[tuple[int, int]]:
        """Cut the map outputs into groups that fit into one file; a large one is a group alone.

        Where they are to be alike, the files of a group have one number of subpartitions.
        """
        groups: list[tuple[int, int]] = []
        n = 0
        first = 0
        data_bytes = index_bytes = 0
        for i, output in enumerate(outputs):
            facts = Facts.of(output.files)
            is_large = 2 * facts.data_bytes >= self.target_file_bytes
            before, n = n, next((file.num_subpartitions for file in output.files), n)
            if i > first and (
                is_large
                or (are_alike and before not in (0, n))
                or data_bytes + facts.data_bytes > self.target_file_bytes
                or index_bytes + facts.index_bytes > self.max_index_bytes
            ):
                groups.append((first, i))
                first, data_bytes, index_bytes = i, 0, 0
            data_bytes += facts.data_bytes
            index_bytes += facts.index_bytes
            if is_large:
                groups.append((first, i + 1))
                first, data_bytes, index_bytes = i + 1, 0, 0
        if first < len(outputs):
            groups.append((first, len(outputs)))
        return groups
