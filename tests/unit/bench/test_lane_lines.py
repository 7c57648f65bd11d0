"""Ratios of the part ``lane`` of the benchmarks; nothing is measured here."""

import pytest

from integration.bench.lane_lines import FRAME, REPARTITION, lane_label, lane_lines
from integration.bench.results import Timing


def timing(label, seconds, num_bytes=1_000_000):
    return Timing(label, (seconds,), num_bytes, num_files=3)


@pytest.mark.parametrize(("seconds", "verdict"), [(2.0, "pass"), (2.1, "short")])
def test_the_lane_is_held_against_sparks_own_writer(seconds, verdict):
    timings = {
        lane_label("zstd"): timing("lane zstd", seconds),
        lane_label("zstd", sync=False): timing("lane zstd, no fsync", 1.0),
        FRAME: timing(FRAME, 8.0),
        REPARTITION: timing(REPARTITION, 10.0, num_bytes=2_000_000),
    }
    speed, unsynced, through_jvm, size = lane_lines("n = 7", ("zstd",), timings)
    assert speed.ratio == pytest.approx(10 / seconds)
    assert speed.verdict == verdict
    assert (unsynced.ratio, unsynced.verdict) == (10, "")
    assert through_jvm.ratio == pytest.approx(seconds / 8)
    assert size.ratio == 0.5
    assert "3, 3" in size.what
