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
        (arrow_shuffle.Shuffle.join, "how", "JoinKind"),
        (arrow_shuffle.Operation.write, "mode", "WriteMode"),
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
    assert {name.replace("_", "") for name in get_args(JoinKind)} == {*KINDS, "asof"}
    assert get_args(ResultTypeName) == tuple(ResultPartitionType.__members__)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_stub_is_the_list_of_names(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = [
        (node.module, alias)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    names = {alias.asname for _, alias in told} - {"__version__"}
    assert sorted(names) == package.__all__
    for module, alias in told:
        thing = getattr(importlib.import_module(module), alias.name, None)
        if thing is None:  # a module of the package
            thing = importlib.import_module(f"{module}.{alias.name}")
        assert getattr(package, alias.asname) is thing, alias.asname


def test_users_see_about_forty_names():
    """What a function is called by; errors are in a module of their own."""
    assert len(arrow_shuffle.__all__) <= 52
    assert not [name for name in arrow_shuffle.__all__ if name.endswith("Error")]
    assert issubclass(arrow_shuffle.errors.OptionError, arrow_shuffle.errors.ShuffleError)
