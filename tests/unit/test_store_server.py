"""Servers of object stores end with the tests that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.store_server import PROJECT

STARTS = """
import sys
from tests.support.store_server import free_port, listening

port = free_port()
serve = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
with listening("some", [sys.executable, "-c", serve], port) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end it")
def test_a_server_ends_with_tests_that_are_killed():
    tests = subprocess.Popen(
        [sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PROJECT
    )
    with tests:
        server = int(tests.stdout.readline())
        tests.kill()
    end = time.monotonic() + 30
    while is_running(server):
        if time.monotonic() > end:
            os.kill(server, signal.SIGKILL)
            pytest.fail("the server outlived them")
        time.sleep(0.05)


def is_running(pid):
    """Whether a process runs: one that ended may wait for whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
