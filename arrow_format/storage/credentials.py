"""Credentials of an object store that end: what refreshes them, and when they end if nothing does.

The identity of a machine or container is refreshed by obstore, as is what a provider returns, which
an option names. What is given as text ends when it says, if it can be read there.
"""

from __future__ import annotations

import base64
import inspect
import json
import logging
import os
import pkgutil
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from arrow_format.errors import OptionError, StorageError
from arrow_format.storage.options import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROVIDER = "credential_provider"
"""The option that names a provider; not one of obstore's, which takes the object itself."""
PROVIDER_VARIABLE = "ARROW_SHUFFLE_CREDENTIAL_PROVIDER"
"""The variable of the environment that does so where no options are given."""

REFRESHED = (
    "Use credentials that are refreshed: the identity of the machine or container, or option "
    "credential_provider (see the guide, Object stores)"
)

_LOGGER = logging.getLogger("arrow_shuffle")
_SOON = timedelta(hours=1)
_ANNOUNCED: set[datetime] = set()


@dataclass(frozen=True, slots=True)
class End:
    """When credentials end that were given as text."""

    at: datetime
    source: str
    """Name of the option or variable that holds them."""

    def is_past(self, now: datetime) -> bool:
        """Whether they are of no use any more."""
        return self.at <= now

    def __str__(self) -> str:
        return f"credentials of {self.source} (until {self.at:%Y-%m-%d %H:%M:%S} UTC)"


def options_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a store for which none were given. Pure.

    Obstore reads all else from the environment itself.
    """
    named = environment.get(PROVIDER_VARIABLE)
    return {PROVIDER: named} if named else {}


def provider_of(options: Mapping[str, str]) -> Callable[[], Any] | None:
    """Return the provider that options name; None where they name none.

    Raises :class:`OptionError` where there is nothing of that name in this process, or nothing that
    obstore can call.
    """
    named = options.get(PROVIDER)
    if named is None:
        return None
    if not re.fullmatch(r"[\w.]+:[\w.]+", named):
        msg = f'{PROVIDER}={named!r}: expected "package.module:name" of a function or class'
        raise OptionError(msg)
    failed = ""
    provider: Any = None
    try:
        found = pkgutil.resolve_name(named)
        provider = found() if isinstance(found, type) else found
    except Exception as error:
        failed = type(error).__name__
    if failed:  # here, so that it does not refer to that error, which may quote a secret
        msg = (
            f"{PROVIDER}={named!r}: {failed} when this process loaded it; every "
            "process must be able to import it, and a class is made without arguments"
        )
        raise OptionError(msg)
    if not callable(provider) or _is_asynchronous(provider):
        what = "is asynchronous" if callable(provider) else "cannot be called"
        msg = f"{PROVIDER}={named!r}: {what}; expected what returns credentials when it is called"
        raise OptionError(msg)
    return cast("Callable[[], Any]", provider)


def _is_asynchronous(provider: Callable[[], Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (provider, type(provider).__call__)))


def end_of(scheme: str, options: Mapping[str, str], environment: Mapping[str, str]) -> End | None:
    """Return when the credentials end that options give, or else the environment. Pure.

    None where they do not say it: of keys, which do not end (on S3 without a session token), of
    opaque tokens, and where a provider refreshes them.
    """
    if scheme not in _READ_FROM or PROVIDER in options:
        return None
    if not options.keys().isdisjoint(("access_key_id", "aws_access_key_id")):
        return None  # not those of the environment
    prefix = VARIABLES[scheme]
    variables = [(name, text) for name, text in environment.items() if name.startswith(prefix)]
    given = [*options.items(), *variables]
    if scheme == "s3" and not any(_SESSION_TOKEN.fullmatch(name.lower()) for name, _ in given):
        return None
    for pattern, read in _READ_FROM[scheme]:
        for name, text in given:
            if pattern.fullmatch(name.lower()):
                at = read(text)
                return None if at is None else End(at, name)
    return None


def check_end(root: str, options: Mapping[str, str]) -> None:
    """Raise StorageError where the credentials have ended, before anything is written with them.

    Logs, once in a process, that they end soon: a job may take longer. What is under way when they
    end goes on until the store refuses it.
    """
    end = end_of(root.partition(":")[0], options, os.environ)
    if end is None:
        return
    now = datetime.now(UTC)
    if end.is_past(now):
        msg = f"{root}: the {end} have ended; nothing more is written with them. {REFRESHED}"
        raise StorageError(msg)
    if end.at in _ANNOUNCED or end.at - now > _SOON:
        return
    _ANNOUNCED.add(end.at)
    _LOGGER.warning("%s: the %s end soon, and a job that takes longer. %s", root, end, REFRESHED)


def _moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _end_of_sas(text: str) -> datetime | None:
    return _moment(parse_qs(text.lstrip("?")).get("se", [""])[0])


def _end_of_jwt(token: str) -> datetime | None:
    """Return the time in a token of OpenID; other tokens have none."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (ValueError, LookupError, TypeError, OverflowError, OSError):
        return None


def _no_end(_text: str) -> None:
    return None


_SESSION_TOKEN = re.compile("(aws_)?(session_)?token")
_READ_FROM: dict[str, tuple[tuple[re.Pattern[str], Callable[[str], datetime | None]], ...]] = {
    # `aws configure export-credentials --format env` tells it beside the credentials.
    "s3": ((re.compile("aws_credential_expiration"), _moment),),
    "az": (
        (re.compile("(azure_storage_|bearer_)?token"), _end_of_jwt),
        (
            re.compile(
                "(azure_storage_)?(account_key|access_key|master_key)|"
                "(azure_)?(storage_)?client_secret|(azure_)?federated_token_file"
            ),
            _no_end,
        ),
        (re.compile("(azure_storage_)?sas_(key|token)"), _end_of_sas),
    ),
}
"""Names of credentials, in the order in which obstore looks for them, and how to read their end."""
