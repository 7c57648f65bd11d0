"""Ratios, verdicts, tables and JSON of the benchmarks; nothing is measured here."""

import json

import pytest

from integration.bench import __main__ as command
from integration.bench import engine_lines, memory_lines, spark_lines
from integration.bench.report import COLUMNS, as_json, counts, table_of, table_row
from integration.bench.results import (
    Line,
    Part,
    Target,
    Timing,
    amount_line,
    cost_line,
    fastest,
    speed_line,
    turns,
)


def timing(label: str, *seconds: float, num_bytes: int = 50_000_000) -> Timing:
    return Timing(label, seconds, num_bytes, num_files=2)


def all_of(labels: list[str]) -> dict[str, Timing]:
    """A timing for each label, each one slower than the one before."""
    return {label: timing(label, 1.0 + rank) for rank, label in enumerate(labels)}


# Ratios ------------------------------------------------------------------------------------------


def test_a_speed_is_the_ratio_of_the_medians():
    line = speed_line("c", "w", timing("ours", 1, 2, 9), timing("peer", 4, 6, 5))
    assert line.ratio == pytest.approx(5 / 2)
    assert line.best_ratio == pytest.approx(4 / 1)
    assert (line.ours_value, line.other_value) == (2, 5)


def test_a_cost_is_the_other_way_round():
    line = cost_line("c", "w", timing("ours", 3, 3), timing("peer", 2, 2))
    assert line.ratio == pytest.approx(1.5)


def test_the_spread_is_of_ratios_within_one_round():
    # Both sides slow down together in the second round: the ratio of each round stays 2.
    line = speed_line("c", "w", timing("ours", 1, 10), timing("peer", 2, 20))
    assert line.spread == pytest.approx((2, 2))


def test_processor_time_has_its_own_ratio():
    ours, peer = Timing("a", (9,), cpu_seconds=(2,)), Timing("b", (9,), cpu_seconds=(3,))
    assert speed_line("c", "w", ours, peer).cpu_ratio == 1.5
    assert cost_line("c", "w", ours, peer).cpu_ratio == pytest.approx(2 / 3)
    assert speed_line("c", "w", ours, timing("x", 9)).cpu_ratio is None


def test_amounts_have_no_spread():
    line = amount_line("c", "w", ("a", 30), ("b", 60), "MB")
    assert (line.ratio, line.spread, line.best_ratio) == (0.5, None, None)


@pytest.mark.parametrize("seconds", [(), (1.0, 0.0), (-1.0,)])
def test_a_timing_needs_rounds_that_took_time(seconds):
    with pytest.raises(ValueError, match="take more than no time"):
        Timing("ours", seconds)


def test_the_fastest_has_the_smallest_median_not_the_best_round():
    assert fastest([timing("lucky", 1, 9, 9), timing("steady", 3, 3, 3)]).label == "steady"
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


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1, "at_most": 2}])
def test_a_target_has_exactly_one_bound(bounds):
    with pytest.raises(ValueError, match="one bound"):
        Target(**bounds)


# Turns -------------------------------------------------------------------------------------------


def test_everyone_runs_once_a_round_and_begins_in_turn():
    rounds = turns(["a", "b", "c"], 4)
    assert [order[0] for order in rounds] == ["a", "b", "c", "a"]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert turns([], 3) == []


# What is held against what -----------------------------------------------------------------------


def test_pyarrow_writes_thousands_of_directories_only_when_asked():
    def has_pyarrow(n, *, slow):
        labels = engine_lines.contenders(n, ["none", "zstd"], slow=slow)
        return any(label.startswith("pyarrow") for label in labels)

    assert has_pyarrow(200, slow=False)
    assert not has_pyarrow(2_000, slow=False)
    assert has_pyarrow(2_000, slow=True)


def test_one_codec_asks_only_for_its_own_contenders():
    labels = engine_lines.contenders(200, ["none"], slow=False)
    assert not any("zstd" in label for label in labels)
    assert len(labels) == len(set(labels))


def test_every_engine_contender_can_be_run():
    from integration.bench.contenders import CONTENDERS

    assert set(engine_lines.contenders(200, ["none", "zstd"], slow=True)) == set(CONTENDERS)


@pytest.mark.parametrize(("n", "target"), [(200, ">= 2.3"), (2_000, ">= 3.5"), (77, "")])
def test_only_the_fastest_peer_carries_the_target(n, target):
    timings = all_of(engine_lines.contenders(n, ["none"], slow=True))
    timings["Polars IPC"] = timing("Polars IPC", 0.5)
    lines = engine_lines.write_lines(n, ["none"], timings)
    held = {line.other: table_row(line)[-2] for line in lines if line.other.startswith("Polars")}
    assert held == {"Polars IPC": target}
    assert not any(line.target for line in lines if line.other in {"DuckDB Parquet"})


def test_sizes_leave_out_what_differs_only_in_fsync():
    timings = all_of(engine_lines.contenders(200, ["none", "zstd"], slow=True))
    lines = engine_lines.size_lines(200, ["none", "zstd"], timings, raw_bytes=100_000_000)
    assert not any("sync" in line.ours for line in lines)
    assert {line.ratio for line in lines} == {0.5}


