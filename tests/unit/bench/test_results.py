"""Ratios, verdicts, targets, the table and the JSON of the benchmarks; nothing is measured here."""

import json

import pytest

from integration.bench import __main__ as command
from integration.bench import engine, lane, memory, read, spark, targets
from integration.bench.buffer import BUFFERED, COUNTED, GATHER, UNBUFFERED, buffer_lines
from integration.bench.child import ChildError, run_in_child
from integration.bench.report import COLUMNS, as_json, counts, table_row
from integration.bench.results import (
    Line,
    Part,
    Target,
    Timing,
    amount_line,
    compare,
    fastest,
    turns,
)
from integration.bench.rounds import Settings, check_rows

CODECS = ("none", "zstd")


def timing(label: str, *seconds: float, num_bytes: int = 50_000_000) -> Timing:
    return Timing(label, seconds, num_bytes, num_files=2)


def all_of(labels: list[str]) -> dict[str, Timing]:
    """A timing for each label, each one slower than the one before."""
    return {label: timing(label, 1.0 + rank) for rank, label in enumerate(labels)}


# Ratios ------------------------------------------------------------------------------------------


def test_a_ratio_is_of_medians_or_of_the_best_rounds_of_both_sides():
    ours = Timing("ours", (1, 2, 9), cpu_seconds=(3, 1, 2))
    peer = Timing("peer", (4, 6, 5), cpu_seconds=(8, 5, 9))
    line = compare("c", "speed", "peer", ours, peer)
    assert line.what == "speed, peer = 1"
    assert (line.ratio, line.best_ratio, line.median_ratio) == (5 / 2, 4 / 1, 5 / 2)
    assert (line.ours_value, line.other_value) == (2, 5)
    assert compare("c", "time", "peer", ours, peer).ratio == 2 / 5
    line = compare("c", "speed", "peer", ours, peer, Target(at_least=4), best=True)
    assert (line.ratio, line.cpu_ratio, line.verdict) == (4, 5, "pass")
    assert line.median_ratio == 5 / 2
    assert (line.ours_value, line.other_value) == (1, 4)
    assert compare("c", "time", "peer", ours, peer, best=True).ratio == 1 / 4


def test_the_spread_is_of_ratios_within_one_round():
    # Both sides slow down together in the second round: the ratio of each round stays 2.
    line = compare("c", "speed", "peer", timing("ours", 1, 10), timing("peer", 2, 20))
    assert line.spread == pytest.approx((2, 2))


def test_processor_time_has_its_own_ratio():
    ours, peer = Timing("a", (9,), cpu_seconds=(2,)), Timing("b", (9,), cpu_seconds=(3,))
    assert compare("c", "speed", "peer", ours, peer).cpu_ratio == 1.5
    assert compare("c", "time", "peer", ours, peer).cpu_ratio == pytest.approx(2 / 3)
    assert compare("c", "speed", "peer", ours, timing("x", 9)).cpu_ratio is None


@pytest.mark.parametrize("seconds", [(), (1.0, 0.0), (-1.0,)])
def test_a_timing_needs_rounds_that_took_time(seconds):
    with pytest.raises(ValueError, match="take more than no time"):
        Timing("ours", seconds)


def test_the_fastest_has_the_best_round():
    assert fastest([timing("quick", 1, 9, 9), timing("steady", 3, 3, 3)]).label == "quick"
    assert fastest([]) is None


# Verdicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "ratio", "verdict"),
    [
        (Target(at_least=1.5), 1.5, "pass"),
        (Target(at_least=1.5), 1.49, "short"),
        (Target(at_most=1.3), 1.3, "pass"),
        (Target(at_most=1.3), 1.31, "short"),
        (None, 0.1, ""),
    ],
)
def test_bounds_are_inclusive(target, ratio, verdict):
    line = Line("c", "w", "a", "b", ratio, 1, "s", ratio, target=target)
    assert line.verdict == verdict


def test_an_aim_is_shown_and_changes_no_verdict():
    target = Target(at_least=2.3, aim=3)
    assert str(target) == ">= 2.3, aim 3"
    assert target.met_by(2.4)


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1, "at_most": 2}])
def test_a_target_has_exactly_one_bound(bounds):
    with pytest.raises(ValueError, match="one bound"):
        Target(**bounds)


# Rounds ------------------------------------------------------------------------------------------


