"""The command ``arrow-shuffle``, run in this process; a few times as a program of its own."""

import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

import arrow_shuffle
from arrow_format import (
    RoundRobinPartitioner,
    WriteOptions,
    delete_rows,
    open_shuffle,
)
from arrow_format.jobs.merge import MergePlan
from arrow_format.write.merge_policy import Facts, PlannedMerge
from connector.cli import main as cli
from connector.cli import tables as cli_tables
from connector.cli.charts import skew_picture
from connector.cli.inspection import measure_skew, partitioner_text
from integration.programs.region_picture import region_picture
from tests.support.programs import printed
from tests.support.small_shuffles import FAST, flip, numbered, write_rows, write_tasks

ROOT = Path(__file__).resolve().parents[4]
N = 8


def table_of(num_rows):
    return pa.table(
        {
            "k": pa.array(range(num_rows), pa.int64()),
            "name": pa.array([None if i % 10 == 0 else f"name {i}" for i in range(num_rows)]),
            "price": pa.array([i / 4 for i in range(num_rows)]),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A shuffle of two versions: 1,000 rows, and 200 more."""
    directory = str(tmp_path_factory.mktemp("shuffles") / "orders")
    write_rows(directory, table_of(1_000), "k", n=N)
    write_rows(directory, table_of(200), "k", n=N, mode="append")
    return directory


@pytest.fixture
def damaged(tmp_path):
    """A shuffle of three map outputs, a byte of two data files flipped; and those files."""
    directory = tmp_path / "damaged"
    for _ in range(3):
        write_rows(directory, table_of(100), "k", n=N, mode="append")
    files = sorted(directory.glob("map_outputs/*/*.data"))[:2]
    for file in files:
        flip(file)
    return str(directory), [file.name for file in files]


def error_of(outcome, status):
    """Check that nothing but one line on stderr came out, and return it."""
    assert outcome[0] == status
    assert outcome[1] == ""
    (line,) = outcome[2].splitlines()
    assert line.startswith("arrow-shuffle: ")
    return line


def drawn(picture, width=80, encoding="utf-8"):
    """Lines of a picture on a terminal of that width."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width).print(picture, crop=False)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def skew_lines(sizes, **how):
    sizes = np.asarray(sizes, np.int64)
    rows = (sizes + 9) // 10
    return drawn(skew_picture(rows, sizes, measure_skew(rows, sizes)), **how)


class TestPlan:
    def test_tells_which_bytes_are_read(self, run, path):
        status, out, err = run("plan", path, "--subpartitions", "3,5-6")
        assert (status, err) == (0, "")
        lines = out.splitlines()
        assert lines[0] == "subpartition 3"
        assert lines[1].startswith(f"  map task 0, attempt 0: {path}/map_outputs/")
        assert lines[1].endswith(".data")
        assert lines[2].startswith("    bytes 8 to ")
        assert lines[2].endswith(": region 0 chunk 0")
        assert "subpartitions 5 to 6" in lines
        assert lines[-1].startswith("4 reads of 4 chunks, ")

    def test_tells_what_a_condition_skips(self, run, path):
        _, out, _ = run("plan", path, "--where", "k = 17")
        (total,) = [i for i, line in enumerate(out.splitlines()) if " reads of " in line]
        why = out.splitlines()[total + 1 :]
        assert why[:2] == ["", "where k = 17"]
        assert any(line.startswith("subpartitions") and " 1 of " in line for line in why)
        found = json.loads(run("plan", path, "--where", "k = 17", "--json")[1])
        assert found["filter"] == "k = 17"
        assert found["steps"][0] | {"why": ""} == {
            "what": "subpartitions", "kept": 1, "total": N, "why": "",
        }  # fmt: skip

    def test_as_json(self, run, path):
        found = json.loads(run("plan", path, "--subpartitions", "3", "--json")[1])
        expected = open_shuffle(path).plan(3)
        plan = found["plan"]
        assert (plan["num_reads"], plan["num_bytes"]) == (2, expected.num_bytes)
        assert (plan["num_chunks"], plan["version_bytes"]) == (2, open_shuffle(path).num_bytes)
        (group,) = plan["groups"]
        assert (group["first"], group["end"], len(group["files"])) == (3, 4, 2)
        (read,) = group["files"][0]["reads"]
        assert read["chunks"] == [[0, 0]]

    @pytest.mark.slow
    def test_a_long_plan_is_cut(self, run, tmp_path):
        write_tasks(tmp_path, [[numbered([3])]] * 111, N)
        lines = run("plan", tmp_path)[1].splitlines()
        assert lines[-2] == "  ... and 23 more; JSON has all"
        assert lines[-1].startswith("111 reads of 111 chunks")

    def test_of_a_version_and_of_nothing(self, run, path, tmp_path):
        assert "1 read of 1 chunk" in run("plan", path, "--subpartitions", "3", "--version", "1")[1]
        write_rows(tmp_path, table_of(0), "k", n=N)
        assert run("plan", tmp_path)[1].splitlines()[0] == "subpartitions 0 to 7: nothing to read"

    def test_bad_subpartitions(self, run, path):
        for text, reason in (("a", "expected numbers and ranges"), ("8", "8 is out of range")):
            assert reason in error_of(run("plan", path, "--subpartitions", text), 2)


class TestInspect:
    def test_shows_schema_versions_sizes_and_skew(self, run, path):
        status, out, err = run("inspect", path)
        assert (status, err) == (0, "")
        assert out.splitlines()[0] == path
        for fact in (
            "version 2, 1,200 rows in 8 subpartitions by hash of k, format version 1",
            "overwrite  1,000",
            "append       200",
            "2 map outputs, 2 files, 2 regions, 2 chunks of ",
            "Columns (3)",
            "price  double",
            "Largest is subpartition ",
        ):
            assert fact in out, fact
        assert "\x1b" not in out

    def test_of_an_older_version(self, run, path):
        _, out, _ = run("inspect", path, "--version", 1)
        assert "version 1, 1,000 rows in 8 subpartitions" in out

    def test_says_what_the_tasks_of_a_version_did(self, run, path):
        for version, rows in ((1, 1_000), (2, 200)):
            of_version = "--version", version
            facts = json.loads(run("inspect", path, *of_version, "--json")[1])
            assert facts["counters"]["num_rows"] == rows
            assert facts["counters"]["final_flushes"] == facts["counters"]["num_batches"] == 1
            _, out, _ = run("inspect", path, *of_version)
            lines = out[out.index(f"Tasks that wrote version {version}\n") :].splitlines()[1:3]
            assert " s in all: " in lines[0]
            assert lines[1] == "  buffers written because of: end of a task 1"

    @pytest.mark.slow
    def test_of_an_older_version_among_many_shows_that_version(self, run, tmp_path):
        for _ in range(12):
            write_rows(tmp_path, table_of(1), "k", n=1, mode="append")

        def listed(*arguments):
            lines = run("inspect", tmp_path, *arguments)[1].splitlines()
            lines = lines[lines.index("Versions") + 2 : lines.index("Layout") - 1]
            numbers = [line.strip("* ").partition(" ")[0] for line in lines]
            return [int(n) for n in numbers if n.isdigit()], [x for x in lines if "..." in x]

        assert listed() == ([*range(5, 13)], ["  ... and 4 earlier"])
        assert listed("--version", 5) == ([*range(5, 13)], ["  ... and 4 earlier"])
        assert listed("--version", 4) == ([1, 2, 3, 4], ["  ... and 8 later"])
        assert listed("--version", 3)[0][-2:] == [2, 3]
        for version in range(1, 13):
            assert version in listed("--version", version)[0]

    def test_as_json_is_nothing_but_json(self, run, path):
        status, out, err = run("inspect", path, "--json")
        facts = json.loads(out)
        assert (status, err) == (0, "")
        assert facts["path"] == path
        assert facts["num_rows"] == sum(facts["subpartition_rows"]) == 1_200
        assert sum(facts["subpartition_bytes"]) == facts["sizes"]["data_bytes"]
        assert len(facts["subpartition_rows"]) == facts["num_subpartitions"] == N
        assert facts["partitioner"] == {"kind": "hash", "keys": ["k"], "seed": 42}
        assert [column["name"] for column in facts["columns"]] == ["k", "name", "price"]
        assert [(v["operation"], v["num_rows"], v["live"]) for v in facts["versions"]] == [
            ("overwrite", 1_000, True),
            ("append", 200, True),
        ]
        assert facts["layout"] == {
            "num_map_outputs": 2,
            "num_files": 2,
            "num_regions": 2,
            "num_chunks": 2,
            "num_masked_rows": 0,
            "problem": None,
        }

    def test_rows_that_masks_took_are_counted(self, run, tmp_path):
        write_rows(tmp_path, table_of(20), "k", n=2)
        assert "masked" not in run("inspect", tmp_path)[1]
        receipt = delete_rows(tmp_path, {"k": [3, 4]}, erase=False, options=FAST)
        assert receipt.num_rows > 0
        assert (
            f"{receipt.num_rows} rows masked: on disk, and not read" in run("inspect", tmp_path)[1]
        )
        facts = json.loads(run("inspect", tmp_path, "--json")[1])
        assert facts["layout"]["num_masked_rows"] == receipt.num_rows

    def test_versions_that_were_overwritten_are_not_live(self, run, tmp_path):
        for _ in range(2):
            write_rows(tmp_path, table_of(5), "k", n=2, mode="overwrite")
        facts = json.loads(run("inspect", tmp_path, "--json")[1])
        assert [version["live"] for version in facts["versions"]] == [False, True]

    def test_of_no_rows(self, run, tmp_path):
        write_rows(tmp_path, table_of(0), "k", n=3)
        status, out, _ = run("inspect", tmp_path)
        assert status == 0
        assert "All 3 subpartitions are empty." in out

    @pytest.mark.slow
    def test_lists_few_of_many_columns_and_versions(self, run, tmp_path):
        wide = pa.table({f"column_{i}": pa.array([1]) for i in range(300)})
        for _ in range(12):
            write_rows(tmp_path, wide, "column_0", n=1, mode="append")
        _, out, _ = run("inspect", tmp_path)
        assert "... and 276 more; --json lists all" in out
        assert "... and 4 earlier" in out
        assert len(out.splitlines()) < 60

    def test_tells_of_an_index_that_is_gone_and_still_shows_the_rest(self, run, tmp_path):
        write_rows(tmp_path, table_of(10), "k", n=2)
        (index,) = tmp_path.glob("map_outputs/*/*.index")
        index.unlink()
        status, out, err = run("inspect", tmp_path)
        assert status == 1
        assert "10 rows in 2 subpartitions" in out
        assert index.name in err

    def test_tells_of_an_earlier_entry_that_is_damaged(self, run, tmp_path):
        for _ in range(2):
            write_rows(tmp_path, table_of(5), "k", n=2, mode="overwrite")
        entry = min(tmp_path.glob("commit_log/*/*.entry"))
        entry.write_bytes(entry.read_bytes()[:-5])
        status, out, err = run("inspect", tmp_path)
        assert status == 1
        assert "unreadable" in out
        assert entry.name in err

    def test_control_characters_in_names_are_escaped(self, run, tmp_path):
        named = pa.table({"a\x1b[31m\n": [1], "[bold]b": [2]})
        write_rows(tmp_path, named, "[bold]b", n=1)
        _, out, _ = run("inspect", tmp_path)
        assert "\x1b" not in out
        assert r"a\x1b[31m\n" in out
        assert "by hash of [bold]b" in out


class TestHead:
    def test_shows_the_first_rows_in_their_order(self, run, path):
        status, out, err = run("head", path, "--subpartition", 3, "--rows", 2)
        assert (status, err) == (0, "")
        names, first, second, caption = out.splitlines()
        assert names.split() == ["k", "name", "price"]
        assert int(first.split()[0]) < int(second.split()[0])
        assert caption.strip().startswith("(2 of ")
        assert "rows of subpartition 3)" in caption

    def test_of_some_columns_in_the_order_asked_for(self, run, path):
        _, out, _ = run("head", path, "--subpartition", 3, "--columns", "price, k")
        assert out.splitlines()[0].split() == ["price", "k"]
        assert len(out.splitlines()) == 12

    def test_of_more_rows_than_there_are(self, run, tmp_path):
        write_rows(tmp_path, table_of(3), "k", n=1)
        _, out, _ = run("head", tmp_path, "--subpartition", 0)
        assert "(3 of 3 rows of subpartition 0)" in out
        assert "null" in out

    def test_of_an_empty_subpartition(self, run, tmp_path):
        write_rows(tmp_path, table_of(0), "k", n=2)
        _, out, _ = run("head", tmp_path, "--subpartition", 1)
        assert "(0 of 0 rows of subpartition 1)" in out
        assert out.splitlines()[0].split() == ["k", "name", "price"]

    def test_of_no_rows_and_many_columns_names_as_many_as_fit(self, run, tmp_path):
        table = pa.table({f"c{i}": pa.array([], pa.int64()) for i in range(500)})
        write_rows(tmp_path, table, "c0", n=1)
        status, out, _ = run("head", tmp_path, "--subpartition", 0)
        names, caption = out.splitlines()
        assert status == 0
        assert len(names) <= 80
        assert "more columns do not fit" in caption

    def test_of_all_subpartitions(self, run, path):
        assert "(10 of 1,200 rows)" in run("head", path)[1]

    def test_of_a_condition(self, run, path):
        _, out, _ = run("head", path, "--where", "k < 3 AND NAME IS NOT NULL", "--columns", "k")
        *rows, caption = [line.strip() for line in out.splitlines()]
        assert sorted(rows) == ["1", "1", "2", "2", "k"]
        assert caption == "(4 rows where k < 3 AND name IS NOT NULL)"
        _, out, _ = run("head", path, "--where", "k < 30", "--rows", 5)
        assert "(first 5 rows where k < 30)" in out

    def test_of_a_key(self, run, path):
        _, out, _ = run("head", path, "--key", "k=17", "--key", "k=900", "--columns", "k")
        *rows, caption = [line.strip() for line in out.splitlines()]
        assert sorted(rows) == ["17", "17", "900", "k"]
        assert caption == "(3 rows with keys (k): (17), (900))"

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--where", "x = 3"], "column 'x' is not there; columns are k, name, price"),
            (["--where", "k > and"], "does not parse: line 1, column 5, at 'and'"),
            (["--key", "k"], "--key 'k': expected a name and a value, such as customer=17"),
            (["--key", "name=a"], "key column 'k' is missing"),
            (["--key", "k=x"], "column 'k' does not fit the stored type int64"),
            (["--key", "k=1", "--where", "k = 1"], "--key and --where: give one of them"),
            (["--subpartition", N], "subpartition 8 is out of range; the shuffle has 8, 0 to 7"),
            (["--subpartition", -1], "subpartition -1 is out of range; the shuffle has 8, 0 to 7"),
            (["--columns", "cost"], "'cost' is not there; columns are k, name, price"),
        ],
    )
    def test_of_what_does_not_fit(self, run, path, arguments, reason):
        assert reason in error_of(run("head", path, *arguments), 2)

    def test_cells_are_one_short_line(self):
        assert cli_tables.cell_text("a\nb\x1b") == r"a\nb\x1b"
        assert cli_tables.cell_text("x" * 100) == "x" * 29 + "..."

    def test_of_types_that_python_cannot_show(self, run, tmp_path):
        far = pa.table(
            {
                "k": [1],
                "at": pa.array([569_000_000_000_000_000], pa.timestamp("us", "UTC")),
                "on": pa.array([3_000_000], pa.date32()),
                "list": [[1, None]],
                "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
                "days": pa.array([[3_000_000]], pa.list_(pa.date32())),
                "text": pa.array([b"no\xfftext"]).view(pa.string()),
                "nowhere": pa.array([1], pa.timestamp("us", "Nowhere/At_All")),
                "span": pa.array([2**62], pa.duration("s")),
            }
        )
        write_rows(tmp_path, far, "k", n=1, for_spark=False)
        status, out, err = run("head", tmp_path, "--subpartition", 0)
        assert (status, err) == (0, "")
        for shown in ("20000-", "10183-", "[1, None]", "[('a', 1)]", "[10183-", "no\ufffdtext"):
            assert shown in out

    def test_more_rows_than_there_can_be(self, run, path):
        status, out, err = run("head", path, "--subpartition", 3, "--rows", 1 << 63)
        assert (status, err) == (0, "")
        total = open_shuffle(path).subpartition_rows[3].as_py()
        assert f"({total} of {total} rows" in out

    @pytest.mark.parametrize(
        ("widths", "is_terminal", "shown"),
        [((10, 10, 10), False, 3), ((10, 10, 10), True, 2), ((30, 10), True, 1)],
    )
    def test_columns_that_do_not_fit_are_left_out(self, widths, is_terminal, shown):
        rows = pa.table({f"{number}": ["x" * width] for number, width in enumerate(widths)})
        file = io.StringIO()
        console = Console(file=file, width=26, force_terminal=is_terminal, color_system=None)
        cli_tables.show_rows(console, rows, "all")
        names, values, caption = file.getvalue().splitlines()
        assert (len(names.split()), len(values.split())) == (shown, shown)
        assert ("more columns do not fit" in caption) == (shown < len(widths))