def test_spark_lines_hold_default_options_against_the_targets():
    labels = [
        spark_lines.DRAIN,
        spark_lines.write_label("zstd"),
        spark_lines.write_label("zstd", sync=False),
        spark_lines.REPARTITION,
    ]
    lines = spark_lines.write_lines("c", 200, ["zstd"], all_of(labels))
    targets = {(line.ours, line.other): str(line.target) for line in lines if line.target}
    assert targets == {
        ("ours zstd", spark_lines.DRAIN): "<= 1.5",
        ("ours zstd", spark_lines.REPARTITION): ">= 1.5",
    }


def test_the_target_against_parquet_is_for_200_subpartitions():
    labels = [
        spark_lines.DRAIN,
        *(spark_lines.write_label("none", sync=sync) for sync in (True, False)),
        spark_lines.REPARTITION,
        spark_lines.BUCKET_BY,
    ]
    lines = spark_lines.write_lines("c", 2_000, ["none"], all_of(labels))
    assert [str(line.target) for line in lines if line.target] == ["<= 1.3"]
    assert any(line.other == spark_lines.BUCKET_BY for line in lines)


def test_reads_and_ids_have_a_line_each():
    labels = [spark_lines.READ_PARQUET, spark_lines.READ_FLOOR, spark_lines.read_label("zstd")]
    lines = spark_lines.read_lines("c", ["zstd"], all_of(labels))
    assert [(line.ratio, line.verdict) for line in lines] == [(3, "short"), (1.5, ""), (2, "")]
    (ids,) = spark_lines.id_lines("c", all_of([spark_lines.OUR_IDS, spark_lines.SPARK_IDS]))
    assert (ids.ratio, ids.verdict) == (0.5, "")


def test_the_memory_limit_is_what_users_are_promised():
    mib = 1 << 20
    assert memory_lines.memory_limit(100 * mib, 128 * mib, 2 * mib) == (100 + 160 + 64 + 2) * mib


@pytest.mark.parametrize(("peak_mib", "verdict"), [(326, "pass"), (327, "short")])
def test_memory_passes_up_to_the_limit(peak_mib, verdict):
    mib = 1 << 20
    found = {
        "base_bytes": 100 * mib,
        "peak_bytes": peak_mib * mib,
        "sort_buffer_bytes": 128 * mib,
        "largest_batch_bytes": 2 * mib,
        "open_files": 15,
    }
    memory, files = memory_lines.memory_lines("c", found)
    assert (memory.verdict, files.verdict) == (verdict, "pass")
    assert len(memory_lines.memory_lines("c", {**found, "open_files": None})) == 1


# Tables and JSON ---------------------------------------------------------------------------------


def a_part() -> Part:
    ours, peer = timing("ours", 1, 2, 3), timing("peer", 4, 6, 5)
    lines = (
        speed_line("write, n = 200", "speed", ours, peer, Target(at_least=2)),
        cost_line("write, n = 200", "time", ours, peer, Target(at_most=0.1)),
        amount_line("size, n = 200", "bytes", ("ours", 1234.5), ("peer", 10), "MB"),
    )
    return Part("engine", "Engine", lines, {"write": (ours, peer)}, ("a note",))


def test_a_row_shows_values_ratio_spread_target_and_verdict():
    part = a_part()
    rows = [dict(zip(COLUMNS, table_row(line), strict=True)) for line in part.lines]
    assert rows[0] == {
        "case": "write, n = 200",
        "ratio of": "speed",
        "ours": "ours 2.00 s",
        "other": "peer 5.00 s",
        "ratio": "2.50",
        "rounds": "1.67 to 4.00",
        "cpu": "",
        "target": ">= 2",
        "": "pass",
    }
    assert rows[2]["ours"] == "ours 1,234 MB"
    assert (rows[2]["rounds"], rows[2]["target"], rows[2][""]) == ("", "", "")


def test_the_table_names_each_case_once():
    table = table_of(a_part())
    assert list(table.columns[0].cells) == ["write, n = 200", "", "size, n = 200"]


def test_the_document_survives_json():
    part = a_part()
    document = as_json([part], settings={"scale": 1, "n": (200,)}, environment={"cores": 2})
    again = json.loads(json.dumps(document))
    assert again["verdicts"] == counts([part]) == {"pass": 1, "short": 1}
    (engine,) = again["parts"]
    assert engine["lines"][0]["spread"] == pytest.approx([5 / 3, 4])
    assert [line["verdict"] for line in engine["lines"]] == ["pass", "short", None]
    assert [line["target"] for line in engine["lines"]] == [">= 2", "<= 0.1", None]
    assert engine["timings"][0] == {
        "case": "write",
        "label": "ours",
        "seconds": [1, 2, 3],
        "median_seconds": 2,
        "best_seconds": 1,
        "cpu_seconds": [],
        "num_bytes": 50_000_000,
        "num_files": 2,
    }
    assert again["settings"] == {"scale": 1, "n": [200]}


# Command line and child --------------------------------------------------------------------------


def test_defaults_are_scale_1_and_both_numbers():
    options = command.arguments([])
    assert (options.scale, options.n, options.only, options.repeat) == (1, (200, 2_000), None, None)


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


def test_the_failure_of_a_child_is_told():
    from integration.bench.child import ChildError, run_in_child
    from integration.bench.contenders import read_once

    with pytest.raises(ChildError, match="nowhere-at-all"):
        run_in_child(read_once, contender="ours none", scratch="nowhere-at-all")
