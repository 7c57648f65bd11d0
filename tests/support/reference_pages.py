"""Reference pages that are made from code and test runs: errors, filters, guarantees, versions.

``python -m tests.support.reference_pages`` writes them; ``make docs`` fails when one is stale.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections import Counter
from pathlib import Path

from arrow_format import errors
from arrow_format.filters.spark_rules import CAST, COMPARED, DEFAULTS, MOST_DIGITS
from tests.support.guarantees import GUARANTEES, marked_tests
from tests.support.stores import STORES

ROOT = Path(__file__).resolve().parents[2]
NOTE = "<!-- Made by `python -m tests.support.reference_pages`. Edit {source} instead. -->"

ADVICE = {
    "ShuffleError": "Catch it to catch every error below.",
    "CorruptShuffleError": (
        "`arrow-shuffle verify PATH` lists every damaged file. There is no repair: restore the file"
        " from a copy, or write the shuffle again."
    ),
    "FormatVersionError": "Read with the version that wrote it, or a newer one.",
    "ShuffleNotFoundError": (
        "Check the path and the version. An expired version says so: open a newer one, or collect"
        " garbage with a longer [retention](../guide/clean-up-and-merge.md#clean-up)."
    ),
    "ResultReleasedError": (
        "Write the [result](../guide/streams-and-results.md#result-types) again."
    ),
    "ResultFailedError": "Read the reason in the message, and run the producer again.",
    "RequestTimeoutError": "Wait longer (`request_timeout`), or look at the producer.",
    "ConsumerError": "Stop the other process, or take another consumer name.",
    "BackPressureTimeoutError": (
        "Run the consumer that the message names, or forget it:"
        " `arrow-shuffle consumers PATH --forget NAME`."
    ),
    "ShuffleOverwrittenError": (
        "Start the [stream](../guide/streams-and-results.md#source) with a new checkpoint, or set"
        " `onOverwrite` to `deliver`. What an upsert replaced,"
        " [`changes(since=)`](../guide/long-lived-tables.md#what-changed) says."
    ),
    "ShuffleExistsError": "Choose another path or another [mode](../guide/writing.md#modes).",
    "SchemaError": (
        "Cast, rename or drop the column that the message names ([types](../guide/types.md))."
    ),
    "DuplicateKeyError": (
        "Keep one row of each key, give each its columns, or replace what is there with "
        "[upsert](../guide/changes-by-key.md)."
    ),
    "OptionError": "The message names the option and what it allows.",
    "MissingPackageError": "Install the extra that the message names.",
    "ArithmeticOverflowError": "Cast the column that the message names to a larger type.",
    "StorageError": "Check permissions, credentials, disk and network, then repeat the operation.",
    "UnsettledCommitError": (
        "An object store did not answer: the commit may go through later. Look for a new version"
        " before you write again."
    ),
    "OutOfDiskError": (
        "Free some space, or give more [local directories](../guide/several-disks.md)."
    ),
    "CommitConflictError": (
        "Run the job again. A job that garbage collection"
        " [gave up](../guide/clean-up-and-merge.md#clean-up) needs a longer retention."
    ),
    "ReadBufferTimeoutError": "Give more `memory_bytes`, or read from fewer readers concurrently.",
    "ClosedError": "Open a new reader or writer; a reader gives its rows once.",
}
"""What a user does about each error."""


def errors_page() -> str:
    """Return the page of errors, in the order of their module."""
    rows = []
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.ShuffleError):
            base = "" if error is errors.ShuffleError else f"`{error.__mro__[1].__name__}`"
            meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split()).replace("``", "`")
            rows.append(f"| `{name}` | {base} | {meaning} | {ADVICE[name]} |")
    return "\n".join(
        [
            NOTE.format(source="arrow_format/errors.py, or the advice in that module,"),
            "",
            "# Errors",
            "",
            "Every error that arrow-shuffle raises is an `arrow_shuffle.errors.ShuffleError`. Its"
            " message says what was found,",
            "where, and what to do. An error in a Spark task arrives inside a `PythonException` of"
            " PySpark, with the message in it.",
            "",
            "| Error | Is a | Meaning | What to do |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def guarantees_page() -> str:
    """Return the page of guarantees: what each promises, and the tests that are marked with it."""
    marked = marked_tests(ROOT)
    lines = [
        NOTE.format(source="tests/support/guarantees.py, or the marks of the tests,"),
        "",
        "# Guarantees",
        "",
        "What you can rely on, and the tests that fail when it is broken. Tests below `tests/` run"
        " with `make test`,",
        "those below `integration/` with `make integration`. What file systems, NFS and clocks must"
        " provide for it is in",
        "[deployment](../guide/deployment.md#file-systems-and-clocks).",
    ]
    for section, guarantees in GUARANTEES.items():
        lines += ["", f"## {section}", "", "| Guarantee | Held by |", "|---|---|"]
        for name, promise in guarantees.items():
            tests = ", ".join(f"`{test}`" for test in marked.get(name, []))
            lines.append(f"| {promise} | {tests} |")
    return "\n".join([*lines, ""])


def filters_page() -> str:
    """Return the page of filters in SQL: what is compared and cast as Spark does it."""
    settings = [f"| `{name}` | `{default}` |" for name, default in DEFAULTS.items()]
    return "\n".join(
        [
            NOTE.format(source="arrow_format/filters/spark_rules.py"),
            "",
            "# Filters in SQL",
            "",
            "A [filter](../guide/reading.md#filters) that is text means what Spark's `where` means"
            " by it, bit for bit, or is refused.",
            "What these tables do not list is refused; `where` on the DataFrame takes it.",
            "",
            "| A column, or the left one of two | is compared with values and columns |",
            "|---|---|",
            *(f"| {column} | {', '.join(values)} |" for column, values in COMPARED.items()),
            "",
            "A text is cast to the type of the column, if Spark casts it without an error. Strings"
            " with a collation, `CHAR(n)` and",
            "columns of user-defined types are not compared, since Spark does not compare their"
            " values; `IS NULL` takes them. Where the",
            f"common decimal of two numbers has more than {MOST_DIGITS} digits Spark rounds, and a"
            " filter is refused. So is the order of an",
            "integer column and a number that is no `BIGINT`, which Spark finds true or false of"
            " nulls. `IN` has values of one kind.",
            "",
            "| `CAST` of a value to | from, if nothing is lost |",
            "|---|---|",
            *(f"| {target} | {', '.join(sources)} |" for target, sources in CAST.items()),
            "",
            "These settings of a session change what a condition means. Operations on shuffles"
            " refuse what the other value may",
            "change: with ANSI off texts beside columns of another type, and `FLOAT` beside"
            " integers; with the next two backslashes",
            "and double quotes; names in another case; of the others everything. The option"
            " `filter` does not see the session, and",
            "refuses what the first three may change; it takes names in any case.",
            "",
            "| Setting | Value under which all is taken |",
            "|---|---|",
            *settings,
            "",
        ]
    )


OUTCOMES = ROOT / "docs" / "reference" / "spark-versions"
"""What ``make outcomes`` recorded: a file for each version and part of the integration tests."""


def versions_page() -> str:
    """Return the page of Spark versions: how the integration tests ended on each."""
    recorded: dict[str, dict[str, Counter[str]]] = {}
    for record in sorted(OUTCOMES.glob("*.json")):
        tests = recorded.setdefault(record.stem.partition("-")[0], {})
        for name, counts in json.loads(record.read_text(encoding="utf-8")).items():
            tests.setdefault(name, Counter()).update(counts)
    lines = [
        NOTE.format(source="the tests, and run `make outcomes`,"),
        "",
        "# Versions of Spark",
        "",
        "How the integration tests ended on each version of PySpark. What an older version lacks is"
        " skipped there, and",
        "refused by a message that names the first version that has it. Notes are below the table.",
        "",
        f"| What is tested | {' | '.join(recorded)} |",
        f"|---|{'---|' * len(recorded)}",
    ]
    notes: list[str] = []
    for file in sorted({name for tests in recorded.values() for name in tests}):
        cells = [
            _cell(tests[file], notes) if file in tests else "not run" for tests in recorded.values()
        ]
        lines.append(f"| {_subject(ROOT / file)} (`{file}`) | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


def _cell(counts: Counter[str], notes: list[str]) -> str:
    texts = [f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed") if counts[outcome]]
    for reason, number in counts.items():
        if reason not in ("passed", "failed"):
            notes += [reason] if reason not in notes else []
            texts.append(f"{number} skipped ({notes.index(reason) + 1})")
    return ", ".join(texts)


def _subject(file: Path) -> str:
    """Return the first sentence of a test file, up to a colon."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or file.stem
    return text.splitlines()[0].rstrip(".").replace("``", "`")


