"""Commands for versions and the log: rollback, alter, rescale, tag, tags, repair, relocate."""

from __future__ import annotations

from typing import Annotated

import typer

from arrow_format.errors import OptionError
from arrow_format.option_fields import parse_names
from connector.cli.output import (
    FOUND_WRONG,
    JsonOption,
    PathArgument,
    VersionOption,
    print_json,
    print_lines,
    show,
    show_all,
)


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
        print_json(receipt.as_json())
    else:
        print_lines([f"rolled back: {receipt}"])


def alter(
    path: PathArgument,
    rename: Annotated[
        list[str], typer.Option(metavar="OLD=NEW", help="Rename a column; may be repeated.")
    ] = [],  # noqa: B006  typer copies it
    drop: Annotated[
        list[str],
        typer.Option(metavar="COLUMN", help="Drop a column; it erases nothing. May be repeated."),
    ] = [],  # noqa: B006
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Say what identifies a row, after a look at all; '' for nothing."
        ),
    ] = None,
    expected_version: Annotated[
        int | None,
        typer.Option(help="Alter only if rows and columns were not changed after this version."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Commit a new version with other names of columns, or without some; no file changes.

    Or say which columns identify a row, so that rows can be replaced.
    """
    from arrow_format.jobs.alter import alter_columns
    from arrow_format.jobs.identify import identify_rows

    if unique is not None:
        if rename or drop:
            msg = "--unique: columns are renamed or dropped in a version of their own"
            raise OptionError(msg)
        names_of_key = parse_names(unique) if unique else ()
        altered = identify_rows(path, names_of_key, expected_version=expected_version)
        show(altered, as_json=as_json)
        return
    names = dict(_old_and_new(pair) for pair in rename)
    if len(names) < len(rename):
        msg = f"--rename {' '.join(rename)}: a column is named twice"
        raise OptionError(msg)
    altered = alter_columns(path, rename=names, drop=drop, expected_version=expected_version)
    show(altered, as_json=as_json)


def _old_and_new(pair: str) -> tuple[str, str]:
    old, equals, new = pair.partition("=")
    if not (old and equals and new):
        msg = f"--rename {pair}: expected OLD=NEW, two names of columns"
        raise OptionError(msg)
    return old, new


def rescale(
    path: PathArgument,
    num_subpartitions: Annotated[
        int, typer.Argument(metavar="N", help="Subpartitions of the files of later writes.")
    ],
    expected_version: Annotated[
        int | None,
        typer.Option(help="Rescale only if no rows were changed after this version."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give new files another number of subpartitions; a merge gives it to the others."""
    from arrow_format.jobs.rescale import rescale_shuffle

    rescaling = rescale_shuffle(path, num_subpartitions, expected_version=expected_version)
    show(rescaling, as_json=as_json)


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
        if as_json:
            print_json({"path": path, **tagged.as_json()})
        else:
            print_lines([f"{path}: tagged {tagged}"])
        return
    if version is not None:
        msg = "--version: has no meaning with --remove, which removes the tag by its name"
        raise OptionError(msg)
    if not untag_shuffle(path, name):
        names = ", ".join(tagged.name for tagged in list_tags(path)) or "none"
        msg = f"{path}: no version has the tag {name!r}; the tags are: {names}"
        raise OptionError(msg)
    if as_json:
        print_json({"path": path, "removed": name})
    else:
        print_lines([f"{path}: removed tag {name}"])


def tags(path: PathArgument, as_json: JsonOption = False) -> None:
    """Show the tags of a shuffle."""
    from arrow_format.jobs.tags import list_tags

    show_all(path, "tag", list_tags(path), as_json=as_json)


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
    show(report, as_json=as_json)
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
    show(relocation, as_json=as_json)
