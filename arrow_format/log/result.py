"""What the commit log says of a result besides its rows: type, bounds, owners, release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, ResultReleasedError
from arrow_format.options import ResultPartitionType, WriteOptions, check_result_type
from arrow_format.process_identity import ProcessIdentity
from arrow_format.strict_json import natural, text

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ResultDescription:
    """Type, bounds and owners of a result."""

    type: ResultPartitionType = ResultPartitionType.BLOCKING_PERSISTENT
    max_unconsumed_bytes: int | None = None
    """Of a bounded result: stored bytes that may be unconsumed; None: unlimited."""
    max_unconsumed_versions: int | None = None
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


@dataclass(frozen=True, slots=True)
class Released:
    """What a release took away."""

    through: int
    """All versions up to this one; 0 where the result had none, only pending map outputs."""
    by: str
    """Who released it and why, for people."""
    ended: bool
    """Whether the result was released as a whole; else what was consumed, and more may come."""


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


def result_to_json(result: ResultDescription) -> dict[str, Any]:
    """Encode a description."""
    value = {
        "type": result.type.name,
        "max_unconsumed_bytes": result.max_unconsumed_bytes,
        "max_unconsumed_versions": result.max_unconsumed_versions,
        "owners": [owner.to_json() for owner in result.owners] or None,
    }
    return {name: field for name, field in value.items() if field is not None}


def result_from_json(value: Mapping[str, Any] | None) -> ResultDescription:
    """Inverse of :func:`result_to_json`; None for an entry without a description."""
    if value is None:
        return PERSISTENT
    limits = {
        name: natural(value[name])
        for name in ("max_unconsumed_bytes", "max_unconsumed_versions")
        if value.get(name) is not None
    }
    return ResultDescription(
        type=ResultPartitionType[text(value["type"])],
        owners=tuple(ProcessIdentity.from_json(owner) for owner in value.get("owners", ())),
        **limits,
    )


def released_to_json(released: Released) -> dict[str, Any]:
    """Encode what was released."""
    return {"through": released.through, "by": released.by, "ended": released.ended}


def released_from_json(value: Mapping[str, Any]) -> Released:
    """Inverse of :func:`released_to_json`."""
    if not isinstance(value["ended"], bool):
        msg = f"a {type(value['ended']).__name__} is neither true nor false"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return Released(natural(value["through"]), text(value["by"])[:1000], value["ended"])
