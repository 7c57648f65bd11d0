"""Connects to obstore: URIs, connections, and the translation of its errors.

Of a store's answer a message shows the status, code and text: never a query, a header or the value
of an option.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, ShuffleError, StorageError
from arrow_format.extras import needed_by
from arrow_format.storage.options import StorageOptions
from arrow_format.storage.protocol import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Schemes, and obstore's class for each."""

_RETRY = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=250),
        "max_backoff": timedelta(seconds=8),
        "base": 4,
    },
}
"""Reports a store that refuses connections after half a minute, one that does not answer (obstore
waits 30 s) after one."""
_OWNER: dict[str, int] = {}
"""The process that obstore runs in."""
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_")

_NO_BUCKET = "NoSuchBucket|ContainerNotFound|bucket does not exist"
_NO_RANGE = "status code: 416|Wanted range starting at"
_ADVICE = (
    (_NO_BUCKET, "There is no such bucket: create it, or check the URI"),
    (
        r"169\.254\.169\.254|metadata\.google|Account must be specified",
        "No credentials were found: set them in the environment of every process, such as "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give storage_options",
    ),
    ("status code: 40[13]", "Check the credentials, and what they allow"),
    ("builder error", "For an endpoint without TLS set AWS_ALLOW_HTTP=true or option allow_http"),
    ("HTTP error", "The store cannot be reached: check endpoint, region and network"),
)


class OutOfRangeError(StorageError):
    """An object has no such range."""


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


def environment_digest(part: str = "") -> str:
    """Return a digest of the environment, of variables with ``part`` in their names only."""
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(_ENVIRONMENT) and part in name
    )
    return hashlib.sha256(repr(variables).encode()).hexdigest()


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
    try:
        return make(bucket, config=dict(options), retry_config=_RETRY)
    except exceptions.UnknownConfigurationKeyError as error:
        msg = f"storage_options: {str(error).splitlines()[0]} See the guide, Object stores"
    except (exceptions.BaseError, OSError, ValueError) as error:
        # Quoted is a value, perhaps of the environment, and perhaps a secret.
        text = re.sub(r'"[^\n]*"', '"***"', str(error).partition("\n\nDebug source")[0])
        advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Check them")
        msg = (
            f"{scheme}://{bucket}: could not connect with the given storage_options and "
            f"environment: {_hidden(_answer(text), options)}. {advice}"
        )
    raise OptionError(msg)  # here, so that it does not refer to the library's error


class StoreErrors:
    """A context that turns an error of obstore into ours: "``where``: ...; cannot ``what``".

    The library's error holds the whole answer, which may repeat the request. So nothing of ours
    refers to it: neither cause nor context, which logs and reporters print, nor any frame. Values
    of ``options`` are hidden.
    """

    def __init__(self, what: str, where: str, options: StorageOptions) -> None:
        self._what = what
        self._where = where
        self._options = options

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ours = None if error is None else _translated(error, self._what, self._where, self._options)
        if error is None or ours is None:
            return
        before = error.__context__
        del kind, error, trace
        try:
            raise ours
        finally:
            ours.__context__ = before  # the error being handled when the library was called


def _translated(
    error: BaseException, what: str, where: str, options: StorageOptions
) -> ShuffleError | None:
    """Return our error for one of obstore; None for any other."""
    exceptions = importlib.import_module("obstore.exceptions")
    if isinstance(error, exceptions.AlreadyExistsError):
        return ObjectExistsError(f"{where}: exists already; cannot {what}")
    if isinstance(error, (exceptions.BaseError, OSError, ValueError)):
        text = str(error).partition("\n\nDebug source")[0]
        if isinstance(error, FileNotFoundError) and not re.search(_NO_BUCKET, text):
            return ObjectNotFoundError(f"{where}: not there; cannot {what}")
        advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Try again")
        msg = f"{where}: {_hidden(_answer(text), options)}; cannot {what}. {advice}"
        return (OutOfRangeError if re.search(_NO_RANGE, text) else StorageError)(msg)
    if type(error).__name__ == "PanicException":  # a value that obstore did not expect
        return StorageError(
            f"{where}: the library obstore gave up; cannot {what}. Check the options: an endpoint "
            "begins with http:// or https://, and no value holds a line break"
        )
    return None


def _hidden(text: str, options: StorageOptions) -> str:
    """Return ``text`` without the secrets of options and environment."""
    secrets = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
    return StorageOptions(secrets).hidden_in(options.hidden_in(text))


def _answer(text: str) -> str:
    """Return what a message may show: status, code and text of the answer, or the first line."""
    status = re.search(r"status code: (\d+[^:]*)", text)
    code = re.search(r"<Code>(.*?)</Code>", text)
    said = re.search(r'<Message>(.*?)[\n<]|"message":\s*"([^"]*)"', text)
    if status:
        parts = [status[1].strip(), code and code[1], said and (said[1] or said[2])]
        return ": ".join(part for part in parts if part)
    # No query of a URL, which may hold a signature, and no user.
    return re.sub(r"(https?://)(?:[^/\s]*@)?([^\s?]*)(\?\S*)?", r"\1\2", text.partition("\n")[0])