STORE_OUTCOMES = ROOT / "docs" / "reference" / "object-stores.json"
"""What ``make stores`` recorded: how the tests of each row ended on each store."""

_STORES_BEGIN, _STORES_END = "<!-- outcomes of `make stores` -->", "<!-- end of outcomes -->"


def object_stores_page() -> str:
    """Return the guide of object stores with a current table of what was run on which store."""
    text = (ROOT / "docs" / "guide" / "object-stores.md").read_text(encoding="utf-8")
    rows = json.loads(STORE_OUTCOMES.read_text(encoding="utf-8"))
    table = [f"| | {' | '.join(STORES.values())} |", f"|---|{'---|' * len(STORES)}"]
    for row, stores in rows.items():
        table.append(f"| {row} | {' | '.join(_works(stores.get(name)) for name in STORES)} |")
    before, _, rest = text.partition(_STORES_BEGIN)
    after = rest.partition(_STORES_END)[2]
    return "\n".join([f"{before}{_STORES_BEGIN}", *table, f"{_STORES_END}{after}"])


def _works(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "not run"
    if list(counts) != ["passed"]:
        return ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    return "works" if counts["passed"] == 1 else f"works ({counts['passed']} tests)"


PAGES = {
    "docs/guide/object-stores.md": object_stores_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/filters.md": filters_page,
    "docs/reference/guarantees.md": guarantees_page,
    "docs/reference/spark-versions.md": versions_page,
}
"""Generated pages, and what makes each of them."""


def problems() -> list[str]:
    """Return one line for every page that is not current, and every mark or guarantee alone."""
    marked = marked_tests(ROOT)
    names = {name for section in GUARANTEES.values() for name in section}
    return [
        *(f"guarantee {name!r} has no test" for name in sorted(names - marked.keys())),
        *(f"{marked[name][0]}: no guarantee {name!r}" for name in sorted(marked.keys() - names)),
        *(
            f"{path}: not current, run python -m tests.support.reference_pages"
            for path, page in PAGES.items()
            if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != page()
        ),
    ]


if __name__ == "__main__":
    for path, page in PAGES.items():
        (ROOT / path).write_text(page(), encoding="utf-8")
