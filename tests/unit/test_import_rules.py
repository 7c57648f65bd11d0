"""Rules of the house that import-linter cannot see; a failure names file and line."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.guarantees import guarantee
from tests.support.sources import modules

FILE_FUNCTIONS = {
    "open",
    "io.open",
    "os.link",
    "os.makedirs",
    "os.mkdir",
    "os.open",
    "os.remove",
    "os.removedirs",
    "os.rename",
    "os.renames",
    "os.replace",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.unlink",
    "pyarrow.OSFile",
    "pyarrow.memory_map",
}
FILE_MODULES = ("obstore.", "pyarrow.fs.", "shutil.", "tempfile.")
PATH_METHODS = {
    "mkdir",
    "open",
    "read_bytes",
    "read_text",
    "rename",
    "rmdir",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
LOADERS = {
    *(
        f"{module}.{name}"
        for module in ("pickle", "cloudpickle", "pyspark.cloudpickle", "marshal", "dill", "joblib")
        for name in ("load", "loads", "Unpickler")
    ),
    "__import__",
    "compile",
    "eval",
    "exec",
    "numpy.load",
    "pandas.read_pickle",
    "pyspark.serializers.CPickleSerializer",
    "pyspark.serializers.CloudPickleSerializer",
    "runpy.run_path",
    "shelve.open",
    "torch.load",
    "yaml.load",
}
"""What turns bytes into code. Jobs travel to Spark's tasks by pickle, and statuses back to Spark's
own commit: Spark does both, within one application, and no file is involved."""

SELECTING = {"array_filter", "array_take", "drop_null", "filter", "sort_by", "take"}
"""Functions of PyArrow, and methods of its arrays, that take rows by number or by mask."""

SCANNING = {
    "from_batches",
    "from_dataset",
    "from_fragment",
    "head",
    "scanner",
    "to_batches",
    "to_table",
}
"""Methods of PyArrow that filter rows by the keyword ``filter``."""


@cache
def references(tree: ast.AST) -> list[tuple[int, str]]:
    """Return the line and the full dotted name of everything the code imports or looks up."""
    return list(_references(tree))


def _references(tree: ast.AST) -> Iterator[tuple[int, str]]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or bound] = bound
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(node, ast.Attribute | ast.Name):
            root = names.get(inner.id, inner.id) if isinstance(inner, ast.Name) else "(...)"
            yield node.lineno, ".".join([root, *reversed(parts)])


def file_system_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in references(tree):
        receiver, _, method = name.rpartition(".")
        if (
            name in FILE_FUNCTIONS
            or f"{name}.".startswith(FILE_MODULES)
            or (receiver and method in PATH_METHODS)
        ):
            yield line, f"{name} touches the file system, which only arrow_format/storage does"


def pickle_loads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in references(tree):
        if name in LOADERS:
            yield line, f"{name} runs whatever code a file brings along"


def spark_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in references(tree):
        if name.partition(".")[0] == "pyspark":
            yield line, "pyspark belongs to connector/ and pyspark_arrow_shuffle/ alone"


def selections(tree: ast.AST) -> Iterator[tuple[int, str]]:
    what = "takes or filters rows, which only arrow_format/arrays/selection.py does"
    for line, name in references(tree):
        module, _, function = name.rpartition(".")
        if module == "pyarrow.compute" and function in SELECTING:
            yield line, f"{function} {what}"
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        method, receiver = node.func.attr, node.func.value
        is_numpy = isinstance(receiver, ast.Name) and receiver.id == "np"
        # A queue's `take()` names no rows.
        if method in SELECTING and (node.args or method == "drop_null") and not is_numpy:
            yield node.lineno, f"{method} {what}"
        has_rows = not (node.args and isinstance(node.args[0], ast.List) and not node.args[0].elts)
        if method in SCANNING and has_rows and any(one.arg == "filter" for one in node.keywords):
            yield node.lineno, f"{method} with a filter {what}"


def violations(rule, *packages: str, exempt: tuple[str, ...] = ()) -> list[str]:
    """Return ``file:line: what`` for every module of the packages that breaks the rule."""
    found = {
        (file, *hit)
        for file, tree in modules(*packages).items()
        if not file.startswith(exempt)
        for hit in rule(tree)
    }
    return [f"{file}:{line}: {what}" for file, line, what in sorted(found)]


def fail_with(found: list[str]) -> None:
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.slow
def test_only_storage_touches_the_file_system():
    # What Linux tells of processes looks like files and is none.
    exempt = ("arrow_format/storage/", "arrow_format/process_identity.py")
    fail_with(violations(file_system_uses, "arrow_format", exempt=exempt))


@pytest.mark.slow
@guarantee("nothing unpickled")
def test_nothing_unpickles():
    # What this process sent to a pool of its own, whose processes unpickle all that they get.
    exempt = ("arrow_format/operators/local_run.py",)
    packages = ("arrow_format", "connector", "pyspark_arrow_shuffle")
    fail_with(violations(pickle_loads, *packages, exempt=exempt))


def test_the_format_does_not_import_spark():
    fail_with(violations(spark_imports, "arrow_format"))


@pytest.mark.slow
def test_rows_are_selected_in_one_place():
    # The columns of the log are no rows of a shuffle: they are few, of fixed types, and read whole.
    log = (
        "arrow_format/log/",
        *map("arrow_format/jobs/{}.py".format, ("garbage", "gc_plan", "live_outputs")),
    )
    # A frame of Polars is filtered by Polars.
    frames = "arrow_format/integrations/polars_source.py"
    exempt = ("arrow_format/arrays/selection.py", "arrow_format/keys/key_set.py", frames, *log)
    packages = ("arrow_format", "connector", "pyspark_arrow_shuffle")
    fail_with(violations(selections, *packages, exempt=exempt))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (file_system_uses, "open('x')"),
        (file_system_uses, "import os\nos.rename(a, b)"),
        (file_system_uses, "import os as system\nsystem.open(a, 0)"),
        (file_system_uses, "from os import unlink as drop"),
        (file_system_uses, "open(a, opener=os.open)"),
        (file_system_uses, "import shutil"),
        (file_system_uses, "from pyarrow import fs"),
        (file_system_uses, "from obstore.store import S3Store"),
        (file_system_uses, "import pyarrow as pa\npa.memory_map(a)"),
        (file_system_uses, "directory.joinpath('x').write_bytes(b'')"),
        (file_system_uses, "Path('x').open()"),
        (pickle_loads, "import pickle\npickle.loads(b'')"),
        (pickle_loads, "def f():\n    from pickle import load"),
        (pickle_loads, "eval(text)"),
        (pickle_loads, "import numpy as np\nnp.load(path, allow_pickle=True)"),
        (pickle_loads, "from pyspark.serializers import CloudPickleSerializer"),
        (spark_imports, "def f():\n    import pyspark.sql"),
        (selections, "batch.take(rows)"),
        (selections, "batch['a'].filter(mask)"),
        (selections, "column.drop_null()"),
        (selections, "table.sort_by('a')"),
        (selections, "import pyarrow.compute as pc\npc.take(a, b)"),
        (selections, "from pyarrow import compute\nmap(compute.array_filter, a, b)"),
        (selections, "from pyarrow.compute import filter as keep"),
        (selections, "dataset.to_table(filter=condition)"),
        (selections, "ds.Scanner.from_batches(batches, filter=condition)"),
    ],
)
def test_a_broken_rule_is_seen(rule, code):
    assert list(rule(ast.parse(code)))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (file_system_uses, "storage.open_writer(a)\nos.fspath(a)\npa.ipc.open_stream(a)"),
        (file_system_uses, "def open_shuffle(a): return text.replace('a', 'b')"),
        (pickle_loads, "import pickle\npickle.dumps(a)\njson.loads(b)\nre.compile(c)"),
        (spark_imports, "import pyspark_arrow_shuffle"),
        (selections, "queue.take()\nnp.take(a, b)\ntake(batch, rows)\nmetadata.sort_by"),
        (selections, "ds.Scanner.from_batches([], filter=condition)"),
    ],
)
def test_a_kept_rule_is_silent(rule, code):
    assert not list(rule(ast.parse(code)))