def test_every_contender_runs_once_a_round_and_another_one_starts_each_round():
    rounds = turns(["a", "b", "c"], 4)
    assert [order[0] for order in rounds] == ["a", "b", "c", "a"]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert turns([], 3) == []


def settings_of(tmp_path, *, repeat: int, report=lambda text: None) -> Settings:
    return Settings(1, (), CODECS, repeat, False, 0, tmp_path, report)


def test_a_warm_up_round_does_not_count_and_the_fastest_round_gives_the_counters(tmp_path):
    part, reports = Part("engine", "Engine"), []
    answers = iter([9.0, 2.0, 1.0, 3.0])

    def measure():
        seconds = next(answers)
        return {"seconds": seconds, "num_rows": 7, "counters": {"gather_ns": int(seconds)}}

    settings = settings_of(tmp_path, repeat=3, report=reports.append)
    measured = settings.measure(part, "write", {"ours": measure}, warm_up=True)["ours"]
    assert (measured.seconds, measured.num_rows, measured.counters) == (
        (2, 1, 3),
        7,
        {"gather_ns": 1},
    )
    assert part.timings == {"write": (measured,)}
    assert [text.split(",")[2] for text in reports] == [
        " round 0: ours",
        " round 1: ours",
        " round 2: ours",
        " round 3: ours",
    ]


def test_a_contender_that_does_not_go_on_has_fewer_rounds(tmp_path):
    measures = {"ours": lambda: {"seconds": 30}, "Polars IPC": lambda: {"seconds": 30}}
    settings = settings_of(tmp_path, repeat=4)
    timings = settings.measure(Part("engine", "Engine"), "w", measures, goes_on=engine.goes_on)
    assert {label: len(each.seconds) for label, each in timings.items()} == {
        "ours": 4,
        "Polars IPC": 2,
    }


def test_lost_rows_are_an_error():
    check_rows(7, 7)
    with pytest.raises(RuntimeError, match="7 rows came out of 8"):
        check_rows(7, 8)


# What is compared with what ----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "slow", "has"), [(200, 0, 1), (2_000, 0, 0), (2_000, 1, 1)])
def test_pyarrow_writes_thousands_of_directories_only_when_asked(n, slow, has):
    labels = engine.contenders(n, CODECS, slow=bool(slow))
    assert any(label.startswith("pyarrow") for label in labels) == bool(has)


def test_every_engine_contender_can_be_run():
    assert set(engine.contenders(200, CODECS, slow=True)) == set(engine.CONTENDERS)


@pytest.mark.parametrize(
    ("n", "target"),
    [
        (200, "short (>= 2.3, aim 3)"),
        (2_000, "short (>= 3.5, aim 5)"),
        (20_000, "short (>= 5, aim 7)"),
        (77, ""),
    ],
)
def test_only_the_fastest_peer_carries_the_target(n, target):
    timings = all_of(engine.contenders(n, ["none"], slow=True))
    timings["Polars IPC"] = timing("Polars IPC", 0.5)
    lines = engine.write_lines("c", n, ["none"], timings)
    shown = {line.other: table_row(line)[-1] for line in lines if line.other.startswith("Polars")}
    assert shown == {"Polars IPC": target}
    assert not any(line.target for line in lines if line.other in {"DuckDB Parquet"})


def test_sizes_leave_out_what_differs_only_in_fsync():
    labels = engine.contenders(200, CODECS, slow=True)
    counters = {"arrow_bytes": 100_000_000}
    timings = {label: Timing(label, (1,), 50_000_000, 2, counters=counters) for label in labels}
    lines = engine.size_lines("c", CODECS, timings)
    assert not any("sync" in line.ours for line in lines)
    assert {line.ratio for line in lines} == {0.5}


def reads(*, ours: float, peer: float) -> dict[str, Timing]:
    labels = [
        f"{kind} {c}{few}" for kind in ("ours", "IPC") for c in CODECS for few in ("", read.FEW)
    ]
    return {label: timing(label, ours if label.startswith("ours") else peer) for label in labels}


