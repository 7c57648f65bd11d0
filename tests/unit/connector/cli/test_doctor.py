"""``doctor``: its options; what it finds is in ``integration/test_doctor.py``."""

import json

import pytest

from connector.cli.main import main


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
