"""How obstore is reached: URIs, connections, and what is told of its errors.

What a message tells of a store's answer are its status, code and text: never a query, a header or
the value of an option.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, StorageError
from arrow_format.storage_protocol import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arrow_format.storage_options import StorageOptions

STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Schemes, and the class of obstore that speaks the protocol of each."""

_RETRY = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=250),
        "max_backoff": timedelta(seconds=8),
        "base": 4,
    },
}
"""A store that refuses connections is an error after half a minute, one that is silent (obstore
waits 30 s for an answer) after one."""
_OWNER: dict[str, int] = {}
"""The process that obstore works in."""
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
    """Return scheme, bucket and prefix of a URI.

    Raises
    ------
    OptionError
        It is none of an object store, or holds more than that.
    """
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
    """Return the library.

    Raises
    ------
    OptionError
        It is not installed.
    """
    try:
        return importlib.import_module("obstore")
    except ImportError:
        msg = (
            "object stores need the package obstore, which is not installed: "
            "pip install 'arrow-shuffle[object-stores]'"
        )
        raise OptionError(msg) from None


def connect(scheme: str, bucket: str, options: StorageOptions) -> Any:  # noqa: ANN401
    """Return the store of obstore for a bucket; it keeps connections, so it is made once.

    Raises
    ------
    OptionError
        An option is not known, or none of obstore's values.
    StorageError
        This process was forked from one that used a store.
    """
    environment = frozenset(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    return _connect(scheme, bucket, options, environment, os.getpid())


@lru_cache(8)
def _connect(
    scheme: str,
    bucket: str,
    options: StorageOptions,
    environment: frozenset[tuple[str, str]],
    process: int,
) -> Any:  # noqa: ANN401
    del environment  # obstore looks into it itself
    _check_process(process)
    obstore()
    exceptions = importlib.import_module("obstore.exceptions")
    make: Callable[..., Any] = getattr(importlib.import_module("obstore.store"), STORES[scheme])
    try:
        return make(bucket, config=dict(options), retry_config=_RETRY)
    except exceptions.UnknownConfigurationKeyError as error:
        msg = f"storage_options: {str(error).splitlines()[0]} See the guide, Object stores"
        raise OptionError(msg) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        # What is quoted is a value, of the environment perhaps, and perhaps a secret.
        text = re.sub(r'"[^\n]*"', '"***"', str(error).partition("\n\nDebug source")[0])
        advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Check them")
        msg = (
            f"{scheme}://{bucket}: storage_options or environment do not do: "
            f"{options.hidden_in(_answer(text))}. {advice}"
        )
        raise OptionError(msg) from None


def _check_process(process: int) -> None:
    """Refuse a fork of a process that used a store: it lacks the threads that do the work."""
    if process != _OWNER.setdefault("process", process):
        msg = (
            "this process was forked from one that used an object store before, and cannot use "
            "one: start processes by spawn or forkserver"
        )
        raise StorageError(msg)


@contextlib.contextmanager
def store_errors(what: str, where: str, options: StorageOptions) -> Iterator[None]:
    """Turn an error of obstore into ours, with what was tried and where."""
    exceptions = importlib.import_module("obstore.exceptions")
    # Never "from error": the whole answer stands in there, and what it repeats of the request.
    try:
        yield
    except exceptions.AlreadyExistsError:
        msg = f"{where}: exists already; cannot {what}"
        raise ObjectExistsError(msg) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        text = str(error).partition("\n\nDebug source")[0]
        if isinstance(error, FileNotFoundError) and not re.search(_NO_BUCKET, text):
            msg = f"{where}: not there; cannot {what}"
            raise ObjectNotFoundError(msg) from None
        advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Try again")
        answer = options.hidden_in(_answer(text))
        msg = f"{where}: {answer}; cannot {what}. {advice}"
        raise (OutOfRangeError if re.search(_NO_RANGE, text) else StorageError)(msg) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a value that obstore did not expect
            raise
        msg = (
            f"{where}: the library obstore gave up; cannot {what}. Check the options: an endpoint "
            "begins with http:// or https://, and no value holds a line break"
        )
        raise StorageError(msg) from None


def _answer(text: str) -> str:
    """Return what may be shown of an error: the status, its code and text, or what went wrong."""
    status = re.search(r"status code: (\d+[^:]*)", text)
    code = re.search(r"<Code>(.*?)</Code>", text)
    said = re.search(r'<Message>(.*?)[\n<]|"message":\s*"([^"]*)"', text)
    if status:
        parts = [status[1].strip(), code and code[1], said and (said[1] or said[2])]
        return ": ".join(part for part in parts if part)
    # No query of a URL, where signatures stand, and no user of one.
    return re.sub(r"(https?://)(?:[^/\s]*@)?([^\s?]*)(\?\S*)?", r"\1\2", text.partition("\n")[0])