@pytest.mark.parametrize(("peer", "verdict"), [(0.71, "pass"), (0.69, "short")])
def test_against_a_plain_file_only_reading_everything_has_a_target(peer, verdict):
    lines = read.read_lines("c", CODECS, reads(ours=1, peer=peer))
    verdicts = {
        (line.ours, line.other): line.verdict
        for line in lines
        if line.target and line.target != targets.FEW_OF_LINEITEM
    }
    assert verdicts == {("ours none", "IPC none"): verdict, ("ours zstd", "IPC zstd"): verdict}
    assert {line.ours for line in lines} == {f"ours {c}{f}" for c in CODECS for f in ("", read.FEW)}


def test_a_point_read_is_compared_with_the_whole_shuffle():
    point = Timing("point", (0.01,), num_bytes=4_000_000)
    whole = Timing("whole", (2.0,), num_bytes=200_000_000)
    timings = {read.WHOLE: whole, read.OPENED: point, read.OPEN: point}
    time, num_bytes, *_ = read.point_lines("c", timings)
    assert (time.ratio, time.ours_value, time.unit) == (0.005, 10, "ms")
    assert (num_bytes.ratio, num_bytes.ours_value, num_bytes.unit) == (0.02, 4, "MB")


def test_spark_lines_compare_default_options_with_the_targets():
    labels = [
        spark.DRAIN,
        spark.write_label("zstd"),
        spark.write_label("zstd", sync=False),
        spark.REPARTITION,
    ]
    lines = spark.write_lines("c", 200, ["zstd"], all_of(labels))
    targets = {(line.ours, line.other): str(line.target) for line in lines if line.target}
    assert targets == {
        ("ours zstd", spark.DRAIN): "<= 1.5",
        ("ours zstd", spark.REPARTITION): ">= 1.5",
    }


def test_the_target_against_parquet_is_for_200_subpartitions():
    labels = [
        spark.DRAIN,
        *(spark.write_label("none", sync=sync) for sync in (True, False)),
        spark.REPARTITION,
        spark.BUCKET_BY,
    ]
    lines = spark.write_lines("c", 2_000, ["none"], all_of(labels))
    assert [str(line.target) for line in lines if line.target] == ["<= 1.3"]
    assert any(line.other == spark.BUCKET_BY for line in lines)


def test_reads_and_round_trips_have_a_line_for_each_codec():
    labels = [spark.READ_PARQUET, spark.read_label("zstd")]
    (line,) = spark.read_lines("c", ["zstd"], all_of(labels))
    assert (line.ratio, line.verdict) == (2, "short")
    labels = [spark.OWN_SHUFFLE, *map(spark.round_trip_label, CODECS)]
    lines = spark.round_trip_lines("c", CODECS, all_of(labels))
    assert [(line.ratio, line.verdict) for line in lines] == [(2, "short"), (3, "short")]


@pytest.mark.parametrize(("seconds", "verdict"), [(2.0, "pass"), (2.1, "short")])
def test_the_lane_is_compared_with_sparks_own_writer(seconds, verdict):
    timings = {
        lane.lane_label("zstd"): timing("lane zstd", seconds, num_bytes=1_000_000),
        lane.lane_label("zstd", sync=False): timing("lane zstd, no fsync", 1.0),
        lane.FRAME: timing(lane.FRAME, 8.0),
        lane.REPARTITION: timing(lane.REPARTITION, 10.0, num_bytes=2_000_000),
    }
    speed, unsynced, through_jvm, size = lane.lane_lines("n = 7", ("zstd",), timings)
    assert speed.ratio == pytest.approx(10 / seconds)
    assert speed.verdict == verdict
    assert (unsynced.ratio, unsynced.verdict) == (10, "")
    assert through_jvm.ratio == pytest.approx(seconds / 8)
    assert size.ratio == 0.5
    assert "2, 2" in size.what


def test_the_memory_limit_is_what_users_are_promised():
    mib = 1 << 20
    assert memory.memory_limit(100 * mib, 128 * mib, 2 * mib) == (100 + 160 + 64 + 2) * mib


@pytest.mark.parametrize(("peak_mib", "verdict"), [(326, "pass"), (327, "short")])
def test_memory_passes_up_to_the_limit(peak_mib, verdict):
    mib = 1 << 20
    answer = {
        "base_bytes": 100 * mib,
        "peak_bytes": peak_mib * mib,
        "sort_buffer_bytes": 128 * mib,
        "largest_batch_bytes": 2 * mib,
        "open_files": 15,
    }
    peak, files = memory.memory_lines("c", answer)
    assert (peak.verdict, files.verdict) == (verdict, "pass")


