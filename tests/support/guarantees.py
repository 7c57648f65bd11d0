"""What this project guarantees, and the mark of the tests that prove it.

A test names the guarantees that fail when it fails: ``@guarantee("snapshots")``. The page
``docs/reference/guarantees.md`` is made of this catalogue and of the marks, which are read from the
source without importing it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Test = TypeVar("Test")

GUARANTEES: dict[str, dict[str, str]] = {
    "Rows and order": {
        "placement": (
            "A row is in the subpartition where `df.repartition(n, *keys)` puts it, for every "
            "type that can be a key"
        ),
        "epochs": (
            "An epoch of a training has each row once, whatever ranks and workers read it, and at "
            "whatever batches they stop and others go on"
        ),
        "filters": (
            "A read with a filter gives exactly the rows for which Spark's three-valued logic "
            "finds it true, whatever the history of the shuffle and the columns with statistics"
        ),
        "filters in SQL": (
            "A filter in SQL gives the rows of Spark's `where`, of any type and under any setting "
            "of the session, or is refused"
        ),
        "rows as of a time": (
            "An as-of join gives each label once, with the row of its key that is the last before "
            "its time, the first after it or the nearest, whatever the order, the appends, the "
            "merges and the upserts of both sides, and however much memory there is"
        ),
        "joins in SQL": (
            "Joins and groups of shuffles by Spark's planner, with no exchange, give the rows of "
            "the same on Parquet, under any setting of the session; a row that lies elsewhere than "
            "the planner was told is an error that names its file"
        ),
        "counts": (
            "Counts, least and greatest values that the log or statistics say are those of the "
            "rows that a read delivers"
        ),
        "latest rows": (
            "With `latest_by` every read, count and lookup has the last row of each key alone, "
            "chosen before any filter on other columns, whatever the history of the shuffle"
        ),
        "lookups": "A lookup gives all rows of the given keys, and no others",
        "exact partitioners": (
            "The log describes the partitioner that placed the rows: a class that is derived from "
            "one of this project's, places rows otherwise and describes itself as that one, is "
            "refused before any row is written"
        ),
        "marked placement": (
            "A file is marked where a partitioner by hash, ranges or a column placed its rows, and "
            "stays so through merges and deletions only where all its rows come from such files; "
            "lookups, filters and deletions search all other files whole, so that another "
            "writer's misplaced rows are found and deleted wherever they are. A mark that is false "
            "is trusted: `verify` alone finds it"
        ),
        "checked joins": (
            "With `check=True` a join or `map_groups` that reads a row that is in another "
            "subpartition than it belongs to fails, and names its file and both subpartitions"
        ),
        "row order": "Rows of a subpartition come back by version, map task, region and arrival",
        "unordered reads": (
            "With `ordered=False` subpartitions alternate, but rows of one come in the same order"
        ),
        "sort order": "With `sort_by`, rows come back in that order, which is Spark's",
        "range bounds": (
            "Range bounds never separate rows with equal keys, and nulls are where the order puts "
            "them"
        ),
        "round robin": "Round robin is even, and a retried task places its rows the same way",
        "broadcast rows": "A broadcast row is stored once, and every subpartition reads it",
        "types for Spark": (
            "Spark reads what `arrow_shuffle.write_shuffle` stores, and no value changes by that; "
            "a write that would change one is refused and names the column"
        ),
        "Spark types": (
            "Every supported Spark type comes back exactly; other types are refused by name "
            "before any task runs"
        ),
        "joins": "Joins inside the tasks give what Spark's SQL gives",
        "any n": (
            "Hashed shuffles of any numbers of subpartitions, and what operations make of them, "
            "are joined, grouped and mapped as if they had one number"
        ),
        "pieces": (
            "A subpartition that is read in pieces has each row in one of them: joins, chains and "
            "aggregations give what one task does, and its rows are in the order of the shuffle"
        ),
        "aggregations": (
            "Aggregations inside the tasks give the values and types of Spark's SQL under Spark's "
            "names: overflow is an error, NaN is the largest number (doubles up to rounding; the "
            "guide lists what Spark casts and is refused here)"
        ),
        "groups": (
            "A function per group of a kept shuffle gets the groups, types and time zones of "
            "Spark's `applyInPandas`, and its results are cast as there"
        ),
        "operations in one process": (
            "Joins, aggregations and functions per subpartition give the same rows and types in "
            "one process as in Spark's tasks"
        ),
        "results that stay partitioned": (
            "A result that tasks write has each row in the subpartition of its key: a row that "
            "stays and belongs elsewhere fails the write by name, and a write that fails leaves "
            "nothing"
        ),
        "session time zone": (
            "User functions in tasks see timestamps in the time zone of the session"
        ),
        "combined rows": (
            "Sums, minima and maxima of a combined shuffle are those of its rows, of equal type; "
            "an aggregation that needs the rows themselves is refused"
        ),
        "merged rows": "A merge changes neither rows nor their order",
        "deleted rows": (
            "A deletion by key takes all rows of the keys, as Spark groups them, and no others, "
            "and changes no order"
        ),
        "masked rows": (
            "No reader, count or merge has rows that `delete(erase=False)` marked as gone; "
            "a mask that is missing or damaged is an error, and the receipt never says "
            "that their bytes are gone"
        ),
        "undone deletions": (
            "No rollback, to a version or a tag, brings deleted rows back without "
            "`undo_deletions=True`; rows that came back so, by a flush, or by a log that "
            "was restored, are never said to be gone by the receipt of that deletion"
        ),
        "erased bounds": (
            "A receipt is not gone while a bound in the log, of ranges or of any column of a file, "
            "may be of a deleted row; a collection with `compact_log` leaves none of before"
        ),
        "erased bytes": (
            "After a deletion and a collection no file holds the rows, and the receipt says so no "
            "earlier"
        ),
        "columns by id": (
            "A column that is added under the name of a dropped one is null in older rows, through "
            "merges, deletions and filters; a renamed one keeps its values, and a DataFrame, view "
            "or stream of before never takes another for it"
        ),
    },
    "Commits": {
        "another n": (
            "A shuffle that is rescaled has the same rows for every reader, before a merge by the "
            "largest number of subpartitions that divides those of all files, and after it by the "
            "one that was asked for; no write that began before is refused for it, and no reader "
            "of changes sees one"
        ),
        "frozen format": (
            "The bytes of version 1 mean what they meant when it was frozen: each shuffle of the "
            "kit is kept as it was, and read with the rows that it had"
        ),
        "two releases": (
            "A release and a later one read each other's versions and commit to one shuffle in "
            "turns; what an earlier one does not know it refuses by name, and gives no row of"
        ),
        "deletions in any order": (
            "A change of a feed with a sequence that is older than the row that is there, or than "
            "the deletion of its key, changes nothing, in whatever order and in whichever commit "
            "it comes, and whatever merges came between, as long as the version of the deletion "
            "is kept"
        ),
        "upserts": (
            "No version has two rows of one `unique` key: an upsert replaces the row that is "
            "there, in one commit, and an append of such a key is refused, whatever others commit "
            "meanwhile; rows of other keys stay"
        ),
        "changed groups": (
            'A result of `map_groups(since="last")` is that of a run over all groups, whatever was '
            "committed to source and result since, and wherever a run died"
        ),
        "atomic commit": "Nothing is visible before the commit, everything after it",
        "one attempt": (
            "Of several attempts of a map task exactly one counts; late ones change nothing"
        ),
        "whole map outputs": "A missing, duplicate or foreign map output fails the commit",
        "repeated commit": "Committing a job twice gives the first receipt",
        "racing writers": "When writers race, one wins each version, and none loses rows",
        "unanswered put": (
            "A commit or merge whose put got no answer is settled before anything is removed, "
            "also when it is interrupted once or twice; if it cannot be settled, nothing is "
            "removed"
        ),
        "refused commit": (
            "A commit that the store refuses at its first try is an error that says that there is "
            "no new version; behind a try without an answer it is settled like that"
        ),
        "retried put": "A retried put that had already won is recognised",
        "freed numbers": (
            "What a late writer puts at a number that garbage collection has freed is used by no "
            "reader or collection, and enters no checkpoint"
        ),
        "one history": (
            "Entries that do not continue each other, as of two copies of a log, are an error"
        ),
        "ends of jobs": (
            "A job is committed or given up, once, which some file of the log always says; no job "
            "that was committed is given up because its entry was removed"
        ),
        "readable log": (
            "Nothing is put into the log that readers would refuse, whatever the options, "
            "descriptions, transactions, attempts and counters"
        ),
        "partial totals": (
            "Totals of a version are those of its map outputs, also after a release of a part, "
            "merges and deletions"
        ),
        "snapshots": "A reader stays on its version",
        "versions by time": (
            "A version's time is believed up to what the storage's clock says: a writer whose "
            "clock was ahead hides no later version"
        ),
        "failed write": (
            "A failed write leaves nothing behind, and leaves what was there before whole. Of a "
            "first write with `local_dirs` the ids of shuffle and directories stay"
        ),
        "order of syncs": (
            "With `sync` on, data, index, directory and entry become durable in that order"
        ),
        "refused append": "An append that does not fit the shuffle is refused: other types, or "
        "another n, partitioner or order",
        "evolved schema": "Rows of appends with other columns are read with all columns of their "
        "version, in the widest types; earlier versions keep theirs",
        "concurrent merge": (
            "A merge is rebased over a concurrent append, and fails after a concurrent overwrite"
        ),
        "faults": (
            "A fault at any system call of a write, commit, merge or collection, or the death of "
            "the process there, leaves the version before or the one after, whole; the failed "
            "operation can be repeated, and garbage collection leaves no orphan"
        ),
        "power failure": (
            "What was committed with `sync` survives a power failure if all it builds on was (an "
            "append to unsynced rows is no safer than they are); a failure during the write "
            "leaves the version before or the one after"
        ),
        "restored files": (
            "Removed files that a power failure brings back change no version, and the next "
            "collection finds them, in local roots too"
        ),
        "contention": (
            "Processes that write, merge, read and collect concurrently lose nothing and see "
            "nothing incomplete"
        ),
        "kills": "The same holds when workers, executors and drivers are killed at random moments",
        "lost attempts": (
            "One attempt counts after an attempt that dies before its status arrives, a lost "
            "stage, a speculative twin, or a cancelled job that runs on"
        ),
        "mixed attempts": "Mixed attempts of one map task cannot be committed",
        "no fallback": (
            "A damaged newest entry or a gap is an error, never answered by an older version"
        ),
    },
    "Streams": {
        "transactions": (
            "A transaction is one version, whichever process repeats it, in which job, and at "
            "which step of another's commit; a number that was overtaken, and is not in the log, "
            "is an error"
        ),
        "several targets": (
            "Of a write to several targets each has its own commit, in turn, once all rows were "
            "written: killed in between and repeated with the same transactions, each is there "
            "once; an error says of each whether it is there, as its log has it, and what to "
            "repeat, and nothing is left of those that are not"
        ),
        "deletion transactions": (
            "A deletion that is a transaction deletes once, whichever process repeats it: each "
            "gets the receipt of the first, for ever, also where it found nothing"
        ),
        "remembered transactions": (
            "A committed transaction is never forgotten, neither behind checkpoints nor when its "
            "version has expired"
        ),
        "repeated batch": (
            "A micro-batch that Spark repeats is the version it was, and leaves nothing else"
        ),
        "killed batch": "What a killed commit of a batch left does not hinder the next run",
        "overdue rows": (
            "Rows of a stream that have waited longer than its flush interval become a version by "
            "the next batch, also of a restarted query and before it runs; by a collection, "
            "`flush --due`, a consumer that is asked to, or at the end of a query; never by a "
            "reader"
        ),
        "killed queries": (
            "Queries that are killed at any moment and restarted neither lose nor double rows: "
            "sink, source, and a sink behind a source"
        ),
        "net changes": (
            "The rows of a version and what changed since are the rows of a later one, whatever "
            "was appended, overwritten, deleted, merged, renamed or rolled back in between; of "
            "what was erased no value comes out"
        ),
        "changes": (
            "A reader of new rows, span by span, gets each row once, whatever is appended, "
            "overwritten, merged or collected"
        ),
        "overwritten streams": (
            "A version that overwrites, or expired unread, is an error that names it, and so is a "
            "shuffle that was re-created at the path"
        ),
        "stream limits": "Of several limits the tightest holds, and a version is never split",
        "idle streams": (
            "A stream that finds nothing new in an object store polls once a second, answers with "
            "what is there at that moment, and can be stopped meanwhile"
        ),
    },
    "Garbage collection": {
        "retention": (
            "Files of the newest version stay, and files of every version within the retention, "
            "counted from when another version replaced it"
        ),
        "held versions": (
            "A version that a living reader holds stays readable, and every later one, whatever "
            "collections run beside it; a reader whose process is dead holds nothing, and what it "
            "left is removed"
        ),
        "fences": (
            "Files of an unfinished job are removed only after a fence; a fenced job fails at its "
            "commit with an error that says so, and at any step of a commit either the commit or "
            "the fence wins"
        ),
        "incomplete newest version": "No version expires while the newest lacks a file",
        "expired versions": (
            "Opening an expired version says that it expired, not that it is damaged"
        ),
        "late files": (
            "Files that a late task puts into a local root while it is being cleared are removed "
            "by the next collection"
        ),
        "killed collection": "The next collection finishes one that was killed",
        "dropped shuffle": (
            "`drop_shuffle` removes all files of a shuffle and no others, the log last; one that "
            "was killed anywhere is finished by the next, and until then a reader gets all rows of "
            "a version or an error that says that they were removed, and nothing can be committed"
        ),
        "checkpoints": (
            "A long log is opened with few operations, and a damaged checkpoint is noticed"
        ),
    },
    "Object stores": {
        "store commits": (
            "Of concurrent commits each wins a version of its own; a commit whose answers get "
            "lost went through"
        ),
        "atomic conditions": (
            "A store that ignores the condition of a put, or checks it and puts later, is refused "
            "before a row is written, and nothing is left; one that loses an answer, answers "
            "with a conflict, or lets nobody delete is not"
        ),
        "append-only credentials": (
            "Writes, deletions of rows, merges, tags, rollbacks and consumers need no leave to "
            "delete objects; a collection and a release without it do what they may, and say what "
            "is left"
        ),
        "kept names": (
            "A prefix with a backslash, and on Azure one with a segment that ends in a dot, is "
            "refused, and so is any other that the store does not list as it was put"
        ),
        "killed upload": "A writer that is killed leaves nothing visible",
        "lost answers": (
            "An answer that is lost or late does no harm, and a listing that is cut is asked for "
            "again: a store that is away for half a minute fails no write, and an upload that the "
            "store finished counts as finished"
        ),
        "store faults": (
            "Whichever request of a commit, read or collection a store loses, carries out twice, "
            "cuts, refuses or leaves without an answer: it works, or an error says what is known, "
            "and no commit that was acknowledged is lost or there twice"
        ),
        "store collections": (
            "Collections remove superseded versions and files of killed jobs, fence before they "
            "give a job up, change nothing in a dry run, and remove nothing while the newest "
            "version lacks an object; no object is left over"
        ),
        "store collections beside appends": (
            "Appends during collections are committed whole or given up; the next collection "
            "finishes one that dies anywhere, also within a request that removes many objects"
        ),
        "upload signs": (
            "A job whose tasks upload for longer than the retention is seen to be alive, and its "
            "sign is removed with the upload, the commit or the collection"
        ),
        "few requests": (
            "A collection asks nothing per object and removes many by one request; a commit is "
            "two listings, two reads and a put of the log, however long that is; a version is "
            "opened by reading each file of the log once, at most eight concurrently, and damage "
            "counts only if the version needs the file"
        ),
        "refreshed credentials": (
            "A write outlives the credentials that it began with, where a provider or the identity "
            "of the machine or container gives new ones"
        ),
        "ended credentials": (
            "With a SAS or token whose stated end has passed no job begins, and no task opens a "
            "file: the error names the time"
        ),
        "no credentials in errors": (
            "No error shows credentials from options or environment, nor does its cause or a "
            "frame of it"
        ),
        "no credentials anywhere": "Credentials appear in no message, plan, log or `repr`",
        "executor credentials": (
            "Tasks take credentials from the environment of their executors if no option gives any"
        ),
        "upload memory": "Uploads stay inside the memory bound of a map task",
    },
    "Damage": {
        "noticed damage": (
            "Any byte flipped, any length cut, anything appended, in any file: a typed error that "
            "says where, or the same rows"
        ),
        "verify": "`verify` also notices damage to bytes that no reader needs",
        "verified placement": (
            "`verify` asks the partitioner by hash, ranges or a column about every row, and names "
            "file and subpartition of the first that is elsewhere; under a partitioner of "
            "the user's own, or round robin, it says `placement: unknown`"
        ),
        "wrong order": "A file in another order than its version's is never read as sorted",
        "missing files": "Empty, missing and replaced files, and links in their place, are noticed",
        "swapped files": "Two swapped files are noticed, of equal size or not",
        "error details": "Errors name file, map task, attempt, region and what was expected",
        "rows beside damage": "Rows outside of the damage can be read",
        "damaged merge": "A merge copies no damage and leaves its inputs alone",
        "removed while read": (
            "A file that is removed while it is read stays readable where it is open, is reported "
            "by name where it is not, and a retry works"
        ),
        "interrupted read": "An interrupted read never ends as if it were complete",
        "older files": "Files of older versions of this code are read",
    },
    "Hostile files and paths": {
        "hostile files": (
            "Behind a good checksum, anything in a file of the log, index or chunk gives a "
            "typed error or rows, in bounded time and memory"
        ),
        "hostile merge": (
            "A merge of such files fails the same way and commits nothing, or its version reads "
            "as the one before"
        ),
        "expansion limits": (
            "Nothing that would exceed the limit of a chunk is decompressed or unpacked"
        ),
        "allocation limits": "Nothing is allocated for bytes that lie outside of a file",
        "foreign URIs": (
            "A URI with an unsupported scheme is refused wherever a path is taken, with one slash "
            "too, and makes no local directory"
        ),
        "paths": (
            "Paths that lead outside of the directory, or give a file a second spelling, are "
            "refused"
        ),
        "no links": (
            "No link is followed below the shuffle's directory; a pipe or device is refused "
            "immediately"
        ),
        "no linked roots": (
            "No link in the place of a local root is followed by reads, writes or removals; local "
            "directories may be links"
        ),
        "no removal through links": "Nothing is removed through a link",
        "root markers": (
            "A directory that an entry names is used only if it bears the marker of the job"
        ),
        "nothing unpickled": "Nothing is unpickled or evaluated",
        "file modes": "Files and directories get no more permissions than the umask allows",
    },
    "Disks": {
        "full disk": (
            "A full directory is left for the next one, and what was written there is kept"
        ),
        "out of disk": (
            "`OutOfDiskError` is raised only when no directory has free space; nothing is left "
            "behind"
        ),
        "copies and local directories": (
            "A collection of a copy, or of a shuffle that was moved, removes nothing from local "
            "directories before `relocate` settles whose they are"
        ),
        "unmounted disks": (
            "What was on a disk that is not mounted is not gone: erasure status and collection "
            "say which is unseen, and a collection removes the files once it is mounted"
        ),
        "disk full at any step": (
            "When a disk fills up within a region, or before the index or the entry, nothing is "
            "half-visible and a retry works"
        ),
        "disk full in a merge": "The same holds during a merge",
        "read-only disk": (
            "On a read-only disk, or in directories of another user, shuffles can be read, and a "
            "write says why it cannot"
        ),
    },
    "Results and consumers": {
        "consumed once": (
            "Each consumer name consumes a version of a pipelined result once; what was not "
            "committed is delivered again"
        ),
        "one process per name": (
            "One process holds a consumer's name, whatever clocks say; a dead one loses it, and "
            "one whose name was taken over records nothing"
        ),
        "acknowledgements": (
            "An acknowledgement removes what was released, and gives up no job; what could not be "
            "removed is a warning, and still counts as consumed"
        ),
        "progress": "Progress is durable, verified, and never goes back",
        "held versions": (
            "Versions of a pipelined result that a registered consumer has not consumed outlive "
            "any retention until they are released by name; of other results consumers hold none "
            "back"
        ),
        "consumed versions": (
            "What all have consumed is removed, through checkpoints and merges, however far one "
            "lags; queries that die anywhere get each row once"
        ),
        "back pressure": (
            "A bounded result never has more unconsumed than its bounds, or one version; its "
            "producer waits, and names the consumer it waits for"
        ),
        "blocking results": (
            "A `BLOCKING` result is released with its last consumer, or with the last of the "
            "applications that wrote it; results of other types outlive them"
        ),
        "absent results": (
            "Released, failed and never written results raise different errors, to a starting "
            "stream too"
        ),
        "requests": (
            "A request for a path where nothing ever was written removes what it made there, and "
            "nothing of others"
        ),
    },
    "Flush interval": {
        "pending batches": (
            "Pending batches are seen by no reader, survive kills, and become one version with "
            "the latest row of each key, once"
        ),
        "flush on Spark": (
            "Through Spark: nothing is visible before the interval is over, then one version with "
            "the latest row of each key, or with `complete` a replacement of what was there; "
            "pending batches come before a batch that does not wait, and a release drops them"
        ),
        "pending files": (
            "Pending batches never expire and keep no version; flushed ones are removed"
        ),
        "pending in checkpoints": (
            "The newest entry lists what is pending, as a walk through the whole log would"
        ),
        "refused batch": (
            "A batch that does not fit what is pending is refused when it is planned, and again "
            "at its commit"
        ),
        "buffered output": (
            "A buffered output emits what the rules of FLIP-365 say, in their order, for any "
            "sequence of elements, in memory and spilled"
        ),
        "memory buffer only": (
            "With `memory_buffer_only` no row is lost or doubled, and the last of each key comes "
            "last"
        ),
        "distinct keys": (
            "Keys of every type are distinguished exactly, also when their hashes are equal"
        ),
        "buffered stage": (
            "On Spark, behind a shuffle by key in order, the stage emits the latest row of each "
            "key, also when they exceed memory, and in a stream once per micro-batch"
        ),
        "buffer memory": "A buffered output takes `max_buffered_bytes` and a constant",
        "spilled rows": (
            "Nothing spilled outlives the flush, the output, an error, or the next output after a "
            "killed process"
        ),
    },
    "Memory and resources": {
        "map task memory": "A map task needs its sort buffer and a constant, whatever it writes",
        "reading memory": (
            "A reading task keeps to `memory_bytes`, also when it sorts, joins, aggregates or "
            "reads several shuffles together"
        ),
        "bytes in flight": "Bytes in flight never exceed the bound",
        "few files": "A map task writes two files at any n, and few files are open",
        "nothing outlives its owner": "No thread, file or directory outlives its owner",
        "bytes on disk": "Bytes on disk hardly depend on n",
        "plain Arrow": "With codec `none`, plain Arrow reads the data files",
    },
    "Work with Spark": {
        "named jobs": (
            "A job of ours says in Spark's UI what it does and to which path, on a classic session "
            "by its description and everywhere by a tag; description and tags of the caller stay"
        ),
        "stopped jobs": (
            "Ctrl-C, or the stop button of a notebook, cancels the job of a write, and no file of "
            "it stays"
        ),
        "worker Python": (
            "Where the Python of a local master lacks this package, no job starts, and the error "
            "has the line that helps"
        ),
        "plain errors": (
            "At most five lines precede the sentence of an error in a task or in the data source, "
            "and of a user's function only its own frames are shown"
        ),
    },
}
"""Of each section of the page, in its order: names of guarantees, and what they promise."""

NAMES = frozenset(name for section in GUARANTEES.values() for name in section)


def guarantee(*names: str) -> Callable[[Test], Test]:
    """Mark a test, or a class of tests, as one that proves these guarantees.

    Raises
    ------
    ValueError
        If the catalogue lacks one of them.
    """
    if unknown := set(names) - NAMES:
        raise ValueError(f"no such guarantee: {sorted(unknown)}; see tests/support/guarantees.py")

    def mark(test: Test) -> Test:
        # Of a state machine pytest runs another class.
        pytest.mark.guarantee(getattr(test, "TestCase", test))
        return test

    return mark


@cache
def marked_tests(root: Path) -> dict[str, list[str]]:
    """Return the marked tests of every guarantee, as ``path::test``, read from their source.

    Sorted by path and line, with ``tests`` before ``integration``. A state machine is listed under
    the name that pytest runs it by: ``TestModel = Model.TestCase``. Tests that only a night tries
    do not count: some commits in a row keep every guarantee.
    """
    marked: dict[str, list[str]] = defaultdict(list)
    for folder in ("tests", "integration"):
        for file in sorted((root / folder).rglob("test_*.py")):
            source = file.read_text(encoding="utf-8")
            if "@guarantee(" in source and "pytestmark = nightly" not in source:
                _collect(ast.parse(source), file.relative_to(root).as_posix(), marked)
    return dict(marked)


def _collect(parent: ast.Module | ast.ClassDef, prefix: str, marked: dict[str, list[str]]) -> None:
    machines = {}
    for node in parent.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=test)],
                value=ast.Attribute(value=ast.Name(id=machine), attr="TestCase"),
            ):
                machines[machine] = test
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not _is_nightly(node):
            name = f"{prefix}::{machines.get(node.name, node.name)}"
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name(id="guarantee"), args=arguments):
                        for argument in arguments:
                            marked[ast.literal_eval(argument)].append(name)
            if isinstance(node, ast.ClassDef):
                _collect(node, name, marked)


def _is_nightly(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(ast.unparse(decorator) == "nightly" for decorator in node.decorator_list)
