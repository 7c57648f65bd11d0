"""The reference of the data source's options as Markdown, made from the fields that they set.

What an option does is in the docstring of the class of its field; a sentence there that begins with
"By default" is its default. ``python -m tests.support.options_page`` prints it:
``docs/reference/options.md``.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from connector.options import batch, stream

if TYPE_CHECKING:
    from connector.options.named import Option

PLACES = {
    "Writes": (
        '`df.write.format("arrow_shuffle")`, `df.writeStream` and SQL `INSERT`:',
        batch.WRITE_OPTIONS,
    ),
    "Batch writes": (
        "Besides those of a write, `df.write` and SQL `INSERT`; what is written once is in "
        "[writing](../guide/writing.md#once):",
        batch.BATCH_WRITE_OPTIONS,
    ),
    "Streaming writes": (
        'Besides those of a write, `df.writeStream.format("arrow_shuffle")`:',
        stream.SINK_OPTIONS,
    ),
    "Reads": (
        '`spark.read.format("arrow_shuffle")`, `spark.readStream` and SQL `SELECT`; columns are '
        "chosen by `.schema(...)`, and the SQL of a filter is in "
        "[reading](../guide/reading.md#filters):",
        batch.READ_OPTIONS,
    ),
    "Batch reads": ("Besides those of a read, `spark.read`:", batch.BATCH_READ_OPTIONS),
    "Streaming reads": (
        'Besides those of a read, `spark.readStream.format("arrow_shuffle")`:',
        stream.SOURCE_OPTIONS,
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


NAME_OF = {option.field: option.name for _, options in PLACES.values() for option in options}
"""What an option is called, by its field."""


def options_page() -> str:
    """Return the page: a table for each place where options apply."""
    sections = [INTRODUCTION]
    for place, (introduction, options) in PLACES.items():
        rows = []
        for option in options:
            doc, default = described(option)
            rows.append(f"| `{option.name}` | {default} | {option.kind.form} | {doc} |\n")
        head = "| Option | Default | Type | What it does |\n|---|---|---|---|\n"
        sections.append(f"## {place}\n\n{introduction}\n\n{head}{''.join(rows)}")
    return "\n".join(sections)


def described(option: Option) -> tuple[str, str]:
    """Return what an option does, and its default, as Markdown."""
    text = docs_of(option.settings)[option.field]
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"``\1``", text)
    text = re.sub(r"``(\w+)``", lambda found: f"``{NAME_OF.get(found[1], found[1])}``", text)
    text = text.replace("``", "`")
    sentence = re.search(r" ?By default (.*?)\.(?= |$)", text)
    if sentence is not None:
        return text.replace(sentence[0], "").strip(), sentence[1]
    default = option.default
    if option.kind.form == "size":
        return text, f"`{size_text(default)}`"
    return text, f"`{str(default).lower()}`"


def docs_of(settings: type) -> dict[str, str]:
    """Return what the docstring of a class says of each of its parameters, on one line."""
    doc = inspect.cleandoc(settings.__doc__ or "")
    _, _, parameters = doc.partition("Parameters\n----------\n")
    entries = re.findall(r"^(\w[\w, ]*)\n((?:(?: .*)?\n)+)", f"{parameters}\n", re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def size_text(num_bytes: int) -> str:
    """Return a number of bytes in the largest unit that gives a whole number."""
    for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
        if num_bytes % (1 << shift) == 0:
            return f"{num_bytes >> shift}{unit}"
    return str(num_bytes)


if __name__ == "__main__":
    print(options_page(), end="")
