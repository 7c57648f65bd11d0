"""Which failed jobs the doctor is asked about, and which of its findings is the cause."""

import pytest

from connector.environment.findings import Finding
from connector.environment.report import cause_among, may_be_of_python


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: arrow-shuffle is missing on vm in /usr/bin/python3",
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version",
        'java.io.IOException: Cannot run program "python9": error=2',
        "SparkException: Python worker failed to connect back.",
        "SparkException: Python worker exited unexpectedly (crashed)",
    ],
)
def test_what_looks_like_another_python_is_asked(text):
    assert may_be_of_python(text)


@pytest.mark.parametrize("text", ["ValueError: no", "OutOfDiskError: /d: no space", ""])
def test_what_does_not_is_not(text):
    assert not may_be_of_python(text)


def test_the_cause_is_the_first_problem_of_the_executors_python():
    def finding(code, where, severity="problem"):
        return Finding(code, "what", where, "remedy", severity)

    cause = finding("package-missing", "executors on a")
    others = [
        finding("package-missing", "driver"),
        finding("clock", "executors on a"),
        finding("package-version", "executors on a", "note"),
    ]
    assert cause_among([*others, cause, finding("no-python", "executors on b")]) is cause
    assert cause_among(others) is None
