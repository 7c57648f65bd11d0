"""What the commit log says of a result besides its rows: type, bounds, owners, release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from arrow_format.errors import OptionError, ResultReleasedError
from arrow_format.model import Natural
from arrow_format.options import ResultPartitionType, check_result_type
from arrow_format.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from arrow_format.options import WriteOptions


class ResultDescription(Struct, frozen=True, omit_defaults=True):
    """Type, bounds and owners of a result."""

    type: ResultPartitionType = ResultPartitionType.BLOCKING_PERSISTENT
    max_unconsumed_bytes: Natural | None = None
    """Of a bounded result: stored bytes that may be unconsumed; None: unlimited."""
    max_unconsumed_versions: Natural | None = None
    """Of a bounded result: versions that may be unconsumed; None: unlimited."""
    owners: tuple[ProcessIdentity, ...] = ()
    """Of a BLOCKING result: the applications that wrote it, by their processes, the last one last,
    without those that had ended when another wrote. It is released when all have ended."""


DEFAULT_UNCONSUMED_VERSIONS = 16
"""Versions of a bounded result that may be unconsumed, where no bound is given."""

PERSISTENT = ResultDescription()
"""What an entry without a description means, as all had none before there were other types."""


def describe_result(
    options: WriteOptions, owners: tuple[ProcessIdentity, ...], existing: ResultDescription | None
) -> ResultDescription:
    """Return what a commit with ``options``, by the applications ``owners``, says of its result.

    ``existing`` is the result that is appended to, with its owners that still run; None for a new
    one. Raises OptionError where that is of another type.
    """
    if options.result_type is not None:
        kind = check_result_type(options.result_type)
    elif existing is None:
        return PERSISTENT
    elif existing.type is ResultPartitionType.BLOCKING:
        return replace(existing, owners=_together(existing.owners, owners))
    else:
        return existing
    if existing is not None and existing.type is not kind:
        msg = (
            f"result_type={kind.name}: the existing result is {existing.type.name}, and a result "
            "has one type. Leave the option out, or overwrite the result"
        )
        raise OptionError(msg)
    max_bytes, max_versions = options.max_unconsumed_bytes, options.max_unconsumed_versions
    if kind.is_bounded and max_bytes is None and max_versions is None:
        if existing is not None:
            return existing
        max_versions = DEFAULT_UNCONSUMED_VERSIONS
    if kind is not ResultPartitionType.BLOCKING:
        owners = ()
    elif existing is not None:
        owners = _together(existing.owners, owners)
    return ResultDescription(kind, max_bytes, max_versions, owners)


def _together(
    before: tuple[ProcessIdentity, ...], now: tuple[ProcessIdentity, ...]
) -> tuple[ProcessIdentity, ...]:
    """Return earlier and present owners, each once; present ones last."""
    return (*(owner for owner in before if owner not in now), *now)


class Released(Struct, frozen=True):
    """What a release took away."""

    through: Natural
    """All versions up to this one; 0 where the result had none, only pending map outputs."""
    by: str
    """Who released it and why, for people."""
    ended: bool
    """Whether the result was released as a whole; else what was consumed, and more may come."""
    at: Natural = 0
    """Number of the entry that released it; set when that is committed."""


def released_error(root: str, released: Released) -> ResultReleasedError:
    """Return the error of a reader that asks for released rows of the shuffle at ``root``."""
    last = f"version {released.through} was its last" if released.through else "it had no version"
    what = (
        f"the result was released ({released.by}); {last}. Write it again"
        if released.ended
        else f"all versions up to {released.through} were released ({released.by}). Start at a "
        "later one"
    )
    return ResultReleasedError(
        f"{root}: {what}, or keep it: resultType BLOCKING_PERSISTENT is released by name alone"
    )
