"""What the commit log says of a result beside its rows: its type, its bounds, whose it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, ResultReleasedError
from arrow_format.options import ResultPartitionType, check_result_type
from arrow_format.process_identity import ProcessIdentity
from arrow_format.strict_json import natural, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.options import WriteOptions


@dataclass(frozen=True, slots=True)
class ResultDescription:
    """What the commit log says of a result beside its rows."""

    type: ResultPartitionType = ResultPartitionType.BLOCKING_PERSISTENT
    max_unconsumed_bytes: int | None = None
    """Of a bounded result: stored bytes that may be unconsumed; None: any number."""
    max_unconsumed_versions: int | None = None
    """Of a bounded result: versions that may be unconsumed; None: any number."""
    owners: tuple[ProcessIdentity, ...] = ()
    """Of a BLOCKING result: the applications that wrote it, by their processes, the last one last,
    without those that had ended when another wrote. It goes when none of them is left."""


DEFAULT_UNCONSUMED_VERSIONS = 16
"""Versions of a bounded result that may be unconsumed, where no bound is given."""

PERSISTENT = ResultDescription()
"""What an entry that says nothing means, as all did before there were other types."""


def describe_result(
    options: WriteOptions,
    owners: tuple[ProcessIdentity, ...],
    there: ResultDescription | None,
) -> ResultDescription:
    """Return what a commit says of its result.

    Parameters
    ----------
    options
        How it is written.
    owners
        The applications that it is written for.
    there
        The result that is appended to, with those of its owners that are left; None for a new one.

    Raises
    ------
    OptionError
        What is there is of another type.
    """
    if options.result_type is not None:
        kind = check_result_type(options.result_type)
    elif there is None:
        return PERSISTENT
    elif there.type is ResultPartitionType.BLOCKING:
        return replace(there, owners=_together(there.owners, owners))
    else:
        return there
    if there is not None and there.type is not kind:
        msg = (
            f"result_type={kind.name}: what is there is {there.type.name}, and a result has one "
            "type. Leave it out, or overwrite what is there"
        )
        raise OptionError(msg)
    max_bytes, most_versions = options.max_unconsumed_bytes, options.max_unconsumed_versions
    if kind.is_bounded and max_bytes is None and most_versions is None:
        if there is not None:
            return there
        most_versions = DEFAULT_UNCONSUMED_VERSIONS
    if kind is not ResultPartitionType.BLOCKING:
        owners = ()
    elif there is not None:
        owners = _together(there.owners, owners)
    return ResultDescription(kind, max_bytes, most_versions, owners)


def _together(
    before: tuple[ProcessIdentity, ...], now: tuple[ProcessIdentity, ...]
) -> tuple[ProcessIdentity, ...]:
    """Owners of before and those that write now, once each, the last last."""
    return (*(one for one in before if one not in now), *now)


@dataclass(frozen=True, slots=True)
class Released:
    """What a release took away."""

    through: int
    """All versions up to this one; 0 where there was none, and only what was pending went."""
    by: str
    """Who released it and why, for people."""
    ended: bool
    """Whether the result is gone as a whole; else only what was consumed is, and more may come."""


def released_error(root: str, released: Released) -> ResultReleasedError:
    """Return the error of whoever asks for what was released from the shuffle at ``root``."""
    last = f"version {released.through} was its last" if released.through else "it had no version"
    what = (
        f"the result was released ({released.by}); {last}. Write it again"
        if released.ended
        else f"all versions up to {released.through} were released ({released.by}). Begin anew "
        "at a later one"
    )
    return ResultReleasedError(
        f"{root}: {what}, or keep it: resultType BLOCKING_PERSISTENT is released by name alone"
    )


def result_to_json(result: ResultDescription) -> dict[str, Any]:
    """JSON of a description."""
    value: dict[str, Any] = {"type": result.type.name}
    if result.max_unconsumed_bytes is not None:
        value["max_unconsumed_bytes"] = result.max_unconsumed_bytes
    if result.max_unconsumed_versions is not None:
        value["max_unconsumed_versions"] = result.max_unconsumed_versions
    if result.owners:
        value["owners"] = [one.to_json() for one in result.owners]
    return value


def result_from_json(value: Mapping[str, Any] | None) -> ResultDescription:
    """Inverse of :func:`result_to_json`; None is what older entries say.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It is not of that form.
    """
    if value is None:
        return PERSISTENT
    limits = {
        name: natural(value[name])
        for name in ("max_unconsumed_bytes", "max_unconsumed_versions")
        if value.get(name) is not None
    }
    return ResultDescription(
        type=ResultPartitionType[text(value["type"])],
        owners=tuple(ProcessIdentity.from_json(one) for one in value.get("owners", ())),
        **limits,
    )


def released_to_json(released: Released) -> dict[str, Any]:
    """JSON of what a release says."""
    return {"through": released.through, "by": released.by, "ended": released.ended}


def released_from_json(value: Mapping[str, Any]) -> Released:
    """Inverse of :func:`released_to_json`; raises as :func:`result_from_json` does."""
    if not isinstance(value["ended"], bool):
        msg = f"a {type(value['ended']).__name__} is neither true nor false"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return Released(natural(value["through"]), text(value["by"])[:1000], value["ended"])
