"""Options by the names that Spark's users give them: fields of settings, made from texts.

:mod:`arrow_format.option_fields` says what a field of settings is: values, text and name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from arrow_format.errors import OptionError
from arrow_format.storage.open import scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.option_fields import Kind

Settings = TypeVar("Settings")


_PLACES: dict[str, str] = {}
"""Where each option may be given, by its name in lower case."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the data source."""

    name: str
    """As documented; Spark hands names over in lower case."""
    settings: type
    field: str
    """What it sets."""
    kind: Kind
    default: Any
    only: str
    """Where it is an option, see :func:`arrow_format.option_fields.option`."""


def _options_of(settings: type) -> tuple[Option, ...]:
    options = []
    for field in fields(settings):
        meta = field.metadata
        if meta.get("name", "") != "":
            first, *others = field.name.split("_")
            name = meta["name"] or first + "".join(map(str.capitalize, others))
            kind, only = meta["kind"], meta["only"]
            options.append(Option(name, settings, field.name, kind, field.default, only))
    return tuple(options)


def options_of(place: str, *settings: type, only: str = "") -> tuple[Option, ...]:
    """Return the options that set fields of dataclasses, in their order.

    Those of batches and streams, or with ``only`` those that are in one place alone. ``place`` is
    what messages call it where one of them is given elsewhere; empty where no user may give it.
    """
    found = [option for each in settings for option in _options_of(each) if option.only == only]
    if place:
        _PLACES.update({option.name.lower(): place for option in found})
    return tuple(found)


def build(settings: type[Settings], given: Mapping[str, str], **more: object) -> Settings:
    """Make an instance of a dataclass from the texts of the options that set its fields.

    ``given`` has documented names; ``more`` are fields that are settled already. An OptionError
    of the dataclass is raised with option and text as the user wrote them.
    """
    options = {option.field: option for option in _options_of(settings)}
    values = {
        field: option.kind.of_text(f"option {option.name}", given[option.name])
        for field, option in options.items()
        if option.name in given
    }
    try:
        return settings(**values, **more)
    except OptionError as error:
        if error.argument not in options:
            raise
        name, problem = options[error.argument].name, error.problem
    shown = f"={given[name]!r}" if name in given else ""
    msg = f"option {name}{shown}: {problem}"
    raise OptionError(msg)


# Names --------------------------------------------------------------------------------------------


STORAGE_PREFIX = "storage."
"""Options with this prefix go to the object store."""

_SQL_PROPERTIES = ("provider", "location", "owner", "external", "is_managed_location", "comment")

_VERSIONS = "give option version: a number, a tag, or a time"
_HINTS = {
    "where": "give option filter",
    "columns": "columns are chosen by .schema('k BIGINT, v STRING')",
    "paths": "a shuffle has one path, as in load(path); of several take df.union",
    "timestampasof": _VERSIONS,
    "versionasof": _VERSIONS,
}
"""Options of other data sources, or of functions of ours, in lower case, and what to do instead."""


def known_options(
    options: Mapping[str, str],
    allowed: Mapping[str, Iterable[Option]],
    *others: str,
) -> dict[str, str]:
    """Return Spark's options by their documented names; those of an object store in lower case.

    ``allowed`` has the known options, by what they are called together in messages; ``others`` are
    names that messages do not list. Raises OptionError for an unknown option, and without an
    absolute path. Properties that Spark's catalog adds to a table are dropped.
    """
    known_by_name = {option.name: option for each in allowed.values() for option in each}
    names = {name.lower(): name for name in ("path", *known_by_name, *others)}
    is_table = "provider" in options
    known = {}
    for key, value in options.items():
        if is_table and (key in _SQL_PROPERTIES or key.startswith("option.")):
            continue
        name = key.lower() if key.lower().startswith(STORAGE_PREFIX) else names.get(key.lower())
        if name is None:
            raise _unknown(key, names, allowed)
        if value or name not in known_by_name or not known_by_name[name].kind.may_be_empty:
            known[name] = value
    path = known.get("path")
    if not path:
        msg = (
            "no path was given; use load(path) or save(path). Spark does not hand the OPTIONS of a "
            "table on: give them where it is used, as in INSERT INTO t WITH (path '...'), SELECT "
            "... FROM t WITH (path '...'), spark.read.option('path', '...').table('t') and "
            "df.writeTo('t').option('path', '...').append(), or use CREATE TEMPORARY VIEW t ... "
            "USING arrow_shuffle OPTIONS (path '...'). Instead of CREATE TABLE t ... AS SELECT: "
            "df.writeTo('t').using('arrow_shuffle').option('path', '...').create()"
        )
        raise OptionError(msg)
    if scheme_of(path) is None and not path.startswith("/"):
        msg = (
            f"path={path!r} is relative; give an absolute path. This runs in a process of Spark's "
            "own, whose working directory is not yours and may be deleted with the session"
        )
        raise OptionError(msg)
    return known


def _unknown(
    given: str, names: Mapping[str, str], allowed: Mapping[str, Iterable[Option]]
) -> OptionError:
    hint = _HINTS.get(given.lower())
    alike = get_close_matches(given.lower(), names, 1)
    if hint is not None:
        return OptionError(f"option {given!r} is not known: {hint}")
    if given.lower() in _PLACES:
        place = _PLACES[given.lower()]
        return OptionError(f"option {given!r} is not known here: it is one of {place}")
    if alike:
        return OptionError(f"option {given!r} is not known (did you mean {names[alike[0]]!r}?)")
    lists = ", ".join(
        f"{what} are {', '.join(option.name for option in each)}" for what, each in allowed.items()
    )
    return OptionError(
        f"option {given!r} is not known; {lists}; those of an object store begin with "
        f"{STORAGE_PREFIX}, such as {STORAGE_PREFIX}aws_region"
    )
