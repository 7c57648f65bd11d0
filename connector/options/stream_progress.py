"""How far a stream has come, and how far its next batch goes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.strict_json import natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.log.changes import Step


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All rows of a version, and of those before it, were read."""

    version: int
    """0: none were."""
    commit_id: str | None = None
    """Whose version it is, so that a shuffle that was made anew is noticed; None where a stream
    begins, of which nothing was read yet, or where nothing tells the id any more."""
    consumed: bool = False
    """Whether rows up to there were read under the name of its consumer; without a commit id."""

    @property
    def begins(self) -> bool:
        """Whether nothing was read yet."""
        return self.commit_id is None and not self.consumed

    def to_json(self) -> dict[str, int | str | bool]:
        """As Spark keeps it in its checkpoint."""
        if self.begins:
            return {"version": self.version}
        if self.commit_id is None:
            return {"version": self.version, "consumed": True}
        return {"version": self.version, "commitId": self.commit_id}

    @staticmethod
    def from_json(value: Mapping[str, object]) -> StreamOffset:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        OptionError
            It is of another source.
        """
        try:
            version = natural(value["version"])
            commit_id, consumed = value.get("commitId"), value.get("consumed", False)
            if (commit_id is None or isinstance(commit_id, str)) and isinstance(consumed, bool):
                return StreamOffset(version, commit_id, consumed)
        except (KeyError, ValueError, AttributeError, TypeError):
            pass
        msg = (
            f"offset {value!r} in the checkpoint is not of this source; it has a version and a "
            "commitId. Give the query the checkpointLocation that it had"
        )
        raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a batch may have at most; None: any number. A version is never split."""

    max_versions: int | None = None
    """Versions that add rows."""
    max_rows: int | None = None
    max_bytes: int | None = None
    """Bytes of the data files."""

    @property
    def are_none(self) -> bool:
        """Whether a batch may have anything."""
        return self == StepLimits()

    def tightened(self, other: StepLimits) -> StepLimits:
        """Return what keeps to both."""
        return StepLimits(
            _smaller(self.max_versions, other.max_versions),
            _smaller(self.max_rows, other.max_rows),
            _smaller(self.max_bytes, other.max_bytes),
        )

    def end_of(self, steps: Iterable[Step]) -> int | None:
        """Return the version up to which a batch goes; None where there is nothing to read.

        The first version with rows is always taken, since a batch of none would never end. What is
        not needed of ``steps`` is not asked for.

        Parameters
        ----------
        steps
            The versions that follow, in order.
        """
        versions = rows = num_bytes = 0
        end = None
        for step in steps:
            if not step.adds:  # nothing to read, and nothing to wait for
                end = step.version if versions else end
                continue
            versions, rows, num_bytes = (
                versions + 1,
                rows + step.num_rows,
                num_bytes + step.num_bytes,
            )
            if versions > 1 and not self._allow(versions, rows, num_bytes):
                break
            end = step.version
        return end

    def _allow(self, versions: int, rows: int, num_bytes: int) -> bool:
        return (
            (self.max_versions is None or versions <= self.max_versions)
            and (self.max_rows is None or rows <= self.max_rows)
            and (self.max_bytes is None or num_bytes <= self.max_bytes)
        )


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
