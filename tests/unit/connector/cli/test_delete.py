"""``arrow-shuffle delete``: rows of keys that are given as texts or in files, and the check."""

import json
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from pyarrow import parquet

from arrow_format import (
    ColumnPartitioner,
    DeletionReceipt,
    collect_garbage,
    open_shuffle,
)
from connector.cli.main import main
from tests.support.small_shuffles import write_rows


@pytest.fixture
def path(tmp_path):
    table = pa.table({"customer": [17, 18, 19] * 3, "day": ["a", "b,x", "c"] * 3, "v": range(9)})
    write_rows(tmp_path / "one", table, "customer", n=3)
    keys = ["customer", "day"]
    write_rows(tmp_path / "two", table, keys, n=3)
    return tmp_path


def customers(path):
    return sorted(set(open_shuffle(path).read().read_all()["customer"].to_pylist()))


@pytest.mark.slow
def test_keys_as_texts_and_the_check_of_the_receipt(path, capsys):
    one = str(path / "one")
    assert main(["delete", one, "--key", "customer=17", "--key", "customer=19"]) == 2
    assert "2 key(s)" in capsys.readouterr().err
    assert customers(one) == [17, 18, 19]
    arguments = ["--key", "customer=17", "--key", "customer=19", "--yes", "--json"]
    assert main(["delete", one, *arguments]) == 0
    receipt = path / "receipt.json"
    receipt.write_text(capsys.readouterr().out)
    assert DeletionReceipt.from_json(receipt.read_text()).num_rows == 6
    assert customers(one) == [18]
    assert main(["delete", one, "--check", str(receipt)]) == 1
    assert "not gone" in capsys.readouterr().out
    collect_garbage(one, retention=timedelta(0), compact_log=True)
    assert main(["delete", "--check", str(receipt), one]) == 0
    assert "the last byte of the deleted rows is gone" in capsys.readouterr().out
    assert main(["delete", "--check", str(receipt), one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_gone"] is True


def test_it_says_what_to_do_next(path, capsys):
    assert main(["delete", str(path / "one"), "--key", "customer=17", "--yes"]) == 0
    printed = capsys.readouterr().out
    assert "3 rows of 1 key deleted as version 2" in printed
    assert "arrow-shuffle gc" in printed


def test_keys_of_several_columns_may_hold_commas(path):
    two = str(path / "two")
    assert main(["delete", two, "--key", "customer=18,day=b,x", "--yes"]) == 0
    assert customers(two) == [17, 19]
    assert main(["delete", two, "--key", "day=a,customer=19", "--yes"]) == 0
    assert customers(two) == [17, 19]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_keys_in_a_file(path, kind):
    file = path / f"keys.{kind}"
    if kind == "csv":
        file.write_text('customer,day\n17,a\n18,"b,x"\n')
    else:
        parquet.write_table(pa.table({"customer": [17, 18], "day": ["a", "b,x"]}), file)
    assert main(["delete", str(path / "two"), "--keys", str(file), "--yes"]) == 0
    assert customers(path / "two") == [19]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected --key"),
        (["--key", "customer=1", "--keys", "x.csv"], "expected --key"),
        (["--key", "customer"], "expected COLUMN=VALUE"),
        (["--key", "customer=1,customer=2"], "expected COLUMN=VALUE"),
        (["--key", "other=1"], "a value for each key column: customer"),
        (["--key", "customer=x", "--yes"], "does not fit the stored type int64"),
        (["--keys", "keys.txt"], "ends with .parquet or .csv"),
        (["--keys", "missing.csv"], "cannot be read"),
        (["--keys", "missing.parquet"], "cannot be read"),
        (["--check", "missing.json"], "cannot be read"),
        (["--check", "missing.json", "--key", "customer=1"], "deletes nothing"),
    ],
)
def test_bad_usage(path, capsys, arguments, says):
    assert main(["delete", str(path / "one"), *arguments]) == 2
    assert says in capsys.readouterr().err
    assert customers(path / "one") == [17, 18, 19]


def test_a_file_that_is_no_receipt(path, capsys):
    (path / "x.json").write_text("{}")
    assert main(["delete", str(path / "one"), "--check", str(path / "x.json")]) == 2
    assert "not a receipt" in capsys.readouterr().err


def test_a_shuffle_whose_keys_do_not_decide(path, capsys):
    table = pa.table({"p": [0, 1]})
    write_rows(path / "x", table, n=2, partitioner=ColumnPartitioner("p"))
    assert main(["delete", str(path / "x"), "--key", "p=1", "--yes"]) == 2
    assert "no key says where its rows are" in capsys.readouterr().err


def test_a_deletion_that_is_repeated(path, capsys):
    one = str(path / "one")
    printed = []
    for customer in ("17", "18"):
        once = ["--transaction", "forget", "7", "--yes", "--json"]
        assert main(["delete", one, "--key", f"customer={customer}", *once]) == 0
        printed.append(DeletionReceipt.from_json(capsys.readouterr().out))
    assert printed[1] == replace(printed[0], is_repetition=True)
    assert customers(one) == [18, 19]
    # Whatever the shuffle is by now.
    other = pa.table({"other": [1]})
    write_rows(one, other, "other", n=3, mode="overwrite")
    assert main(["delete", one, "--key", "customer=17", *once]) == 0
    assert DeletionReceipt.from_json(capsys.readouterr().out) == printed[1]


def test_an_expected_version(path, capsys):
    arguments = ["--key", "customer=17", "--yes", "--expected-version", "7"]
    assert main(["delete", str(path / "one"), *arguments]) == 1
    assert "expected_version=7" in capsys.readouterr().err
