"""Schedules that went wrong once.

Each names moments instead of numbers of calls where it can, so that it means the same when an
operation has more or fewer of them; see :data:`tests.simulation.schedule.POINTS`.
"""

import pytest

from tests.simulation import actors
from tests.simulation.campaign import replayed
from tests.simulation.observers import observe
from tests.simulation.process import virtual_world
from tests.simulation.stage import Stage


def on_both(what, name, schedule):
    """Return a schedule of a scenario on directories, and the same one on a store."""
    return {f"{what}{on}": (f"{name}{on}", schedule) for on in ("", " on a store")}


SCHEDULES = {
    # A reader listed versions 1 to 4. Version 3 was consumed, and its number is free when a writer
    # that looked at version 2 puts its entry: the reader took that for version 3.
    **on_both(
        "a late entry in the place of an expired one",
        "late append and changes",
        "W@entry O@record R@read-entry O$ W@read-expired R$ W$",
    ),
    # As above, with a merge, and a reader on its way from version 5 down to the first.
    **on_both(
        "a late merge in the place of an expired entry",
        "late merge and read",
        "M@entry O@collects pause R@read-entry O$ M@read-expired R$ M$",
    ),
    # The inputs of a merge were overwritten, and removed while it looked whether it still fits: it
    # took the next entry, of the collection, for all that was new, and replaced nothing by nothing.
    **{
        f"a merge whose inputs are removed while it is committed{on}": (
            f"late merge, overwrite and gc{on}",
            f"M@job O@jobs O*1 M@read-index#{reads} O$ M$",
        )
        for on, reads in (("", 4), (" on a store", 2))
    },
    # The merge is interrupted while its put is on its way, and the store does not take the fence:
    # its files were removed, and then the put was carried out.
    **{
        f"an interrupted merge whose put is late, {calls} calls later": (
            "interrupted merge on a store",
            f"M@entry M!interrupted-late {f'M*{calls}' if calls else ''} M!failed M$ land",
        )
        for calls in range(4)
    },
    **{
        f"a merge that is interrupted twice, {calls} calls later": (
            "interrupted merge on a store",
            f"M@entry M!interrupted-late {f'M*{calls}' if calls else ''} M!interrupted M$ land",
        )
        for calls in range(4)
    },
    # A release found its totals gone, since a collection let those versions expire, and took those
    # of the whole version instead.
    "a release during a collection": (
        "release and gc",
        "G@list-log#2 C@record#7 H@entry C$ G$ H$",
    ),
    # A reader listed the segment of a log and the next one, in which was no entry yet; the first
    # was removed before the reader came to it: it took the log for empty.
    "a segment that is removed under a reader of the next": (
        "late append and removal",
        "W$ O@entry-link#2 R*3 O$ R$",
    ),
    # The number of a late append is free again, since its segment was removed: the writer must
    # see that after its put, and a reader on its way through that segment must not believe it.
    **on_both(
        "a late append in a removed segment",
        "late append and removal",
        "W@entry O@range R@read-entry#2 O$ W@entry-link W*1 R$ W$",
    ),
    # A merge was committed, and its entry removed before it had made its report.
    "a merge whose entry is removed before its report": (
        "late merge and removal on a store",
        "M@read-expired#2 M*1 O$ M$ R$",
    ),
    # A collection read the entries of a segment, for its list, while another removed them.
    "two collections of one segment": (
        "gc+a base and a removal",
        "A@read-entry#2 G$ A$",
    ),
    # A collection asked a local root for its marker, which another one had removed since.
    "two collections of one local root": (
        "erasure on a disk and gc",
        "E@read-marker#11 O$ E$",
    ),
    # A job was given up between the list of its local roots and a root, or in the put of its
    # marker, and the list was removed. It made that root, again, and died: no list had it.
    **{
        f"a root that is made while its list goes, {name}, {calls} calls later": (
            name,
            f"{before}{calls}",
        )
        for name, before in (
            ("erasure on a disk and gc", "E@marker-link O$ E*"),
            ("erasure on a disk and write", "O@root E$ O*"),
            ("erasure on a disk and merge", "O@root E$ O*"),
            ("shuffle that was moved and write", "M@entry O@root M$ O*"),
            ("shuffle that was moved and gc", "M@marker-link O$ M*"),
        )
        for calls in range(1, 8)
    },
    # A collection died that was making entries blank: the question whether rows are gone failed.
    **on_both(
        "a collection that dies while it compacts the log",
        "erasure with statistics and collections that compact the log",
        "G@collects#2 A$ G@blank#2",
    ),
    # A process whose clock is ahead took the name of a consumer that was at work.
    **on_both("a clock that is an hour ahead", "name of a consumer at work", "K@sleep L$ K$"),
    # The entry of an append expires before its writer has looked whether it won: it must not be
    # committed a second time.
    "an entry that expires before its writer has looked": (
        "stalled append and gc",
        "A@entry-link A*1 B$ A$",
    ),
    # A flush died behind its entry, and the deletion took the row away that it had published: the
    # judge took that row for one that waits to be flushed.
    **on_both(
        "a flush that dies before a deletion",
        "deletion, pending append and flush",
        "P$ F@entry-link F*1 D$",
    ),
}


@pytest.mark.parametrize("what", SCHEDULES)
def test_goes_right_now(what):
    name, schedule = SCHEDULES[what]
    wrong, _ = replayed(name, schedule)
    assert wrong is None


def test_what_is_pending_holds_no_version_back():
    with virtual_world():
        stage = Stage(is_store=False)
        stage.rows(1)
        stage.run(actors.commit("pending", stage.job([2]), pending=True))
        for row in (3, 4, 5):
            stage.run(actors.write(f"row {row}", [row], "overwrite"))
        stage.run(actors.collect())
        seen = stage.run(observe)
    assert seen.versions[seen.newest] == (5,)
    assert [rows for rows in seen.versions.values() if rows is not None] == [(5,)]
