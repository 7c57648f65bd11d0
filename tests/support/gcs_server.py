"""A server that speaks the part of Google Cloud Storage's XML API that obstore uses, on loopback.

Run as a module it serves; :func:`serving` runs it in a process of its own. It was written from the
documentation, so it shows what we do with such answers, and not what Google answers. Other than on
S3 the condition of a put is a header of its own and fails with 412, there is no deletion of many,
that of an object which is not there is a 404, and an upload can be completed once. Buckets whose
names begin with one of ``FAULTS`` misbehave as some stores do. Objects are files, so a server that
was killed can be started again. It can say which requests it got.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import re
import secrets
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.support.store_server import StoreServer, end_with_input, free_port, listening, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "ya29.never-to-be-shown-4711"
FAULTS = ("careless", "racy", "hierarchical")
"""A careless store ignores the condition of a put; a racy one checks it and puts later; in a
hierarchical one the directories above an object stay when that is deleted, as in ADLS Gen2."""

_RACY_S = 0.05
_MIN_PART_BYTES = 5 << 20
_Headers: TypeAlias = dict[str, str]
_NONE: _Headers = {}


@dataclass(frozen=True)
class _Stored:
    """An object; its bytes are in a file, after a line of this."""

    key: str
    size: int
    etag: str
    generation: int
    modified: str

    @property
    def headers(self) -> dict[str, str]:
        when = dt.datetime.fromisoformat(self.modified)
        return {
            "ETag": self.etag,
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "Last-Modified": format_datetime(when, usegmt=True),
        }


class _Bucket:
    """Objects in a directory, and uploads."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self._directory = directory
        self._objects: dict[str, _Stored] = {}
        self._prefixes: set[str] = set()
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("*.object"):
            with path.open("rb") as file:
                stored = _Stored(**json.loads(file.readline()))
            self._objects[stored.key] = stored

    def get(self, key: str) -> _Stored | None:
        return self._objects.get(key)

    def content(self, key: str) -> bytes:
        return self._path(key).read_bytes().partition(b"\n")[2]

    def put(self, key: str, content: bytes) -> _Stored:
        now = dt.datetime.now(dt.UTC)
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        stored = _Stored(key, len(content), etag, time.time_ns() // 1_000, now.isoformat())
        described = json.dumps(dataclasses.asdict(stored)).encode()
        path = self._path(key)
        unfinished = path.with_name(secrets.token_hex(8))
        unfinished.write_bytes(described + b"\n" + content)
        unfinished.replace(path)
        self._objects[key] = stored
        if self.name.startswith("hierarchical"):
            self._prefixes.update(key[: found.end()] for found in re.finditer("/", key))
        return stored

    def delete(self, key: str) -> bool:
        """Whether it was there."""
        if self._objects.pop(key, None) is None:
            return False
        self._path(key).unlink()
        return True

    def named(self, prefix: str, delimiter: str) -> list[tuple[str, _Stored | None]]:
        """Return objects and common prefixes, with None, by name."""
        with self.lock:
            found: dict[str, _Stored | None] = {}
            for key in (*self._objects, *(self._prefixes if delimiter else ())):
                if key.startswith(prefix) and key != prefix:
                    end = key.find(delimiter, len(prefix)) + 1 if delimiter else 0
                    found[key[:end] or key] = None if end else self._objects[key]
        return sorted(found.items(), key=lambda one: one[0].encode())

    def _path(self, key: str) -> Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()}.object"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, port: int, state: Path, page: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.state, self.page = state, page
        self.requests: list[tuple[str, str, float, float]] = []
        self.buckets = {path.name: _Bucket(path) for path in state.iterdir()}

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _handle(self) -> None:
        if self.path == "/-/requests":
            self._answer(200, json.dumps(self.server.requests).encode())
            return
        began = time.monotonic()
        try:
            self._answer_request()
        finally:
            asked = unquote(self.path) if "?" in self.path else f"{unquote(self.path)}?"
            self.server.requests.append((self.command, asked, began, time.monotonic()))

    def _answer_request(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        if len(content) < length:
            self.close_connection = True  # whoever asked has gone
            return
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        name, _, key = unquote(url.path[1:]).partition("/")
        given = self.headers.get("Authorization")
        if given != f"Bearer {TOKEN}":
            said = "Invalid Credentials" if given else "Anonymous caller does not have access."
            self._refuse(401, "AuthenticationRequired", f"Authentication required. {said}")
        elif self.command == "PUT" and not key:
            self.server.buckets.setdefault(name, _Bucket(self.server.state / name))
            self._answer(200)
        elif (bucket := self.server.buckets.get(name)) is None:
            self._refuse(404, "NoSuchBucket", "The specified bucket does not exist.")
        elif not key:
            self._list(bucket, query)
        else:
            answer: Callable[[_Bucket, str, dict[str, str], bytes], None] = {
                "GET": self._get,
                "HEAD": self._get,
                "PUT": self._put,
                "POST": self._post,
                "DELETE": self._delete,
            }[self.command]
            answer(bucket, key, query, content)

    def _list(self, bucket: _Bucket, query: dict[str, str]) -> None:
        after = query.get("start-after", "")
        if token := query.get("continuation-token"):
            after = base64.urlsafe_b64decode(token).decode()
        limit = min(int(query.get("max-keys", self.server.page)), self.server.page)
        named = bucket.named(query.get("prefix", ""), query.get("delimiter", ""))
        named = [one for one in named if one[0].encode() > after.encode()]
        lines = [f"<IsTruncated>{'true' if len(named) > limit else 'false'}</IsTruncated>"]
        if len(named) > limit:
            token = base64.urlsafe_b64encode(named[limit - 1][0].encode()).decode()
            lines.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for name, stored in named[:limit]:
            if stored is None:
                lines.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                lines.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{stored.size}</Size>"
                    f"<ETag>{escape(stored.etag)}</ETag>"
                    f"<LastModified>{stored.modified[:23]}Z</LastModified></Contents>"
                )
        self._xml("ListBucketResult", "".join(lines))

    def _get(self, bucket: _Bucket, key: str, query: dict[str, str], content: bytes) -> None:
        with bucket.lock:
            stored = bucket.get(key)
            content = bucket.content(key) if stored and self.command == "GET" else b""
        if stored is None:
            self._refuse(404, "NoSuchKey", "The specified key does not exist.")
            return
        size = str(stored.size)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if self.command == "HEAD" or not wanted:
            self._answer(200, content, stored.headers | {"Content-Length": size})
            return
        last = stored.size - 1
        start = int(wanted[1]) if wanted[1] else max(stored.size - int(wanted[2]), 0)
        end = min(int(wanted[2]), last) if wanted[1] and wanted[2] else last
        if start > last:
            self._refuse(416, "InvalidRange", "The requested range cannot be satisfied.")
            return
        where = {"Content-Range": f"bytes {start}-{end}/{size}"}
        self._answer(206, content[start : end + 1], stored.headers | where)

    def _put(self, bucket: _Bucket, key: str, query: dict[str, str], content: bytes) -> None:
        if "partNumber" in query:
            parts = bucket.uploads.get(query["uploadId"])
            if parts is None:
                self._refuse(404, "NoSuchUpload", "The requested upload was not found.")
                return
            parts[int(query["partNumber"])] = content
            self._answer(200, headers={"ETag": f'"{hashlib.md5(content).hexdigest()}"'})
            return
        is_new = self.headers.get("x-goog-if-generation-match") == "0"
        if bucket.name.startswith("careless"):
            is_new = False
        if is_new and bucket.name.startswith("racy") and bucket.get(key) is None:
            time.sleep(_RACY_S)
            is_new = False
        with bucket.lock:
            stored = None if is_new and bucket.get(key) else bucket.put(key, content)
        if stored is not None:
            self._answer(200, headers=stored.headers)
            return
        said = "At least one of the pre-conditions you specified did not hold."
        self._refuse(412, "PreconditionFailed", said)

    def _post(self, bucket: _Bucket, key: str, query: dict[str, str], content: bytes) -> None:
        if "uploads" in query:
            upload = secrets.token_hex(16)
            bucket.uploads[upload] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            return
        parts = bucket.uploads.get(query["uploadId"])
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", content)]
        if parts is None:
            self._refuse(404, "NoSuchUpload", "The requested upload was not found.")
            return
        if any(len(parts[number]) < _MIN_PART_BYTES for number in numbers[:-1]):
            self._refuse(400, "EntityTooSmall", "A part is smaller than 5 MiB.")
            return
        with bucket.lock:
            stored = bucket.put(key, b"".join(parts[number] for number in numbers))
            bucket.uploads.pop(query["uploadId"], None)
        etag = f"<ETag>{escape(stored.etag)}</ETag>"
        self._xml("CompleteMultipartUploadResult", etag, headers=stored.headers)

    def _delete(self, bucket: _Bucket, key: str, query: dict[str, str], content: bytes) -> None:
        if "uploadId" in query:
            bucket.uploads.pop(query["uploadId"], None)
            self._answer(204)
            return
        with bucket.lock:
            was_there = bucket.delete(key)
        if was_there:
            self._answer(204)
        else:
            self._refuse(404, "NoSuchKey", "The specified key does not exist.")

    def _answer(self, status: int, content: bytes = b"", headers: _Headers = _NONE) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _xml(self, name: str, inside: str, status: int = 200, headers: _Headers = _NONE) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><{name}>{inside}</{name}>"
        self._answer(status, text.encode(), {"Content-Type": "application/xml"} | headers)

    def _refuse(self, status: int, code: str, said: str) -> None:
        self._xml("Error", f"<Code>{code}</Code><Message>{escape(said)}</Message>", status)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gcs_server")
    parser.add_argument("port", type=int)
    parser.add_argument("state", type=Path)
    # Few names per answer, so that a listing takes several.
    parser.add_argument("--page", type=int, default=7)
    parser.add_argument("--until-eof", action="store_true")
    given = parser.parse_args()
    if given.until_eof:
        end_with_input()
    given.state.mkdir(parents=True, exist_ok=True)
    _Server(given.port, given.state, given.page).serve_forever()


@dataclass(frozen=True)
class GcsServer(StoreServer):
    """A server that runs."""

    scheme = "gs"

    @property
    def options(self) -> dict[str, str]:
        return {
            "google_base_url": self.url,
            "google_bearer_token": TOKEN,
            "allow_http": "true",
        }

    def new_bucket(self, kind: str = "bucket") -> str:
        name = f"{kind}-{uuid.uuid4().hex[:12]}"
        put(f"{self.url}/{name}", {"Authorization": f"Bearer {TOKEN}"})
        return name


@contextlib.contextmanager
def serving(
    state: Path | None = None, port: int | None = None, *, page: int = 7
) -> Iterator[GcsServer]:
    """Run a server while the context lasts; what it holds stays in ``state``, if that is given."""
    with contextlib.ExitStack() as stack:
        state = state or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = port or free_port()
        command = [sys.executable, "-m", "tests.support.gcs_server", str(port), str(state)]
        command += ["--page", str(page), "--until-eof"]
        stack.enter_context(listening("Google", command, port))
        yield GcsServer(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def gs() -> Iterator[GcsServer]:
    with serving() as server:
        yield server


if __name__ == "__main__":
    main()
