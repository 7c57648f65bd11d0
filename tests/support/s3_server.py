"""A server that speaks S3 on the loopback interface: moto, with what real stores do and it lacks.

Run as a module it serves; :func:`serving` runs it in a process of its own. One difference to moto
is that a conditional put is atomic. Buckets whose names begin with one of ``FAULTS`` misbehave as
some stores do. It can say which requests it got.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.store_server import StoreServer, end_with_input, free_port, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_ID = "AKIDLOOPBACKTESTS7Q"
SECRET = "sEcReT/never+to/be+shown/4711"
FAULTS = (
    *("careless", "racy", "quarrelling", "forgetful", "slow", "renaming", "lagging"),
    *("readonly", "appendonly"),
)
"""A careless store ignores the condition of a put; a racy one checks it, and puts later; a
quarrelling one keeps none of the first puts of a name, which come together; a forgetful one loses
its first answer; a slow one takes 10 ms longer for each. A renaming one takes ``+`` for a space; a
lagging one lists nothing. Credentials of a readonly one may not put, those of an appendonly one may
not delete."""
RACE_S = 0.05
"""Seconds between check and put of a racy store, so many that a busy machine has several there. Of
3 ms, on a quiet machine, 2,998 of 3,000 stores were refused."""
QUARREL = 4
"""How many puts of a name a quarrelling store answers with a conflict."""

_CONFLICT = (
    b"<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot "
    b"succeed due to a conflicting operation against this resource.</Message></Error>"
)
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_REFUSED = (
    b"<Error><Code>InvalidAccessKeyId</Code><Message>The AWS Access Key Id %s does not exist in "
    b"our records.</Message><AWSAccessKeyId>%s</AWSAccessKeyId></Error>"
)


class AtomicS3:
    """Moto as a WSGI application, with conditional puts one at a time and credentials checked."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._forgotten: set[str] = set()
        self._quarrels: Counter[str] = Counter()
        self._requests: list[tuple[str, str, float, float]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == "/-/requests":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._requests).encode()]
        began = time.monotonic()
        if path.startswith("/slow"):
            time.sleep(0.01)
        try:
            return self._answer(path, environ, start_response)
        finally:
            asked = f"{path}?{environ.get('QUERY_STRING', '')}"
            self._requests.append((environ["REQUEST_METHOD"], asked, began, time.monotonic()))

    def _answer(self, path: str, environ: dict[str, Any], start_response: Any) -> Any:
        signed_by = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
        if not signed_by.startswith(f"{KEY_ID}/"):
            key_id = signed_by.partition("/")[0].encode()
            return _answered(environ, "403 Forbidden", _REFUSED % (key_id, key_id), start_response)
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        deletes = method == "DELETE" or query.startswith("delete")
        changes = deletes or (method not in ("GET", "HEAD") and "/" in path.strip("/"))
        if (path.startswith("/appendonly") and deletes) or (
            path.startswith("/readonly") and changes
        ):
            return _answered(environ, "403 Forbidden", _DENIED, start_response)
        if path.startswith("/renaming"):
            for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
                environ[name] = environ[name].replace("+", " ").replace("%2B", "%20")
            if query.startswith("delete"):
                names = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                environ["wsgi.input"] = io.BytesIO(names.replace(b"+", b" "))
        if path.startswith("/lagging") and "prefix=" in query:
            environ["QUERY_STRING"] = f"prefix=nothing&{query}"
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._application(environ, start_response)
        if path.startswith("/careless") or (path.startswith("/racy") and self._is_free(environ)):
            del environ["HTTP_IF_NONE_MATCH"]
        if path.startswith("/quarrelling"):
            with self._lock:
                self._quarrels[path] += 1
                is_first = self._quarrels[path] <= QUARREL
            if is_first:
                return _answered(environ, "409 Conflict", _CONFLICT, start_response)
        with self._lock:
            answer = self._application(environ, start_response)
        if path.startswith("/forgetful") and path not in self._forgotten:
            self._forgotten.add(path)
            start_response("503 Slow Down", [], sys.exc_info())
            return [b""]
        return answer

    def _is_free(self, environ: dict[str, Any]) -> bool:
        """Whether there is no object of that name; said some time later."""
        said: list[str] = []
        with self._lock:
            asked = environ | {"REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0"}
            del asked["HTTP_IF_NONE_MATCH"]
            list(self._application(asked, lambda status, *_: said.append(status)))
        time.sleep(RACE_S)
        return said[0].startswith("404")


def _answered(
    environ: dict[str, Any], status: str, body: bytes, start_response: Any
) -> list[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response(status, [("Content-Type", "application/xml")])
    return [body]


def main(port: int) -> None:
    """Serve until killed."""
    if "--until-eof" in sys.argv:
        end_with_input()
    from moto.moto_server.werkzeug_app import create_backend_app
    from moto.s3.models import FakeKey
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            """Say nothing."""

    # As text, which a listing parses again for each name, it takes half of the time of a listing.
    FakeKey.last_modified_ISO8601 = property(  # type: ignore[assignment,method-assign]
        lambda key: key.last_modified
    )

    # Not moto's dispatcher, which looks for the service of each request for longer than S3 answers.
    application = AtomicS3(create_backend_app("s3"))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=Handler)


@dataclass(frozen=True)
class S3Server(StoreServer):
    """A server that runs."""

    scheme = "s3"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def options(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.environment.items()}

    def client(self) -> Any:
        """Return a client of another library, to look behind ours."""
        return _client(self.url)

    def new_bucket(self, kind: str = "bucket") -> str:
        name = f"{kind}-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Names of all objects of a bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def uploads(self, bucket: str) -> list[str]:
        """Names of the uploads that were neither completed nor given up."""
        found = self.client().list_multipart_uploads(Bucket=bucket)
        return [one["Key"] for one in found.get("Uploads", [])]


@cache
def _client(url: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
    )


@contextlib.contextmanager
def serving(*, page: int = 7) -> Iterator[S3Server]:
    """Run a server while the context lasts; a listing has so many names per answer."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.s3_server", str(port), "--until-eof"]
    environment = {"MOTO_S3_DEFAULT_MAX_KEYS": str(page)}
    with listening("S3", command, port, environment=environment):
        yield S3Server(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


if __name__ == "__main__":
    main(int(sys.argv[1]))
