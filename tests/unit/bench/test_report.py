"""Ratios, verdicts, tables and JSON of the benchmarks; nothing is measured here."""

import json

import pytest

from integration.bench import __main__ as command
from integration.bench import cost_lines, disk_lines, engine_lines, memory_lines, spark_lines
from integration.bench.report import (
    COLUMNS,
    PROFILE_COLUMNS,
    as_json,
    counts,
    profile_row,
    profile_table,
    table_of,
    table_row,
)
from integration.bench.results import (
    Line,
    Part,
    Profile,
    Target,
    Timing,
    amount_line,
    cost_line,
    fastest,
    one_after_the_other,
    row_cost_line,
    runs_again,
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
    assert (line.best_ratio, line.median_ratio) == (4 / 1, 5 / 2)
    assert (line.ours_value, line.other_value) == (2, 5)


def test_a_ratio_of_the_best_rounds_takes_both_sides_at_their_best():
    ours = Timing("ours", (1, 2, 9), cpu_seconds=(3, 1, 2))
    peer = Timing("peer", (4, 6, 5), cpu_seconds=(8, 5, 9))
    line = speed_line("c", "w", ours, peer, Target(at_least=4), best=True)
    assert (line.ratio, line.cpu_ratio, line.verdict) == (4, 5, "pass")
    assert line.median_ratio == 5 / 2
    assert (line.ours_value, line.other_value) == (1, 4)
    assert cost_line("c", "w", ours, peer, best=True).ratio == 1 / 4


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


def test_the_fastest_has_the_best_round():
    assert fastest([timing("quick", 1, 9, 9), timing("steady", 3, 3, 3)]).label == "quick"
    assert fastest([]) is None


def test_time_per_row_is_in_nanoseconds_and_needs_the_rows():
    few = Timing("few", (3.0, 2.0), cpu_seconds=(2.0, 2.0), num_rows=10_000_000)
    many = Timing("many", (30.0, 60.0), cpu_seconds=(20.0, 20.0), num_rows=100_000_000)
    line = row_cost_line("c", "w", many, few, Target(at_most=1.5))
    assert (line.ours_value, line.other_value) == pytest.approx((300, 200))
    assert (line.ratio, line.cpu_ratio) == pytest.approx((1.5, 1.0))
    assert (line.unit, line.verdict) == ("ns", "pass")
    with pytest.raises(ValueError, match="unknown number of rows"):
        row_cost_line("c", "w", timing("nobody counted", 1), few)


def test_two_things_one_after_the_other_take_best_and_best():
    both = one_after_the_other("sum", timing("a", 5, 1, 3), timing("b", 20, 30, 10))
    assert (both.best, both.median, both.num_bytes) == (11, 23, None)


def test_long_rounds_are_repeated_once():
    def again(*seconds):
        return runs_again(seconds, long_round=20)

    assert again()
    assert again(120)
    assert not again(120, 25)
    assert again(19, 19, 19, 99)


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


def test_at_20_000_only_polars_and_one_format_of_duckdb_compete():
    labels = engine_lines.contenders(20_000, ["none", "zstd"], slow=False)
    peers = {label for several in engine_lines.PEERS.values() for label in several}
    assert peers & set(labels) == {"Polars IPC", "Polars IPC zstd", "DuckDB Parquet snappy"}


def test_only_peers_stop_after_long_rounds():
    assert not engine_lines.peer_runs_again("Polars IPC", [50, 60])
    assert engine_lines.peer_runs_again("Polars IPC", [5, 50])
    assert engine_lines.peer_runs_again("ours zstd", [50, 60])
    assert engine_lines.peer_runs_again(engine_lines.UNPARTITIONED, [50, 60])


def test_fsync_is_left_out_where_it_is_not_asked_for():
    labels = engine_lines.contenders(200, ["none", "zstd"], slow=False, with_sync=False)
    assert not any("sync" in label for label in labels)
    assert engine_lines.write_lines("c", 200, ["none", "zstd"], all_of(labels))


def test_one_codec_asks_only_for_its_own_contenders():
    labels = engine_lines.contenders(200, ["none"], slow=False)
    assert not any("zstd" in label for label in labels)
    assert len(labels) == len(set(labels))


def test_every_engine_contender_can_be_run():
    from integration.bench.contenders import CONTENDERS

    labels = engine_lines.contenders(200, ["none", "zstd"], slow=True)
    assert set(labels) - {engine_lines.ZSTD_ALONE} == set(CONTENDERS)


@pytest.mark.parametrize(
    ("n", "target"),
    [
        (200, ">= 2.3, aim 3"),
        (2_000, ">= 3.5, aim 5"),
        (20_000, ">= 5, aim 7"),
        (77, ""),
    ],
)
def test_only_the_fastest_peer_carries_the_target(n, target):
    timings = all_of(engine_lines.contenders(n, ["none"], slow=True))
    timings["Polars IPC"] = timing("Polars IPC", 0.5)
    lines = engine_lines.write_lines("c", n, ["none"], timings)
    held = {line.other: table_row(line)[-2] for line in lines if line.other.startswith("Polars")}
    assert held == {"Polars IPC": target}
    assert not any(line.target for line in lines if line.other in {"DuckDB Parquet"})


def test_sizes_leave_out_what_differs_only_in_fsync():
    timings = all_of(engine_lines.contenders(200, ["none", "zstd"], slow=True))
    lines = engine_lines.size_lines("c", ["none", "zstd"], timings, raw_bytes=100_000_000)
    assert not any("sync" in line.ours for line in lines)
    assert engine_lines.ZSTD_ALONE not in {line.ours for line in lines}
    assert {line.ratio for line in lines} == {0.5}


@pytest.mark.parametrize(("seconds", "verdict"), [(3.3, "pass"), (3.4, "short")])
def test_zstd_is_held_against_none_and_compressing_alone(seconds, verdict):
    timings = all_of(engine_lines.contenders(200, ["none", "zstd"], slow=False))
    timings |= {
        "ours none": timing("ours none", 1, 2),
        engine_lines.ZSTD_ALONE: timing(engine_lines.ZSTD_ALONE, 4, 2),
        "ours zstd": timing("ours zstd", seconds),
    }
    lines = engine_lines.write_lines("c", 200, ["none", "zstd"], timings)
    (line,) = [line for line in lines if line.other.endswith(engine_lines.ZSTD_ALONE)]
    assert (line.other_value, line.verdict) == (3, verdict)


def test_one_codec_has_no_sum_of_parts():
    assert engine_lines.ZSTD_ALONE not in engine_lines.contenders(200, ["zstd"], slow=False)


def test_the_most_subpartitions_are_held_against_the_fewest():
    timings = {
        cost_lines.number_label("zstd", n): Timing("t", (1 + rank / 10,), num_rows=1_000)
        for rank, n in enumerate(cost_lines.NUMBERS)
    }
    lines = cost_lines.number_lines("c", "zstd", timings)
    assert [line.ratio for line in lines] == pytest.approx([1.1, 1.2, 1.3])
    assert [str(line.target or "") for line in lines] == ["", "", "<= 1.3"]


def test_the_longest_stream_is_held_against_the_shortest():
    timings = {
        cost_lines.rows_label("none", rows): Timing("t", (rows / 1e6,), num_rows=rows)
        for rows in (100_000_000, 1_000_000, 10_000_000)
    }
    timings[cost_lines.rows_label("zstd", 5)] = Timing("t", (1,), num_rows=5)
    lines = cost_lines.rows_lines("c", "none", timings)
    assert [line.ratio for line in lines] == pytest.approx([1, 1])
    assert [line.verdict for line in lines] == ["", "pass"]


@pytest.mark.parametrize(("n", "verdict"), [(200, "pass"), (20_000, "short"), (7, "")])
def test_all_our_bytes_are_held_against_sparks(n, verdict):
    everything, data = disk_lines.byte_lines(n, 80, 90, 100)
    assert (everything.ratio, everything.verdict) == (0.9, verdict)
    assert (data.ratio, data.verdict) == (0.8, "")


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
    counters = {"gather_ns": 500_000_000, "encode_ns": 250_000_000, "num_rows": 5_000_000}
    profiles = (Profile("n = 200", "ours", 1.0, {**counters, "num_regions": 3}),)
    return Part("engine", "Engine", lines, {"write": (ours, peer)}, ("a note",), profiles)


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


def test_a_profile_says_where_the_time_went():
    part = a_part()
    (profile,) = part.profiles
    row = dict(zip(PROFILE_COLUMNS, profile_row(profile), strict=True))
    assert (row["total"], row["gather"], row["encode"]) == ("1,000", "500 (50%)", "250 (25%)")
    assert (row["write"], row["rest"]) == ("0 (0%)", "250 (25%)")
    assert (row["regions"], row["ns per row"]) == ("3", "200")
    assert profile_table(part).row_count == 1


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
        "num_rows": None,
    }
    (profile,) = engine["profiles"]
    assert profile["steps"]["gather"] == 0.5
    assert again["settings"] == {"scale": 1, "n": [200]}