class TestVerify:
    def test_of_a_sound_shuffle(self, run, path):
        status, out, err = run("verify", path)
        assert (status, err) == (0, "")
        assert f"{path} version 2: sound (2 files, 2 chunks, 1,200 rows, " in out
        assert ", placement: checked) (" in out

    def test_as_json(self, run, path):
        status, out, err = run("verify", path, "--json", "--version", 1)
        report = json.loads(out)
        assert (status, err) == (0, "")
        assert (report["ok"], report["placement"]) == (True, "checked")
        assert (report["version"], report["num_rows"], report["problems"]) == (1, 1_000, [])

    def test_whom_nobody_can_ask(self, run, tmp_path):
        write_rows(tmp_path, table_of(50), n=2, partitioner=RoundRobinPartitioner())
        assert ", placement: unknown) (" in run("verify", tmp_path)[1]
        assert json.loads(run("verify", tmp_path, "--json")[1])["placement"] == "unknown"

    def test_lists_every_damaged_file(self, run, damaged):
        path, names = damaged
        status, out, err = run("verify", path)
        assert status == 1
        lines = out.splitlines()
        assert len(lines) == 2
        for name in names:
            assert sum(name in line for line in lines) == 1
        assert all(line.startswith("CorruptShuffleError: ") for line in lines)
        assert "2 problems found; sound are 1 file" in err

    def test_lists_every_damaged_file_as_json(self, run, damaged):
        path, names = damaged
        status, out, err = run("verify", path, "--json")
        report = json.loads(out)
        assert (status, err) == (1, "")
        assert report["ok"] is False
        assert {problem["error"] for problem in report["problems"]} == {"CorruptShuffleError"}
        messages = " ".join(problem["message"] for problem in report["problems"])
        assert all(name in messages for name in names)

    def test_of_a_version_before_the_damage(self, run, tmp_path):
        for _ in range(2):
            write_rows(tmp_path, table_of(50), "k", n=2, mode="append")
        last = max(tmp_path.glob("map_outputs/*/*.data"), key=lambda file: file.stat().st_mtime_ns)
        last.write_bytes(b"")
        assert run("verify", tmp_path, "--version", 1)[0] == 0
        assert run("verify", tmp_path)[0] == 1

    def test_a_damaged_newest_entry(self, run, tmp_path):
        write_rows(tmp_path, table_of(5), "k", n=2)
        (entry,) = tmp_path.glob("commit_log/*/*.entry")
        entry.write_bytes(entry.read_bytes().replace(b'"number":1', b'"number":2'))
        line = error_of(run("verify", tmp_path), 1)
        assert "CorruptShuffleError" in line
        assert entry.name in line


