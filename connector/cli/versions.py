"""Commands for versions and the log itself: rollback, alter, tag, tags, repair, relocate."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arrow_format.errors import OptionError
from connector.cli.output import FOUND_WRONG, JsonOption, PathArgument, VersionOption, show_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.repair import RepairReport
    from arrow_format.jobs.tags import TaggedVersion

MAX_NUMBERS = 50
"""Numbers that ``repair`` lists; ``--json`` lists all."""


def rollback(
    path: PathArgument,
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="The earlier version: number, time or tag.")
    ],
    expected_version: Annotated[
        int | None,
        typer.Option(help="Roll back only if no rows were changed after this version."),
    ] = None,
    undo_deletions: Annotated[
        bool,
        typer.Option("--undo-deletions", help="Let rows come back that were deleted since."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Commit a new version with the rows of an earlier one."""
    from arrow_format.jobs.rollback import rollback_shuffle

    receipt = rollback_shuffle(
        path, version, expected_version=expected_version, undo_deletions=undo_deletions
    )
    if as_json:
        facts = {"path": receipt.path, "version": receipt.version, "num_rows": receipt.num_rows}
        show_result({**facts, "num_bytes": receipt.num_bytes})
    else:
        show_result([f"rolled back: {receipt}"])


def alter(
    path: PathArgument,
    rename: Annotated[
        list[str], typer.Option(metavar="OLD=NEW", help="Rename a column; may be repeated.")
    ] = [],  # noqa: B006  typer copies it
    drop: Annotated[
        list[str],
        typer.Option(metavar="COLUMN", help="Drop a column; it erases nothing. May be repeated."),
    ] = [],  # noqa: B006
    expected_version: Annotated[
        int | None,
        typer.Option(help="Alter only if rows and columns were not changed after this version."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Commit a new version with other names of columns, or without some; no file changes."""
    from arrow_format.jobs.alter import alter_columns

    names = dict(_old_and_new(pair) for pair in rename)
    if len(names) < len(rename):
        msg = f"--rename {' '.join(rename)}: a column is named twice"
        raise OptionError(msg)
    altered = alter_columns(path, rename=names, drop=drop, expected_version=expected_version)
    facts = {"path": altered.path, "version": altered.version, "columns": altered.schema.names}
    show_result(facts if as_json else [str(altered)])


def _old_and_new(pair: str) -> tuple[str, str]:
    old, equals, new = pair.partition("=")
    if not (old and equals and new):
        msg = f"--rename {pair}: expected OLD=NEW, two names of columns"
        raise OptionError(msg)
    return old, new


def tag(
    path: PathArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag.")],
    version: VersionOption = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the tag; its version expires again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep a version under a name, so that it stays readable after it expires."""
    from arrow_format.jobs.tags import list_tags, tag_shuffle, untag_shuffle

    if not remove:
        tagged = tag_shuffle(path, name, version)
        show_result({"path": path, **asdict(tagged)} if as_json else [f"{path}: tagged {tagged}"])
        return
    if version is not None:
        msg = "--version: has no meaning with --remove, which removes the tag by its name"
        raise OptionError(msg)
    if not untag_shuffle(path, name):
        names = ", ".join(tagged.name for tagged in list_tags(path)) or "none"
        msg = f"{path}: no version has the tag {name!r}; the tags are: {names}"
        raise OptionError(msg)
    show_result({"path": path, "removed": name} if as_json else [f"{path}: removed tag {name}"])


def tags(path: PathArgument, as_json: JsonOption = False) -> None:
    """Show the tags of a shuffle."""
    from arrow_format.jobs.tags import list_tags

    listed = list_tags(path)
    show_result(
        {"path": path, "tags": [asdict(tagged) for tagged in listed]}
        if as_json
        else _tag_lines(path, listed)
    )


def _tag_lines(path: str, listed: Sequence[TaggedVersion]) -> list[str]:
    from arrow_format.read.presentation import count_of
    from connector.cli.output import printable

    return [f"{printable(path)}: {count_of(len(listed), 'tag')}", *(f"  {tag}" for tag in listed)]


def repair(
    path: PathArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Give up what is shown. No writer may run meanwhile.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give up the end of a damaged log, so that the rest can be used again.

    Without --yes it shows what would be given up. Restore a backup instead, where there is one.
    """
    from arrow_format.jobs.repair import repair_shuffle

    report = repair_shuffle(path, dry_run=not yes)
    show_result(_repair_as_json(report) if as_json else _repair_lines(report))
    if not report.is_sound and report.dry_run:
        raise typer.Exit(FOUND_WRONG)


def relocate(
    path: PathArgument,
    moved: Annotated[
        bool, typer.Option("--moved", help="It is no longer where it was; or it was restored.")
    ] = False,
    copied: Annotated[
        bool, typer.Option("--copied", help="The original exists, and keeps its local files.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a shuffle with local directories was moved here, or is a copy.

    Until then nothing removes files from these directories. Nothing else may use it meanwhile.
    """
    from arrow_format.jobs.relocation import relocate_shuffle

    if moved == copied:
        msg = "give --moved or --copied"
        raise OptionError(msg)
    relocation = relocate_shuffle(path, "moved" if moved else "copied")
    show_result(asdict(relocation) if as_json else [str(relocation)])


def _repair_as_json(report: RepairReport) -> dict[str, Any]:
    return {**asdict(report), "is_sound": report.is_sound}


def _repair_lines(report: RepairReport) -> list[str]:
    from connector.cli.output import printable

    lines = [printable(str(report))]
    shown = report.given_up[:MAX_NUMBERS]
    lines += [f"  {printable(str(number))}" for number in shown]
    if len(report.given_up) > MAX_NUMBERS:
        left = len(report.given_up) - MAX_NUMBERS
        lines.append(f"  ... and {left:,} more; --json lists all")
    lines += [f"  made again: {printable(file)}" for file in report.checkpoints]
    if report.consumers:
        lines.append(
            f"  consumers that would skip the next versions: {', '.join(report.consumers)}; forget "
            "them ('arrow-shuffle consumers --forget') before the next write"
        )
    if report.moved and report.dry_run:
        lines.append(
            f"  {len(report.moved):,} file(s) would be moved to commit_log/damaged. Stop all "
            "writers, and give --yes to do it"
        )
    elif report.moved:
        lines.append(f"  {len(report.moved):,} file(s) moved to commit_log/damaged")
    return lines
