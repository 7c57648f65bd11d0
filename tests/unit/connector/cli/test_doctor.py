"""``doctor``: its options; what it finds is in ``integration/test_doctor.py``."""

import json
import socket

import pytest

from connector.cli.main import main
from tests.support.programs import run_python


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--master", "local", "--remote", "sc://x"], "--master and --remote exclude each other"),
        (["--conf", "spark.x"], "--conf spark.x: expected NAME=VALUE"),
        (["--conf", "=3"], "--conf =3: expected NAME=VALUE"),
    ],
)
def test_bad_usage_is_said(capsys, arguments, message):
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_json_has_findings_and_facts_and_nothing_else(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert [finding["code"] for finding in printed["findings"]] == ["java"]
    assert printed["facts"]["session"] is None, "no session was started"


def test_a_server_that_is_not_there_is_not_waited_for(capsys, monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["doctor", "--remote", f"sc://127.0.0.1:{port}/;token=secret"]) == 1
    printed = capsys.readouterr().out
    assert f"no session started: 127.0.0.1:{port} does not answer (" in printed
    assert "secret" not in printed


@pytest.mark.slow
def test_a_driver_that_lacks_a_package_is_told_so():
    """Though most of this project does not even load there."""
    code = (
        "import sys\n"
        "for name in ('msgspec', 'numpy', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"
        "from connector.cli.main import main\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )
    done = run_python(code)
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode, found[0]["severity"]) == (1, "problem")
    assert all(name in str(found) for name in ("msgspec", "numpy", "pyarrow"))
