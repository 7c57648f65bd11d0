"""CONFORMANCE, group "Memory and resources": a map task that sorts keeps the bound, too."""

import pytest

from tests.conformance.test_memory import STREAM, checked_peak
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee


@guarantee("map task memory")
@exhaustive(but="shape, sort_by", least=2)
@pytest.mark.parametrize(
    ("shape", "sort_by", "gigabytes"),
    [
        ("int32", "k", "0.3"),
        ("string", "s", "0.3"),
        ("lineitem", "n0, n1, s", "0.3"),
    ],
)
def test_peak_memory_of_a_sorted_write(tmp_path, shape, sort_by, gigabytes):
    program = STREAM.replace('keys="k",', f'keys="k", sort_by={sort_by.split(", ")!r},')
    assert program != STREAM
    checked_peak(program, shape, "zstd", tmp_path, gigabytes, 1)
