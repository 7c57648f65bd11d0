"""The packages as a user of Python sees them: their names, their version, their help."""

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

import arrow_format
import arrow_shuffle
import connector
from arrow_format.operators.join_plan import KINDS, JoinKind
from arrow_format.options import ResultPartitionType, ResultTypeName

PACKAGES = [arrow_format, arrow_shuffle, connector]


def dataclasses_of(package):
    things = [getattr(package, name) for name in package.__all__]
    return [
        thing for thing in things if isinstance(thing, type) and dataclasses.is_dataclass(thing)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_only_public_names_are_listed(package):
    assert dir(package) == sorted([*package.__all__, "__version__"])
    assert all(getattr(package, name) is not None for name in dir(package))
    assert "import_module" not in dir(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_version_is_that_of_the_distribution(package):
    assert package.__version__ == importlib.metadata.version("arrow-shuffle")


@pytest.mark.parametrize("kind", [c for package in PACKAGES for c in dataclasses_of(package)])
def test_help_says_what_each_field_means(kind):
    text = inspect.getdoc(kind)
    described = re.findall(r"^(\w+(?:, \w+)*)\n {4}\S", text, re.MULTILINE)
    names = {name for line in described for name in line.split(", ")}
    assert {field.name for field in dataclasses.fields(kind)} <= names


@pytest.mark.parametrize(
    ("callable_", "argument", "type_"),
    [
        (arrow_shuffle.write_shuffle, "mode", "WriteMode"),
        (connector.commit_shuffle, "mode", "WriteMode"),
        (connector.join_shuffles, "how", "JoinKind"),
        (arrow_format.WriteOptions, "codec", "Codec"),
        (arrow_format.WriteOptions, "write_order", "WriteOrder"),
        (arrow_format.WriteOptions, "rewrite", "RewriteChoice"),
        (arrow_format.MergePolicy, "rewrite", "RewriteChoice"),
        (
            arrow_format.WriteOptions,
            "result_type",
            "ResultPartitionType | ResultTypeName | None",
        ),
    ],
)
def test_type_checkers_know_the_choices(callable_, argument, type_):
    assert inspect.signature(callable_).parameters[argument].annotation == type_


def test_choices_are_those_that_are_taken():
    assert {name.replace("_", "") for name in get_args(JoinKind)} == set(KINDS)
    assert get_args(ResultTypeName) == tuple(ResultPartitionType.__members__)


def told_by_stub(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    told.pop("__version__", None)
    return told


@pytest.mark.parametrize("package", [arrow_format, connector])
def test_type_checkers_are_told_the_same_names_from_the_same_modules(package):
    assert told_by_stub(package) == package._MODULE_OF


def test_type_checkers_are_told_the_names_of_both():
    told = told_by_stub(arrow_shuffle)
    assert sorted(told) == arrow_shuffle.__all__
    for name, module in told.items():
        thing = getattr(importlib.import_module(module), name)
        assert thing is getattr(arrow_shuffle, name), name
