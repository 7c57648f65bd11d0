"""The memory bound of a map task holds when it sorts, whatever it sorts by."""

import subprocess
import sys

import pytest

from tests.conformance.test_memory import PROJECT, STREAM


@pytest.mark.parametrize(
    ("shape", "sort_by", "gigabytes"),
    [
        ("int32", "k", "0.4"),
        ("string", "s", "0.5"),
        ("lineitem", "n0, n1, s", "0.5"),
    ],
)
def test_peak_memory_of_a_sorted_write(tmp_path, shape, sort_by, gigabytes):
    program = STREAM.replace('keys="k",', f'keys="k", sort_by={sort_by.split(", ")!r},')
    assert program != STREAM
    done = subprocess.run(
        [sys.executable, "-c", program, shape, "zstd", str(tmp_path), gigabytes],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stderr
    base, peak, largest, buffer = map(int, done.stdout.split())
    bound = base + 1.25 * buffer + (64 << 20) + largest
    print(f"{peak - base >> 20} MiB over base, {int(bound) - base >> 20} allowed")
    assert peak <= bound, f"{peak - base >> 20} MiB over base, {int(bound) - base >> 20} allowed"