class TestErrors:
    @pytest.mark.parametrize("command", ["inspect", "verify", "merge", "head", "plan"])
    def test_what_is_no_shuffle(self, run, tmp_path, command):
        extra = ["--subpartition", 0] if command == "head" else []
        file = tmp_path / "file"
        file.touch()
        for path, reason in (
            (tmp_path / "nowhere", "is not there; check the path"),
            (tmp_path, "holds no committed shuffle"),
            (file, "is a file, not the directory of a shuffle"),
        ):
            line = error_of(run(command, path, *extra), 1)
            assert f"ShuffleNotFoundError: {path}: {reason}" in line

    def test_a_version_that_is_not_there(self, run, path):
        line = error_of(run("inspect", path, "--version", 9), 1)
        assert "version 9 is not there; there are versions 1 to 2" in line

    def test_a_newer_format(self, run, tmp_path):
        write_rows(tmp_path, table_of(5), "k", n=2)
        (entry,) = tmp_path.glob("commit_log/*/*.entry")
        import zlib

        body, _, rest = entry.read_bytes().split(b"\n", 2)
        body = body.replace(b'"format_version":1', b'"format_version":9')
        trailer = b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body))
        entry.write_bytes(body + trailer + rest)
        line = error_of(run("inspect", tmp_path), 1)
        assert "FormatVersionError" in line
        assert "format version 9" in line

    def test_a_scheme_that_is_not_supported_yet(self, run):
        assert "not supported yet" in error_of(run("inspect", "hdfs://host/shuffle"), 2)

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["inspect"], "Missing argument 'PATH'"),
            (["inspect", "PATH", "--frob"], "No such option: --frob"),
            (["head", "PATH", "--subpartition", "x"], "Invalid value for '--subpartition'"),
            (["head", "PATH", "--subpartition", "1", "--rows", "0"], "Invalid value for '--rows'"),
            (["frobnicate"], "No such command 'frobnicate'"),
            (["bench"], "No such command 'bench'"),
            (["inspct"], "No such command 'inspct'. Did you mean 'inspect'? Try "),
        ],
    )
    def test_bad_usage(self, run, arguments, reason):
        line = error_of(run(*arguments), 2)
        assert reason in line
        assert "--help" in line

    def test_an_error_nobody_thought_of_is_one_line_too(self, run, path, monkeypatch):
        def fail(*_):
            raise ZeroDivisionError("first\nsecond")

        monkeypatch.setattr("connector.cli.inspection.inspect_shuffle", fail)
        line = error_of(run("inspect", path), 1)
        assert line == r"arrow-shuffle: unexpected ZeroDivisionError: first\nsecond"


