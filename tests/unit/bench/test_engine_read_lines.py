"""Lines of the benchmark of reading; nothing is measured here but that its readers agree."""

import pyarrow as pa
import pytest

from integration.bench import engine_read, engine_read_lines
from integration.bench.results import Timing


def timings(*, ours: float, peer: float) -> dict[str, Timing]:
    labels = engine_read_lines.labels_of(["none", "zstd"])
    return {label: Timing(label, (ours if label.startswith("ours") else peer,)) for label in labels}


@pytest.mark.parametrize(("peer", "verdict"), [(0.71, "pass"), (0.69, "short")])
def test_only_reading_everything_from_a_plain_file_has_the_target(peer, verdict):
    lines = engine_read_lines.read_lines("c", ["none", "zstd"], timings(ours=1, peer=peer))
    held = {(line.ours, line.other): line.verdict for line in lines if line.target}
    assert held == {("ours none", "IPC none"): verdict, ("ours zstd", "IPC zstd"): verdict}
    assert {line.ours for line in lines} == {
        f"ours {c}{f}" for c in ("none", "zstd") for f in ("", engine_read_lines.FEW)
    }


def test_labels_say_what_is_read_and_how():
    assert engine_read_lines.source_of("mapped IPC none") == ("none", "mapped", None)
    assert engine_read_lines.source_of("ours zstd, 2 columns") == (
        "zstd",
        "shuffle",
        [*engine_read_lines.COLUMNS],
    )


def test_a_point_read_is_held_against_the_whole_shuffle():
    whole = Timing("whole", (2.0,), num_bytes=200_000_000)
    point = Timing("point", (0.01,), num_bytes=4_000_000)
    time, num_bytes = engine_read_lines.point_lines({"whole": whole, "point": point})
    assert (time.ratio, time.ours_value, time.unit) == (0.005, 10, "ms")
    assert (num_bytes.ratio, num_bytes.ours_value, num_bytes.unit) == (0.02, 4, "MB")


@pytest.mark.parametrize("columns", [None, ["l_shipmode", "l_orderkey"]])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_all_readers_find_all_rows(tmp_path, codec, columns):
    rows = pa.record_batch({"l_orderkey": range(100), "l_shipmode": ["AIR", "RAIL"] * 50})
    with pa.OSFile(str(tmp_path / "in"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as out:
        out.write_batch(rows)
    given = {"rows": str(tmp_path / "in"), "codec": codec}
    engine_read.write_all(**given, out=str(tmp_path / "plain"), num_subpartitions=None)
    engine_read.write_all(**given, out=str(tmp_path / "ours"), num_subpartitions=7)
    for kind in engine_read_lines.KINDS.values():
        path = tmp_path / ("ours" if kind == "shuffle" else "plain")
        assert engine_read.read_all(str(path), kind, columns)["num_rows"] == 100
