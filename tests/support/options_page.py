"""The reference of the data source's options as Markdown, made from the table of options.

``python -m tests.support.options_page`` prints it: ``docs/reference/options.md``.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from arrow_format.options import ReadOptions, WriteOptions
from arrow_format.streaming.options import FlushOptions, OperatorAttributes
from connector.options import table, text
from connector.options.source import ResultRequest, ScanOptions, TargetOptions
from connector.options.stream import SinkOptions, SourceOptions, StepLimits

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {
    settings.__name__: settings
    for settings in (
        ReadOptions,
        WriteOptions,
        FlushOptions,
        OperatorAttributes,
        ResultRequest,
        ScanOptions,
        TargetOptions,
        SinkOptions,
        SourceOptions,
        StepLimits,
    )
}
TYPES: dict[Callable[..., Any], str] = {
    text.as_is: "text",
    text.boolean: "`true` or `false`",
    text.lower: "word",
    text.num_bytes: "size",
    text.parse_bounds: "JSON list",
    text.parse_combine: "functions of columns",
    text.parse_interval: "duration",
    text.parse_names: "names",
    text.parse_sort_keys: "sort keys",
    text.parse_starting_version: "word or number",
    text.parse_statistics: "`all` or names",
    text.parse_subpartitions: "numbers and ranges",
    text.parse_version: "number, time or tag",
    text.seconds: "duration",
    text.whole: "whole number",
}
"""By parser: what is written."""
PLACES = {
    "Writes": (
        '`df.write.format("arrow_shuffle")`, `df.writeStream` and SQL `INSERT`:',
        table.WRITE_OPTIONS,
    ),
    "Batch writes": (
        "Besides those of a write, `df.write` and SQL `INSERT`:",
        table.BATCH_WRITE_OPTIONS,
    ),
    "Streaming writes": (
        'Besides those of a write, `df.writeStream.format("arrow_shuffle")`:',
        table.SINK_OPTIONS,
    ),
    "Reads": (
        '`spark.read.format("arrow_shuffle")`, `spark.readStream` and SQL `SELECT`; columns are '
        "chosen by `.schema(...)`:",
        table.READ_OPTIONS,
    ),
    "Batch reads": ("Besides those of a read, `spark.read`:", table.BATCH_READ_OPTIONS),
    "Streaming reads": (
        'Besides those of a read, `spark.readStream.format("arrow_shuffle")`:',
        table.SOURCE_OPTIONS,
    ),
}
INTRODUCTION = """\
# Options of the data source

This page is generated: `python -m tests.support.options_page > docs/reference/options.md`.

Each option is given by `.option(name, value)`, in SQL by `OPTIONS` or `WITH`. Names are not
case-sensitive. An unknown option or a bad value is an error that names it and what is allowed. A
SQL table, and every batch read or write, accepts the options of batch reads and of writes together.

`path`, which `load(path)` and `save(path)` set, is an absolute directory or the URI of an object
store. Options of the object store begin with `storage.` and go on with a name of obstore, such as
`storage.aws_region`. Secrets begin with `storage.secret.`, so that Spark redacts them in plans and
logs.

A size is a number of bytes, or a number with `k`, `m`, `g` or `t`: `64m`. A duration is a whole
number and a unit: `500ms`, `90s`, `2min`, `1h`, `7d`. Names are written `a,b`, or as a JSON list
where a name contains a comma.
"""


def options_page() -> str:
    """Return the page: a table for each place where options apply."""
    sections = [INTRODUCTION]
    for place, (introduction, options) in PLACES.items():
        rows = [
            f"| `{option.name}` | {default_of(option)} | {TYPES[option.parse]} | {option.doc} |\n"
            for option in options
        ]
        head = "| Option | Default | Type | What it does |\n|---|---|---|---|\n"
        sections.append(f"## {place}\n\n{introduction}\n\n{head}{''.join(rows)}")
    return "\n".join(sections)


def default_of(option: table.Option) -> str:
    """Return the default of an option, from its field where the table does not say it."""
    if option.default is not None:
        return option.default
    settings, _, name = option.field.partition(".")
    default: Any
    (default,) = (field.default for field in fields(SETTINGS[settings]) if field.name == name)
    if default is None:
        return ""
    return f"`{size_text(default) if option.parse is text.num_bytes else str(default).lower()}`"


def size_text(num_bytes: int) -> str:
    """Return a number of bytes in the largest unit that gives a whole number."""
    for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
        if num_bytes % (1 << shift) == 0:
            return f"{num_bytes >> shift}{unit}"
    return str(num_bytes)


if __name__ == "__main__":
    print(options_page(), end="")
