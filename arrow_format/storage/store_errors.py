"""Translates the errors of obstore.

Of a store's answer a message shows the status, code and text: never a query, a header or the value
of an option.
"""

from __future__ import annotations

import importlib
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError, StorageError
from arrow_format.storage.credentials import REFRESHED, end_of
from arrow_format.storage.options import VARIABLES, StorageOptions
from arrow_format.storage.protocol import (
    DeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    PutRefusedError,
)

if TYPE_CHECKING:
    from types import TracebackType

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_NO_BUCKET = "NoSuchBucket|ContainerNotFound|bucket does not exist"
_FORGOTTEN = "NoSuchUpload|InvalidBlockList"
_NO_RANGE = "status code: 416|Wanted range starting at"
_CUT = "request or response body error|bulk delete response"
_UNANSWERED = "HTTP error: (?!builder error)"
_EXPIRED = (
    # S3; Azure, of a SAS and of a token.
    "ExpiredToken|TokenRefreshRequired|Signature not valid in the specified time frame|"
    "[Tt]oken (?:has|is) expired"
)
_FROM_PROVIDER = r"External \w+ credential provider: (\w+)"
_NO_CREDENTIALS = (
    # Services that a machine or container of each cloud has.
    r"169\.254\.169\.254|/latest/api/token|/latest/meta-data|/computeMetadata/|"
    r"[?&]resource=https%3A%2F%2Fstorage\.azure\.com|Account must be specified"
)
_REFUSED = r"\bcode: 40[13]"
_NOT_TAKEN = r"\bcode: (?!408|409|412|429)4\d\d"
_REPEATED = r"after \d+ retries"
"""By obstore: an earlier answer, that the store failed, does not say what it did."""
_ADVICE = (
    (_NO_BUCKET, "There is no such bucket: create it, or check the URI"),
    (_FORGOTTEN, "The store has forgotten the parts that were uploaded: write it again"),
    (
        _NO_CREDENTIALS,
        "No credentials were found: set them in the environment of every process, such as "
        "{credentials}, or give storage_options",
    ),
    (_EXPIRED, f"The credentials have expired. {REFRESHED}"),
    (_FROM_PROVIDER, "Call the credential_provider in such a process: it raised this"),
    (r"\bcode: 401", f"Check the credentials; a token may have expired. {REFRESHED}"),
    (_REFUSED, "Check the credentials, and what they allow"),
    ("builder error", "For an endpoint without TLS set {prefix}ALLOW_HTTP=true or allow_http"),
    ("HTTP error", "The store cannot be reached: check endpoint, region and network"),
    (
        _NOT_TAKEN,
        # S3 answers so to a look at an object with a token that has expired, and says no more.
        "The store does not take such a request: check the names in the URI, the options, and "
        "whether a token has expired",
    ),
)
_ANONYMOUS = (
    "Without credentials gs:// can only be read: leave google_skip_signature out, and give some"
)


class OutOfRangeError(StorageError):
    """An object has no such range."""


class ConflictedError(StorageError):
    """A store answered with a conflict (409), and carried nothing out."""


class UnansweredError(StorageError):
    """A request got no answer: the store may have carried it out, or not."""


class CutAnswerError(UnansweredError):
    """An answer began and did not end."""


class StoreErrors:
    """A context that turns an error of obstore into ours: "``where``: ...; cannot ``what``".

    The library's error holds the whole answer, which may repeat the request. So nothing of ours
    refers to it: neither cause nor context, which logs and reporters print, nor any frame. Values
    of ``options`` are hidden. Only where it ``creates`` an object, under the condition that there
    is none, can one exist: stores answer other conflicts alike.
    """

    def __init__(
        self, what: str, where: str, options: StorageOptions, *, creates: bool = False
    ) -> None:
        self._what = what
        self._where = where
        self._options = options
        self._creates = creates

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ours = None if error is None else self._translated(error)
        if error is None or ours is None:
            return
        before = error.__context__
        del kind, error, trace
        try:
            raise ours
        finally:
            ours.__context__ = before  # the error being handled when the library was called

    def _translated(self, error: BaseException) -> ShuffleError | None:
        """Return our error for one of obstore; None for any other."""
        exceptions = importlib.import_module("obstore.exceptions")
        where, what = self._where, self._what
        if self._creates and isinstance(error, exceptions.AlreadyExistsError):
            answer = shown(_text(error), self._options)
            return ObjectExistsError(f"{where}: exists already ({answer}); cannot {what}")
        if isinstance(error, (exceptions.BaseError, OSError, ValueError)):
            text = _text(error)
            misses_more = re.search(f"{_NO_BUCKET}|{_FORGOTTEN}", text)
            if isinstance(error, FileNotFoundError) and not misses_more:
                return ObjectNotFoundError(f"{where}: not there; cannot {what}")
            kind = next((of for pattern, of in _KINDS if re.search(pattern, text)), StorageError)
            if self._creates and re.search(_NOT_TAKEN, text) and not re.search(_REPEATED, text):
                kind = PutRefusedError
            advice = advice_for(text, where.partition(":")[0], self._options) or "Try again"
            return kind(f"{where}: {shown(text, self._options)}; cannot {what}. {advice}")
        if type(error).__name__ == "PanicException":  # a value that obstore did not expect
            return StorageError(
                f"{where}: the library obstore gave up; cannot {what}. Check the options: an "
                "endpoint begins with http:// or https://, and no value holds a line break"
            )
        return None


def _text(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source")[0]


_KINDS = (
    (_NO_RANGE, OutOfRangeError),
    (r"\bcode: 409", ConflictedError),
    (_REFUSED, DeniedError),
    (_CUT, CutAnswerError),
    (_UNANSWERED, UnansweredError),
)


def advice_for(text: str, scheme: str, options: StorageOptions) -> str | None:
    """Return what to do about an error of obstore with this text; None where it does not say."""
    is_anonymous = any("skip_signature" in name for name in options)
    if scheme == "gs" and is_anonymous and re.search(_NO_CREDENTIALS, text):
        return _ANONYMOUS
    end = end_of(scheme, options, os.environ)
    if end is not None and end.is_past(datetime.now(UTC)) and re.search(_REFUSED, text):
        return f"The {end} have ended. {REFRESHED}"
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), None)
    return advice and advice.format(credentials=_CREDENTIALS[scheme], prefix=VARIABLES[scheme])


def shown(text: str, options: StorageOptions) -> str:
    """Return what a message may show of the text of an error, without secrets."""
    prefixes = tuple(VARIABLES.values())
    secrets = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    return StorageOptions(secrets).hidden_in(options.hidden_in(_answer(text)))


def _answer(text: str) -> str:
    """Return status, code and text of the answer, or the first line."""
    status = re.search(r"status code: (\d+[^:]*)", text)
    code = re.search(r"<Code>(.*?)</Code>", text)
    said = re.search(r'<Message>(.*?)[\n<]|"message":\s*"([^"]*)"', text)
    raised = re.search(_FROM_PROVIDER, text)
    if raised:  # what its error says may be a secret
        return f"credential_provider raised {raised[1]}"
    if status:
        parts = [status[1].strip(), code and code[1], said and (said[1] or said[2])]
        return ": ".join(part for part in parts if part)
    # No query of a URL, which may hold a signature, and no user.
    return re.sub(r"(https?://)(?:[^/\s]*@)?([^\s?]*)(\?\S*)?", r"\1\2", text.partition("\n")[0])