@pytest.mark.parametrize(("cpu", "verdict"), [(0.15, "pass"), (0.151, "short")])
def test_a_buffered_row_may_take_100_ns_and_a_gather_of_processor_time(cpu, verdict):
    def buffered(emitted, spilled):
        counters = {"spilled_bytes": spilled}
        timings = {
            COUNTED: Timing(COUNTED, (9,), None, None, (cpu,), emitted, counters),
            GATHER: Timing(GATHER, (9,), cpu_seconds=(0.05,)),
            BUFFERED: timing(BUFFERED, 2.0),
            UNBUFFERED: timing(UNBUFFERED, 3.0),
        }
        return buffer_lines("c", timings, num_rows=1_000_000, updates=10)

    rows, cost, speed = buffered(100_000, 0)
    assert (rows.ratio, rows.verdict) == (0.1, "pass")
    assert (cost.ours_value, cost.other_value) == pytest.approx((cpu * 1_000, 150))
    assert (cost.unit, cost.verdict) == ("ns", verdict)
    assert (speed.ratio, speed.verdict) == (1.5, "")
    rows, cost, _ = buffered(100_001, 5)
    assert (rows.verdict, cost.verdict) == ("short", "")


# Table and JSON ----------------------------------------------------------------------------------


def a_part() -> Part:
    ours, peer = timing("ours", 1, 2, 3), timing("peer", 4, 6, 5)
    lines = [
        compare("write, n = 200", "speed", "peer", ours, peer, Target(at_least=2)),
        compare("write, n = 200", "time", "peer", ours, peer, Target(at_most=0.1)),
        amount_line("size, n = 200", "bytes", ("ours", 1234.5), ("peer", 10), "MB"),
    ]
    return Part("engine", "Engine", lines, {"write": (ours, peer)}, ["a note"])


def test_a_row_shows_values_ratio_spread_and_verdict_with_its_target():
    rows = [dict(zip(COLUMNS, table_row(line), strict=True)) for line in a_part().lines]
    assert rows[0] == {
        "name": "write, n = 200: speed, peer = 1",
        "this": "ours 2",
        "other": "peer 5",
        "ratio": "2.50 (1.67 to 4.00)",
        "unit": "s",
        "verdict": "pass (>= 2)",
    }
    assert rows[1]["verdict"] == "short (<= 0.1)"
    assert (rows[2]["this"], rows[2]["ratio"], rows[2]["verdict"]) == ("ours 1,234", "123.45", "")


def test_the_document_survives_json():
    part = a_part()
    document = as_json([part], settings={"scale": 1, "n": (200,)}, environment={"cores": 2})
    again = json.loads(json.dumps(document))
    assert again["verdicts"] == counts([part]) == {"pass": 1, "short": 1}
    (measured,) = again["parts"]
    assert measured["lines"][0]["spread"] == pytest.approx([5 / 3, 4])
    assert [line["verdict"] for line in measured["lines"]] == ["pass", "short", None]
    assert [line["target"] for line in measured["lines"]] == [">= 2", "<= 0.1", None]
    assert measured["timings"][0] == {
        "case": "write",
        "label": "ours",
        "seconds": [1, 2, 3],
        "median_seconds": 2,
        "best_seconds": 1,
        "cpu_seconds": [],
        "num_bytes": 50_000_000,
        "num_files": 2,
        "num_rows": None,
        "counters": {},
    }
    assert again["settings"] == {"scale": 1, "n": [200]}


# Command line and child --------------------------------------------------------------------------


def test_arguments_are_read():
    options = command.arguments(["--n", "5,70", "--only", "spark", "--codec", "none", "--slow"])
    assert (options.n, options.only, options.codec, options.slow) == (
        (5, 70),
        ["spark"],
        "none",
        True,
    )


@pytest.mark.parametrize("bad", [["--n", "0"], ["--n", "x"], ["--repeat", "0"], ["--only", "x"]])
def test_bad_arguments_are_refused(bad, capsys):
    with pytest.raises(SystemExit) as refused:
        command.arguments(bad)
    assert refused.value.code == 2
    assert bad[0] in capsys.readouterr().err


@pytest.mark.slow
def test_the_error_of_a_child_has_what_it_printed():
    with pytest.raises(ChildError, match="nowhere-at-all"):
        run_in_child(read.read_all, path="nowhere-at-all", kind="IPC", columns=None)
