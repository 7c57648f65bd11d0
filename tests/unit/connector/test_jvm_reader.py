"""The reader in Spark's JVM as Python sees it: what a session needs, who reads, what names mean."""

from dataclasses import fields
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrow_shuffle
from arrow_shuffle.errors import MissingPackageError, OptionError
from connector import jvm_reader
from connector.jvm_reader import (
    BUCKETING,
    CATALOG_CLASS,
    JAR,
    NO_READER,
    Asked,
    JvmReader,
    path_of_table,
    why_python,
)

OWN = "0.2.0+0123456789ab"
THERE = JvmReader(OWN)


# Settings -----------------------------------------------------------------------------------------


def test_settings_are_four(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert arrow_shuffle.spark_config(warehouse="w") == {
        "spark.jars": str(JAR),
        "spark.sql.catalog.shuffles": CATALOG_CLASS,
        "spark.sql.catalog.shuffles.warehouse": str(tmp_path / "w"),
        BUCKETING: "true",
    }


def test_without_a_warehouse_only_paths_are_names():
    assert set(arrow_shuffle.spark_config(catalog="lake")) == {
        "spark.jars", "spark.sql.catalog.lake", BUCKETING
    }  # fmt: skip


@pytest.mark.parametrize("uri", ["s3a://bucket/w", "file:///w", "abfss://c@a.dfs.core.windows.net"])
def test_a_uri_is_left_as_it_is(uri):
    assert arrow_shuffle.spark_config(uri)["spark.sql.catalog.shuffles.warehouse"] == uri


@pytest.mark.parametrize("name", ["", "a.b", "a b", "1a", "spark_catalog", "ä"])
def test_a_catalog_has_a_name_that_sql_takes(name):
    with pytest.raises(OptionError, match="expected a name of letters"):
        arrow_shuffle.spark_config(catalog=name)


def test_a_package_without_its_jar_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(jvm_reader, "JAR", tmp_path / "none.jar")
    with pytest.raises(MissingPackageError, match="needs this package installed"):
        arrow_shuffle.spark_config()
    assert jvm_reader.own_version.__wrapped__() is None


# Who reads ----------------------------------------------------------------------------------------

REFUSED = {
    "filter": ["Arrow", "keys"],
    "is_latest": [True],
    "has_subpartitions": [True],
    "is_divided": [True],
    "is_of_changes": [True],
    "sort_by": ["day, price"],
    "has_options": [True],
    "has_storage_options": [True],
    "are_alike": [True],
    "lacks_type": [True],
}
ONE_OF_THEM = [Asked(**{name: value}) for name, values in REFUSED.items() for value in values]
READERS = st.builds(
    JvmReader,
    st.sampled_from([None, OWN, "0.1.0+0123456789ab"]),
    st.sampled_from([None, "java.lang.Error: odd"]),
)
ASKED = st.builds(
    Asked,
    **{
        name: st.sampled_from([getattr(Asked(), name), *values, *(["SQL"] * (name == "filter"))])
        for name, values in REFUSED.items()
    },
)


def test_each_thing_that_can_be_asked_for_is_tried():
    assert set(REFUSED) == {field.name for field in fields(Asked)}


@pytest.mark.parametrize("asked", [Asked(), Asked(filter="SQL")])
def test_the_jvm_reads_what_is_asked_in_sql(asked):
    assert why_python(THERE, OWN, asked) is None


@pytest.mark.parametrize("asked", ONE_OF_THEM, ids=str)
def test_python_reads_what_only_it_can(asked):
    assert why_python(THERE, OWN, asked) is not None


def test_each_reason_is_another():
    reasons = [why_python(THERE, OWN, asked) for asked in ONE_OF_THEM]
    assert len({*reasons}) == len(reasons)


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (NO_READER, "does not have it (arrow_shuffle.spark_config)"),
        (JvmReader(None, "odd"), "does not answer (odd)"),
        (JvmReader("0.1.0+a"), f"is of 0.1.0+a, this package of {OWN}"),
        (JvmReader(OWN, "403"), "cannot open the path (403)"),
    ],
)
def test_a_session_says_why_it_cannot(reader, said):
    assert said in why_python(reader, OWN, Asked())


@given(READERS, ASKED)
def test_the_jvm_reads_if_and_only_if_all_allows_it(reader, asked):
    allowed = reader == THERE and asked in (Asked(), Asked(filter="SQL"))
    assert (why_python(reader, OWN, asked) is None) == allowed


# Names --------------------------------------------------------------------------------------------


def session(warehouse="/w", name="shuffles"):
    settings = {f"spark.sql.catalog.{name}": CATALOG_CLASS}
    if warehouse is not None:
        settings[f"spark.sql.catalog.{name}.warehouse"] = warehouse
    return SimpleNamespace(conf=settings)


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("orders", "/w/orders"),
        ("sales.orders", "/w/sales/orders"),
        ("shuffles.sales.orders", "/w/sales/orders"),
        ("shuffles", "/w/shuffles"),
        ("other.sales.orders", "/w/other/sales/orders"),
    ],
)
def test_a_name_is_below_the_warehouse(table, path):
    assert path_of_table(session(), table) == path
    assert path_of_table(session("/w/"), table) == path


def test_a_name_may_begin_with_another_catalog():
    assert path_of_table(session(name="lake"), "lake.orders") == "/w/orders"


@pytest.mark.parametrize(
    ("warehouse", "path"),
    [("s3a://bucket/w", "s3://bucket/w/orders"), ("gs://bucket", "gs://bucket/orders")],
)
def test_a_warehouse_of_hadoop_is_written_by_its_other_name(warehouse, path):
    assert path_of_table(session(warehouse), "orders") == path


@pytest.mark.parametrize(
    "table", ["", ".", "a.", ".a", "a..b", "a/b", "../a", "_a", " a", "a.`b`", "a\\b", "a\0"]
)
def test_what_is_no_name_is_refused(table):
    with pytest.raises(OptionError, match="expected a name such as"):
        path_of_table(session(), table)


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        (None, "there is no session: give spark=session, or a path"),
        (SimpleNamespace(conf={}), "has no catalog 'shuffles' with a warehouse"),
        (session(None), "has no catalog 'shuffles' with a warehouse"),
        (session(name="lake"), "has no catalog 'shuffles' with a warehouse"),
    ],
)
def test_where_a_name_means_nothing_the_message_says_what_to_do(spark, said):
    with pytest.raises(OptionError, match=said):
        path_of_table(spark, "orders")


ROWS = pa.table({"k": [1, 2]})


def test_a_write_has_a_path_or_a_name(tmp_path):
    with pytest.raises(OptionError, match="neither path nor table: give one of them"):
        arrow_shuffle.write_shuffle(ROWS, keys="k")
    with pytest.raises(OptionError, match="path and table='a': give one of them"):
        arrow_shuffle.write_shuffle(ROWS, tmp_path / "a", table="a", keys="k")
    assert list(tmp_path.iterdir()) == []


def test_a_name_needs_a_session(monkeypatch):
    monkeypatch.setattr("arrow_shuffle.write.is_session_active", lambda: False)
    with pytest.raises(OptionError, match="there is no session"):
        arrow_shuffle.write_shuffle(ROWS, table="a", keys="k")