class TestMerge:
    @pytest.fixture
    def several(self, tmp_path):
        """A shuffle of five versions with a map output each."""
        directory = tmp_path / "several"
        for _ in range(5):
            write_rows(directory, table_of(200), "k", n=N, mode="append")
        return directory

    def rows_of(self, path):
        return [open_shuffle(path).subpartition(i).read_all() for i in range(N)]

    @pytest.mark.slow
    def test_merges_into_a_version_of_the_same_rows(self, run, several):
        expected = self.rows_of(several)
        status, out, err = run("merge", several, "--by", "map_output")
        assert (status, err) == (0, "")
        assert out.splitlines()[0].startswith(f"{several}: merged into version 6 (")
        for fact in ("map outputs  5 -> 1", "files        5 -> 1", "regions      5 -> 5"):
            assert fact in out, fact
        assert "stay on disk" in out
        assert self.rows_of(several) == expected
        assert run("verify", several)[0] == 0
        shown = run("inspect", several)[1]
        assert "merge      1,000" in shown
        assert "Tasks that wrote" not in shown

    @pytest.mark.slow
    def test_rewrites_when_told_to(self, run, several):
        expected = self.rows_of(several)
        _, out, _ = run("merge", several, "--by", "map_output", "--rewrite", "always")
        assert "regions      5 -> 1" in out
        assert self.rows_of(several) == expected

    def test_a_dry_run_changes_nothing(self, run, several):
        before = sorted(several.rglob("*"))
        status, out, err = run("merge", several, "--by", "map_output", "--dry-run")
        assert (status, err) == (0, "")
        first, second = out.splitlines()
        assert first.startswith(f"{several} version 5: 1 merge of ")
        assert second.startswith("  append map outputs 0 to 4: 5 files, 5 regions, ")
        _, out, _ = run("merge", several, "--by", "map_output", "--dry-run", "--rewrite", "always")
        assert "  rewrite map outputs 0 to 4" in out
        assert sorted(several.rglob("*")) == before

    def test_as_json(self, run, several):
        plan = json.loads(run("merge", several, "--by", "map_output", "--dry-run", "--json")[1])
        assert (plan["path"], plan["version"]) == (str(several), 5)
        (merge,) = plan["merges"]
        assert (merge["rewrite"], merge["first"], merge["end"]) == (False, 0, 5)
        report = json.loads(run("merge", several, "--by", "map_output", "--json")[1])
        assert report["version"] == 6
        assert report["plan"]["merges"] == [merge]
        assert report["num_map_outputs"] == [5, 1]
        assert (report["before"]["num_files"], report["after"]["num_files"]) == (5, 1)

    def test_nothing_is_worth_it(self, run, several):
        run("merge", several, "--by", "map_output")
        for extra in ([], ["--dry-run"]):
            status, out, _ = run("merge", several, "--by", "map_output", *extra)
            assert status == 0
            assert out.startswith(f"{several} version 6: nothing is worth merging")

    def test_a_single_map_output(self, run, tmp_path):
        options = WriteOptions(sync=False, sort_buffer_bytes=8_192)
        batches = table_of(2_000).to_batches(max_chunksize=50)
        write_rows(tmp_path, batches, "k", n=N, options=options)
        _, out, _ = run("merge", tmp_path, "--by", "map_output", "--dry-run")
        assert "  rewrite map output 0: 1 file, " in out

    @pytest.mark.slow
    def test_by_subpartition(self, run, several):
        expected = self.rows_of(several)
        how = ("--by", "subpartition", "--rewrite", "always")
        plan = run("merge", several, "--by", "map_output", *how, "--dry-run")[1].splitlines()
        assert plan[0].endswith(" by subpartition, into 1 file")
        assert "regions      5 -> 1" in run("merge", several, "--by", "map_output", *how)[1]
        assert self.rows_of(several) == expected
        line = error_of(run("merge", several, "--by", "key"), 2)
        assert "by='key': expected one of 'map_output', 'subpartition'" in line

    def test_large_merges_are_better_done_by_spark(self):
        merges = (PlannedMerge(rewrite=False, first=0, end=2),) * 2
        facts = Facts(2, 2, 16 << 30, 10, 10)
        plan = MergePlan("x", 1, merges, (facts, facts))
        spark = "  This is 2 tasks in one process; Spark does them concurrently: "
        call = "arrow_shuffle.open_shuffle(path).merge('map_output', spark=spark)"
        assert str(plan).splitlines()[-1] == spark + call
        assert len(str(MergePlan("x", 1, merges[:1], (facts,))).splitlines()) == 2

    def test_long_plans_are_cut(self):
        merges = (PlannedMerge(rewrite=False, first=0, end=2),) * 50
        plan = MergePlan("x", 1, merges, (Facts(2, 2, 10, 10, 10),) * 50)
        lines = str(plan).splitlines()
        assert len(lines) == 22
        assert lines[-1] == "  ... and 30 more; JSON has all"

    def test_damage_is_found_and_nothing_merged(self, run, damaged):
        directory, names = damaged
        line = error_of(run("merge", directory, "--by", "map_output"), 1)
        assert "CorruptShuffleError" in line
        assert any(name in line for name in names)
        assert open_shuffle(directory).version == 3

    def test_a_bad_choice(self, run, several):
        line = error_of(run("merge", several, "--by", "map_output", "--rewrite", "often"), 2)
        assert "rewrite='often': expected one of 'never', 'auto', 'always'" in line


