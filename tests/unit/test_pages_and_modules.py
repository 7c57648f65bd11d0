"""Pages name modules, functions and files that exist, and say of each change all of its places."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from arrow_format.format.codecs import CODECS
from arrow_format.log.entry import LogEntry
from arrow_format.log.state import LogState, VersionShape
from arrow_format.operators.join_plan import KINDS
from arrow_format.options import ReadOptions, WriteOptions
from connector.cli.main import app
from connector.options.batch import READ_OPTIONS, WRITE_OPTIONS
from connector.options.stream import SINK_OPTIONS, SOURCE_OPTIONS
from tests.support.sources import modules, texts_in

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

FORMAT = ROOT / "arrow_format"
PACKAGES = sorted(path.parent.name for path in FORMAT.glob("*/__init__.py"))
TOP = sorted(path.stem for path in FORMAT.glob("*.py") if path.stem != "__init__")
SCREEN = 40
"""Lines that a picture may have."""


def sources():
    return modules("arrow_format", "arrow_shuffle", "connector")


@cache
def texts_by_path():
    return {path: texts_in(tree) for path, tree in sources().items()}


def with_text(text):
    return {path for path, texts in texts_by_path().items() if text in texts}


def importing(module):
    return {
        path
        for path, tree in sources().items()
        if any(
            isinstance(node, ast.ImportFrom) and node.module == module for node in ast.walk(tree)
        )
    }


def found(dotted):
    """Whether a name below ``arrow_format`` or ``connector`` is that of something."""
    for root in ("arrow_format", "connector"):
        parts = [root, *dotted.removeprefix(f"{root}.").split(".")]
        for end in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:end]))
            except ModuleNotFoundError:
                continue
            try:
                for name in parts[end:]:
                    value = getattr(value, name)
            except AttributeError:
                continue
            return True
    return False


def tables(text):
    """The cells of each row of the tables, by the first cell of the table's head."""
    rows = {}
    head = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = line.strip("| ").split(" | ")[0]
            rows[head] = []
        elif not line.startswith("|--"):
            rows[head].append(line.strip("| ").split(" | "))
    return rows


def ticked(text):
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_packages_are_those_that_exist(text):
    rows = tables(text)["Package"]
    assert sorted(ticked(row[0])[0] for row in rows) == PACKAGES


def test_where_to_begin_exists():
    for package, _, begin in tables(ARCHITECTURE)["Package"]:
        for module in ticked(begin):
            assert (FORMAT / ticked(package)[0] / f"{module}.py").is_file(), module


def test_modules_of_the_log_are_those_that_exist():
    named = [name for row in tables(ARCHITECTURE)["Modules of `log`"] for name in ticked(row[0])]
    there = [path.stem for path in (FORMAT / "log").glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)


def test_dotted_names_and_paths_lead_somewhere():
    first = "|".join([*PACKAGES, *TOP, "connector"])
    dotted = set(re.findall(rf"(?<![\w./])(?:{first})(?:\.\w+)+(?![\w(=/])", ARCHITECTURE))
    paths = set(re.findall(rf"`((?:{first})(?:/\w+)+)`", ARCHITECTURE))
    assert len(dotted) > 50
    assert paths
    names = dotted | {path.replace("/", ".") for path in paths}
    assert [name for name in sorted(names) if not found(name)] == []


def test_classes_of_the_reader_in_the_jvm_exist():
    picture = ARCHITECTURE.split("\n## A query in Spark's JVM\n")[1].split("```")[1]
    right = [line[53:] for line in picture.splitlines() if len(line) > 53]
    named = re.findall(r"\b[A-Z]\w+", " ".join(right))
    assert len(named) > 20
    there = {path.stem for path in (ROOT / "connector" / "jvm" / "src").rglob("*.java")}
    assert set(named) <= there


@pytest.mark.parametrize("title", ["A write", "A read", "A query in Spark's JVM"])
def test_a_picture_is_one_screen(title):
    section = ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    picture = section.split("```")[1].splitlines()
    assert section.lstrip().startswith("```text")
    assert len(picture) <= SCREEN
    assert max(map(len, picture)) <= 110
    assert sum(" ... " in line or ".. " in line for line in picture) > 15


CHANGES = {row[0]: row for row in tables(CONTRIBUTING)["To add"]}


def files_of(change):
    return {name for name in ticked(CHANGES[change][1]) if name.endswith(".py")}


@pytest.mark.parametrize("change", CHANGES)
def test_files_and_names_of_a_change_exist(change):
    for cell in CHANGES[change][1:]:
        words = iter(ticked(cell))
        names = []
        for word in words:
            if "/" not in word:
                names.append(word)
                continue
            assert (ROOT / word).exists(), word
            if word.endswith(".py"):
                tree = ast.parse((ROOT / word).read_text(encoding="utf-8"))
                assert {name for name in names if "." not in name} <= {*_defined(tree)}, word
            names = []
        for name in names:  # commands
            assert name.split()[0] in ("make", "python"), name


def _defined(tree):
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                yield target.id


def test_a_codec_is_known_to_its_module_and_two_lists():
    module = type(CODECS["zstd"]).__module__
    own = f"{module.replace('.', '/')}.py"
    known = {"arrow_format/options.py", "arrow_format/format/codecs.py"}
    assert files_of("a codec") == {own, *known}
    for codec in CODECS.values():
        assert importing(type(codec).__module__) == {"arrow_format/format/codecs.py"}
    others = {
        "arrow_format/log/state.py",  # where an entry does not say it
        "arrow_format/keys/bounds.py",  # of Arrow, for bounds of ranges
    }
    assert with_text("zstd") == {own, "arrow_format/options.py", *others}


def test_an_option_is_known_to_its_class_alone():
    named = files_of("an option")
    for option in (*WRITE_OPTIONS, *SINK_OPTIONS, *READ_OPTIONS, *SOURCE_OPTIONS):
        own = f"{option.settings.__module__.replace('.', '/')}.py"
        assert own in {*named, "arrow_format/streaming/options.py"}
        if option.settings in (WriteOptions, ReadOptions) and option.name != option.field:
            # connector/read.py has one to one the arguments that users give.
            assert with_text(option.name) <= {own, "connector/read.py"}, option.name


def test_a_kind_of_join_is_known_to_two_modules():
    for kind in {*KINDS.values()} - {"left", "right", "inner"}:  # sides too, and the default
        assert with_text(kind) <= files_of("a kind of join"), kind


def test_a_field_of_the_log_is_in_its_struct_and_on_the_page():
    structs = (LogEntry, LogState, VersionShape)
    assert {f"{one.__module__.replace('.', '/')}.py" for one in structs} == files_of(
        "a field of the log"
    )
    page = (ROOT / "docs" / "format" / "reading.md").read_text(encoding="utf-8")
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            assert re.search(rf'[`"]{field.encode_name}[`":]', page), field.encode_name


def test_a_command_is_a_function_and_a_line_and_on_the_page():
    page = (ROOT / "docs" / "guide" / "command.md").read_text(encoding="utf-8")
    assert len(app.registered_commands) > 10
    for command in app.registered_commands:
        assert command.callback.__module__.startswith("connector.cli.")
        assert re.search(
            rf"arrow-shuffle {command.callback.__name__}|`{command.callback.__name__}", page
        )