# Command line and child --------------------------------------------------------------------------


def test_defaults_are_scale_1_and_everything():
    options = command.arguments([])
    assert (options.scale, options.n, options.only, options.repeat) == (1, None, None, None)
    assert options.table is None
    assert command.NUMBERS["engine"] == command.NUMBERS["bytes"] == (200, 2_000, 20_000)


def test_every_table_can_be_asked_for():
    from integration.bench.tables import TABLES

    assert tuple(TABLES) == command.TABLES


def test_arguments_are_read():
    given = ["--n", "5,70", "--only", "spark", "--codec", "none", "--slow", "--table", "narrow"]
    options = command.arguments(given)
    assert (options.n, options.only, options.codec, options.slow, options.table) == (
        (5, 70),
        ["spark"],
        "none",
        True,
        ["narrow"],
    )


@pytest.mark.parametrize(
    "bad", [["--n", "0"], ["--n", "x"], ["--repeat", "0"], ["--only", "x"], ["--table", "x"]]
)
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


# Input -------------------------------------------------------------------------------------------


def test_the_narrow_table_is_the_same_each_time_and_each_batch_one_allocation():
    from integration.bench.narrow import SCHEMA, narrow_batch, narrow_batches

    first, second = narrow_batches(12_000)
    assert (first.num_rows, second.num_rows) == (10_000, 2_000)
    assert first.equals(narrow_batch(0))
    assert not first.slice(0, 2_000).equals(second)
    assert first.schema.equals(SCHEMA)
    assert 42 < first.nbytes / first.num_rows < 44
    starts = [buffer.address for column in first.columns for buffer in column.buffers() if buffer]
    assert max(starts) - min(starts) < first.nbytes + 10_000
    assert first["s"][0].as_py().startswith("item-")
    assert len(first["s"][0].as_py()) == 19
    first.validate(full=True)


def test_the_chunks_of_a_shuffle_are_compressed_as_they_were(tmp_path):
    from arrow_format import write_shuffle
    from integration.bench.narrow import KEY, narrow_batches
    from integration.bench.recompress import compress_again

    receipt = write_shuffle(narrow_batches(20_000), tmp_path / "out", num_subpartitions=7, keys=KEY)
    found = compress_again(str(tmp_path))
    assert 0 < found["num_bytes"] <= receipt.num_bytes
    assert found["seconds"] > 0