class TestProgram:
    """What only a process of its own shows."""

    def start(self, *command, **environment):
        return subprocess.run(
            [*map(str, command)],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run_command(self, *arguments, **environment):
        return self.start(sys.executable, "-m", "connector.cli", *arguments, **environment)

    @pytest.mark.slow
    def test_help_and_version(self):
        for arguments in ([], ["--help"]):
            completed = self.run_command(*arguments)
            assert completed.returncode == 0
            for command in ("inspect", "head", "verify", "merge", "gc"):
                assert f"  {command} " in completed.stdout
        assert self.run_command("--version").stdout.startswith("arrow-shuffle ")

    @pytest.mark.slow
    def test_its_status_is_that_of_the_command(self, path, damaged):
        """It is 0 below."""
        assert self.run_command("verify", damaged[0]).returncode == 1
        assert self.run_command("head", path, "--subpartition", 99).returncode == 2

    def test_neither_spark_nor_pandas_is_imported_to_start(self):
        code = (
            "import sys, connector.cli.main; connector.cli.main.main(['--help']); "
            "print(sorted({'pyspark', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)))"
        )
        assert printed(code).splitlines()[-1] == "[]"

    @pytest.mark.slow
    def test_no_command_imports_spark_nor_pandas(self, path, tmp_path):
        copy = shutil.copytree(path, tmp_path / "copy")
        code = (
            "import sys; from connector.cli.main import main\n"
            f"for command in (['inspect', {path!r}], ['verify', {path!r}],\n"
            f"                ['head', {path!r}, '--subpartition', '1'],\n"
            f"                ['delete', '{copy}', '--key', 'k=3', '--yes']):\n"
            "    assert main(command) == 0\n"
            "assert not {'pyspark', 'pandas'} & set(sys.modules)\n"
        )
        printed(code)

    @pytest.mark.slow
    def test_a_terminal_that_knows_ascii_only(self, path):
        completed = self.run_command("inspect", path, PYTHONIOENCODING="ascii")
        assert completed.returncode == 0
        assert completed.stdout.isascii()
        assert "###" in completed.stdout

    @pytest.mark.slow
    @pytest.mark.parametrize(("reader", "status"), [("head -c 1", {0, 141}), ("true", {141})])
    def test_a_reader_that_stops_early(self, path, reader, status):
        """Not 1, which would say that something is damaged."""
        command = f"{sys.executable} -m connector.cli inspect {path} --json | {reader}"
        completed = self.start("bash", "-o", "pipefail", "-c", command)
        assert completed.stdout == ("{" if reader == "head -c 1" else "")
        assert completed.stderr == ""
        assert completed.returncode in status

    @pytest.mark.slow
    def test_a_terminal_without_a_width(self, path, run, monkeypatch):
        for command in (["inspect"], ["head", "--subpartition", 3], ["plan"]):
            monkeypatch.setenv("COLUMNS", "80")
            expected = run(*command, path)
            monkeypatch.setenv("COLUMNS", "0")
            assert run(*command, path) == expected
            assert expected[1]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("command", "status"),
        [
            ("inspect {path} >&-", 0),
            ("inspect {path}/nothing >&-", 1),
            ("inspect {path}/nothing 2>&-", 1),
        ],
    )
    def test_streams_that_are_closed(self, path, command, status):
        command = f"{sys.executable} -m connector.cli {command.format(path=path)}"
        completed = self.start("bash", "-c", command)
        assert (completed.returncode, completed.stdout) == (status, "")
        told = status and "2>&-" not in command
        assert ("ShuffleNotFoundError" in completed.stderr) == bool(told)
        assert "unexpected" not in completed.stderr

    def test_an_interrupt(self, path, run, monkeypatch):
        def interrupted(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr("arrow_format.read.shuffle.open_shuffle", interrupted)
        assert run("verify", path) == (130, "", "arrow-shuffle: interrupted\n")


class TestPictures:
    def test_one_subpartition(self):
        lines = skew_lines([500])
        assert lines[0].split()[:2] == ["0", "█" * 40]
        assert lines[-1].strip() == "There is one subpartition; nothing is uneven."

    def test_few_subpartitions_have_a_bar_each(self):
        lines = skew_lines([100, 0, 400, 100])
        assert [line.split()[0] for line in lines[:4]] == ["0", "1", "2", "3"]
        assert "empty" in lines[1]
        assert lines[2].count("█") == 4 * lines[0].count("█")
        assert lines[-1].strip() == (
            "Largest is subpartition 2: 400 B, 4.0 x the median of 100 B; 1 of 4 are empty."
        )

    @pytest.mark.parametrize("n", [17, 200, 20_000, 1_000_000])
    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_many_subpartitions_become_columns_that_fit(self, n, width):
        sizes = np.full(n, 1_000)
        sizes[n // 3] = 9_000
        lines = skew_lines(sizes, width=width)
        assert all(len(line) <= width for line in lines[:-1])
        assert len(lines) < 20
        peak = [line for line in lines[:6] if "█" in line]
        assert len(peak) == 6
        # One of very many: the peak must not vanish among its neighbours.
        assert peak[0].count("█") >= 1
        assert any(line.split()[:1] == [str(n // 3)] for line in lines)
        assert f"Largest is subpartition {n // 3}: 9.0 kB, 9.0 x the median of 1.0 kB." in lines[-1]

    def test_the_largest_are_named_in_order(self):
        sizes = np.ones(100, np.int64)
        sizes[[7, 70, 33]] = [500, 900, 700]
        lines = skew_lines(sizes)
        named = [line.split()[0] for line in lines[9:14]]
        assert named[:3] == ["70", "33", "7"]

    def test_all_empty(self):
        assert skew_lines([0] * 200) == ["  All 200 subpartitions are empty."]
        assert skew_lines([0]) == ["  The one subpartition is empty."]

    def test_in_ascii(self):
        for sizes in ([100, 0, 400], [5] * 50):
            assert "#" in "".join(skew_lines(sizes, encoding="ascii"))

    def test_nothing_but_plain_text_without_a_terminal(self):
        assert "\x1b" not in "".join(skew_lines([5, 500] * 50))

    def test_regions_are_as_long_as_their_bytes(self):
        regions = [[np.array([300]), np.array([50, 50])], [np.array([100])], []]
        lines = drawn(region_picture(regions))
        assert lines[0].count("█") == 3 * lines[0].count("▒")
        assert "2 regions, 3 chunks, 400 B" in lines[0]
        assert "1 region, 1 chunk, 100 B" in lines[1]
        assert "0 regions, 0 chunks, 0 B" in lines[2]

    def test_only_some_of_many_map_outputs_are_drawn(self):
        lines = drawn(region_picture([[np.array([100])]] * 20, most=4))
        assert len(lines) == 5
        assert lines[-1].strip() == "... and 16 more"

    def test_no_map_output_at_all(self):
        assert drawn(region_picture([])) == ["  No map task had any rows."]


def test_skew_counts_only_subpartitions_with_rows():
    skew = measure_skew(np.array([0, 1, 5, 1]), np.array([0, 10, 50, 10]))
    assert (skew.num_empty, skew.median_bytes, skew.largest_over_median) == (1, 10.0, 5.0)
    assert [one.subpartition for one in skew.largest] == [2, 1, 3]


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"kind": "hash", "keys": ["a", "b"], "seed": 42}, "hash of a, b"),
        ({"kind": "roundrobin"}, "round robin"),
        ({"kind": "column", "column": "pid"}, "ids in column pid"),
        ({"kind": "by_weekday", "column": "day"}, "by_weekday (column=day)"),
        ({"kind": "mine"}, "mine"),
    ],
)
def test_a_partitioner_in_words(description, text):
    assert partitioner_text(description) == text


def test_the_page_of_the_command_says_what_json_each_command_prints():
    page = (ROOT / "docs/guide/command.md").read_text()
    table = page[page.index("| `--json` of |") :].partition("\n\n")[0].splitlines()[2:]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table]
    with_json = {
        command.callback.__name__
        for command in cli.app.registered_commands
        if "as_json" in inspect.signature(command.callback).parameters
    }
    assert {name for names in rows for name in names} == with_json
    named = {name for line in table for name in re.findall(r"`([A-Z]\w+)`", line)}
    assert named <= {*arrow_shuffle.__all__, "ReadExplanation"}
