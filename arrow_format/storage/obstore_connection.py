"""Connects to obstore: URIs, and connections."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, StorageError
from arrow_format.extras import needed_by
from arrow_format.storage.credentials import PROVIDER, provider_of
from arrow_format.storage.options import STORES, VARIABLES
from arrow_format.storage.store_errors import advice_for, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arrow_format.storage.options import StorageOptions

_RETRY: dict[str, Any] = {
    # The time ends them, not their number: so many do not fit into it.
    "max_retries": 1_000,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=250),
        "max_backoff": timedelta(seconds=8),
        "base": 4,
    },
}
"""A store that refuses connections, or is silent, is reported after about a minute; one that comes
back within it is not noticed. A request that is silent has 30 s, by obstore."""


def patience_s() -> float:
    """Return for how long requests are repeated."""
    seconds: float = _RETRY["retry_timeout"].total_seconds()
    return seconds


_OWNER: dict[str, int] = {}
"""The process that obstore runs in."""
WHICH_STORE = r"(?<!METADATA_)(?<!MSI_)(?<!IDENTITY_)ENDPOINT|URL|ACCOUNT_NAME|EMULATOR"
"""In the names of variables that say which store it is, and nothing of credentials, as where a
service is that gives them."""


def parse_uri(uri: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix; raises :class:`OptionError` for any other URI."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if "@" in bucket or "?" in rest:  # not to be repeated in a message
        msg = (
            f"path={scheme}://...: expected {scheme}://bucket/prefix and nothing else; credentials "
            "belong into the environment or storage_options"
        )
        raise OptionError(msg)
    if not bucket or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        msg = f"path={uri!r}: expected {scheme}://bucket/prefix"
        raise OptionError(msg)
    if "\\" in rest:
        msg = (
            f"path={uri!r}: has a backslash, which some stores take for a slash, so that it would "
            "be another place; use / between names, and none in them"
        )
        raise OptionError(msg)
    if scheme == "az" and any(part.endswith(".") for part in prefix.split("/")):
        msg = f"path={uri!r}: a name ends in a dot, which Azure may leave out; give it another end"
        raise OptionError(msg)
    return scheme, bucket, prefix


def obstore() -> Any:  # noqa: ANN401
    """Return the library; raises :class:`MissingPackageError` where it is not installed."""
    with needed_by("an object store"):
        return importlib.import_module("obstore")


def connect(scheme: str, bucket: str, options: StorageOptions) -> Any:  # noqa: ANN401
    """Return obstore's store for a bucket, made once, since it keeps connections.

    Raises :class:`OptionError` for an unknown option or a bad value, and :class:`StorageError` in a
    process that was forked from one that used a store.
    """
    return _connect(scheme, bucket, options, environment_digest(), os.getpid())


def environment_digest(names: str = "") -> str:
    """Return a digest of the environment, of variables only in whose names a pattern is."""
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(tuple(VARIABLES.values())) and re.search(names, name)
    )
    return hashlib.sha256(repr(variables).encode()).hexdigest()


def which_store(scheme: str, options: Mapping[str, str]) -> frozenset[str]:
    """Return what says which store it is, as endpoint and account: options, else the environment.

    Values alone, since a name has several spellings.
    """
    prefix = VARIABLES[scheme]
    ours = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    for given in (options, ours):
        found = frozenset(
            value.rstrip("/") for name, value in given.items() if re.search(WHICH_STORE, name, re.I)
        )
        if found:
            break
    return found


@lru_cache(8)
def _connect(
    scheme: str,
    bucket: str,
    options: StorageOptions,
    environment: str,
    process: int,
) -> Any:  # noqa: ANN401
    del environment  # obstore reads it itself
    if process != _OWNER.setdefault("process", process):  # a fork lacks the library's threads
        msg = (
            "this process was forked from one that used an object store before, and cannot use "
            "one: start processes by spawn or forkserver"
        )
        raise StorageError(msg)
    obstore()
    exceptions = importlib.import_module("obstore.exceptions")
    make: Callable[..., Any] = getattr(importlib.import_module("obstore.store"), STORES[scheme])
    config = dict(options)
    provider = provider_of(options)
    config.pop(PROVIDER, None)
    if scheme == "gs" and "GOOGLE_ALLOW_HTTP" not in os.environ:
        # Unlike for the others, obstore allows it unless an option refuses it.
        config = {"allow_http": config.pop("google_allow_http", "false")} | config
    try:
        return make(bucket, config=config, retry_config=_RETRY, credential_provider=provider)
    except exceptions.UnknownConfigurationKeyError as error:
        msg = f"storage_options: {str(error).splitlines()[0]} See the guide, Object stores"
    except (exceptions.BaseError, OSError, ValueError) as error:
        # Quoted is a value, perhaps of the environment, and perhaps a secret.
        text = re.sub(r'"[^\n]*"', '"***"', str(error).partition("\n\nDebug source")[0])
        msg = (
            f"{scheme}://{bucket}: could not connect with the given storage_options and "
            f"environment: {shown(text, options)}. "
            f"{advice_for(text, scheme, options) or 'Check them'}"
        )
    raise OptionError(msg)  # here, so that it does not refer to the library's error
