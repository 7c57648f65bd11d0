"""What a process says about itself, and about files that others put."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import arrow_format
from connector.environment import probe


def run(source: str, **environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-S", "-c", source], capture_output=True, check=True, env=environment
    )
    return json.loads(done.stdout)


def test_its_source_is_a_program_that_needs_no_package():
    facts = run(Path(probe.__file__).read_text(encoding="utf-8"))
    assert facts["packages"]["pyarrow"] == {"version": None, "error": None}
    assert facts["packages"]["numpy"] == {"version": None, "error": None}
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_missing_package_is_told_from_one_that_fails(tmp_path: Path):
    for name, body in {
        "pandas": "raise ValueError('numpy.dtype size changed')",
        "zstandard": "import a_module_that_is_not_there",
        "numpy": "__version__ = '1.2'",
        "msgspec": "",
    }.items():
        (tmp_path / f"{name}.py").write_text(body)
    facts = run(Path(probe.__file__).read_text(encoding="utf-8"), PYTHONPATH=str(tmp_path))
    packages = facts["packages"]
    assert packages["pandas"]["error"] == "ValueError: numpy.dtype size changed"
    assert "a_module_that_is_not_there" in packages["zstandard"]["error"]
    assert packages["numpy"] == {"version": "1.2", "error": None}
    assert packages["msgspec"] == {"version": "?", "error": None}


def test_this_process_has_it_all():
    packages = probe.process_facts()["packages"]
    assert packages["arrow_shuffle"]["version"] == arrow_format.__version__
    assert all(package["error"] is None for package in packages.values())


@pytest.mark.parametrize("scheme", ["directory", "uri"])
def test_files_are_found_and_put(tmp_path: Path, scheme: str):
    place = {scheme: str(tmp_path), "name": "driver", "options": {}}
    assert probe.process_facts(place)["place"] == {"sees": False, "wrote": None, "error": None}
    assert list(tmp_path.iterdir()) == [], "what the driver would not see it could not remove"

    (tmp_path / "driver").touch()
    seen = probe.process_facts(place)["place"]
    assert (seen["sees"], seen["error"]) == (True, None)
    assert (tmp_path / seen["wrote"]).exists()


def test_what_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "driver").touch()
    long = {"directory": str(tmp_path), "name": "driver", "options": {}}
    name = "x" * 250  # its own name is longer than a file system takes
    (tmp_path / name).touch()
    seen = probe.process_facts(long | {"name": name})["place"]
    assert seen["sees"] is True
    assert seen["wrote"] is None
    assert "File name too long" in seen["error"]
