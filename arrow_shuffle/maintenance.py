"""What changes a shuffle, or looks after it: verbs that act on what is there now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from arrow_format.errors import OptionError
from arrow_format.extras import needed_by
from arrow_format.options import DEFAULT_RETENTION, LATEST_ROWS_BYTES, ignore
from connector.session import session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from arrow_format.filters.keys import Keys
    from arrow_format.jobs.alter import Alteration
    from arrow_format.jobs.deletion_receipt import DeletionReceipt
    from arrow_format.jobs.gc_files import GcReport
    from arrow_format.jobs.history import CommittedVersion
    from arrow_format.jobs.merge import MergeReport
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.jobs.relocation import Relocation
    from arrow_format.jobs.repair import RepairReport
    from arrow_format.jobs.rescale import Rescaling
    from arrow_format.jobs.tags import TaggedVersion
    from arrow_format.log.version_names import VersionName
    from arrow_format.options import MergeBy, WriteOptions
    from arrow_format.storage.open import Storage
    from arrow_format.streaming.consumption import ConsumerState
    from arrow_format.write.merge_policy import MergePolicy
    from arrow_shuffle.operation import Spark


class Maintained:
    """What changes a shuffle returns a receipt; the object stays on its version."""

    _storage: Storage

    def merge(
        self,
        by: MergeBy = "subpartition",
        *,
        policy: MergePolicy | None = None,
        options: WriteOptions | None = None,
        expected_version: int | None = None,
        spark: Spark = None,
        on_bytes: Callable[[int], None] = ignore,
    ) -> MergeReport:
        """Merge map outputs of the newest version, where that is worth it, into a new version.

        .. code-block:: python

            orders.merge()
            orders.merge(spark=spark)

        Rows, subpartitions and order of rows are kept. Earlier versions stay readable, and their
        files are kept. In Spark each task writes one file and reads it back; the driver compares
        the rows of every subpartition with those of the inputs, and commits all files together. A
        job that fails, or whose driver is killed, changes nothing.

        Parameters
        ----------
        by
            ``subpartition``: the rows of all map outputs become files of a range of subpartitions
            each, in one region; a reader of one subpartition then reads one range of one file.
            Broadcast rows stay stored once, in files of their own. ``map_output``: adjacent map
            outputs become one file, copied or joined.
        policy
            What is worth it; the default policy when None.
        options
            Memory, chunk size, level, sync, and local directories to spread the new files over;
            defaults when None. Its codec is not used: files keep theirs, or by subpartition get
            that of the newest file. By subpartition rows are read within twice
            ``sort_buffer_bytes``, 96 MiB at least, and written within ``sort_buffer_bytes``
            besides; in Spark, of each task.
        expected_version
            Merge only if no rows were added or taken away after that version; None: do not ask.
        spark
            A session, whose tasks merge; True for the active one; this process when None.
        on_bytes
            Of this process: called now and then with the bytes of input data that were merged since
            the last call; they add up to those of the plan.

        Returns
        -------
        MergeReport
            What was done; nothing when no merge was worth it.

        Raises
        ------
        ShuffleNotFoundError
            There is no shuffle.
        CorruptShuffleError, FormatVersionError
            A file to be merged is damaged or missing; nothing was changed.
        OptionError
            An argument is bad; or ``by="subpartition"`` with a policy that joins no regions, or
            where one subpartition has more rows than a region can have.
        CommitConflictError
            Another writer overwrote or merged the inputs meanwhile, or changed rows after the
            expected version; nothing was changed.
        StorageError, OutOfDiskError
            The files could not be written; nothing was changed.
        """
        if hasattr(type(by), "readStream"):
            msg = "by is a Spark session: expected merge(spark=spark)"
            raise OptionError(msg)
        session = session_of(spark)
        if session is None:
            from arrow_format.jobs.merge import merge_shuffle

            return merge_shuffle(
                self._storage,
                by=by,
                policy=policy,
                options=options,
                expected_version=expected_version,
                on_bytes=on_bytes,
            )
        with needed_by("merge(spark=...)"):
            from connector.merge import merge_in_spark

        return merge_in_spark(
            session,
            self._storage,
            by=by,
            policy=policy,
            options=options,
            expected_version=expected_version,
        )

    def tag(self, name: str, version: VersionName | None = None) -> TaggedVersion:
        """Keep a version under a name: it stays readable by number and name after it expires.

        .. code-block:: python

            orders.tag("2026-Q3")

        Parameters
        ----------
        name
            1 to 100 letters, digits, ``_`` and ``-``, that are neither a number nor a date.
        version
            As for :func:`~arrow_shuffle.open_shuffle`; the newest when None.

        Returns
        -------
        TaggedVersion
            Name and number.

        Raises
        ------
        ShuffleExistsError
            The name is that of a tag already.
        ShuffleNotFoundError
            There is no shuffle, no such version, or it has expired. Its subclass
            ``ResultReleasedError``: that version, or the result as a whole, was released.
        OptionError
            The name or version has a bad form.
        StorageError
            The log could not be written.
        """
        from arrow_format.jobs.tags import tag_shuffle

        return tag_shuffle(self._storage, name, version)

    def untag(self, name: str) -> bool:
        """Remove a tag: its version expires like any other.

        .. code-block:: python

            orders.untag("2026-Q3")

        Parameters
        ----------
        name
            Name of the tag.

        Returns
        -------
        bool
            Whether there was a tag of that name.

        Raises
        ------
        ShuffleNotFoundError
            There is nothing at the path.
        OptionError, StorageError
            The name has a bad form, or the log could not be written.
        """
        from arrow_format.jobs.tags import untag_shuffle

        return untag_shuffle(self._storage, name)

    def tags(self) -> tuple[TaggedVersion, ...]:
        """Return the tags of a shuffle, by name.

        .. code-block:: python

            [tag.name for tag in orders.tags()]

        Raises
        ------
        ShuffleNotFoundError
            There is nothing at the path, or no shuffle.
        """
        from arrow_format.jobs.tags import list_tags

        return list_tags(self._storage)

    def history(self) -> tuple[CommittedVersion, ...]:
        """Return the versions that can be opened, ascending, and what each commit did.

        .. code-block:: python

            for version in orders.history():
                print(version)

        One that has expired, and that only a tag keeps, is among :meth:`tags`.

        Returns
        -------
        tuple of CommittedVersion
            Number, time, operation, and the map outputs, rows and bytes that were written.

        Raises
        ------
        ShuffleNotFoundError
            There is nothing at the path any more.
        CorruptShuffleError, FormatVersionError
            The log cannot be read.
        """
        from arrow_format.jobs.history import history_of

        return history_of(self._storage)

    def rollback(
        self,
        version: VersionName,
        *,
        expected_version: int | None = None,
        undo_deletions: bool = False,
    ) -> ShuffleReceipt:
        """Commit a new version with the rows of an earlier one: what came after it is undone.

        .. code-block:: python

            orders.rollback(3)

        No version is lost: those that are undone stay readable until they expire. No row is copied.
        For those who read changes, a rollback is an overwrite.

        Parameters
        ----------
        version
            The earlier version, as for :func:`~arrow_shuffle.open_shuffle`. It must not have
            expired, unless it has a tag.
        expected_version
            Roll back only if no rows were added or taken away after that version; None: do not ask.
        undo_deletions
            Roll back too where rows were deleted after the version, by
            :meth:`delete`: they come back. The log remembers that, and no receipt of
            such a deletion ever says again that its rows are gone. Delete them again.

        Returns
        -------
        ShuffleReceipt
            Of the new version, with the rows, bytes and map outputs of the earlier one.

        Raises
        ------
        ShuffleNotFoundError
            There is no shuffle, no such version, or it has expired. Its subclass
            ``ResultReleasedError``: that version, or the result as a whole, was released.
        CommitConflictError
            Rows were changed after the expected version; commits of a stream wait to be flushed; or
            rows were deleted after the version, and ``undo_deletions`` is not given.
        CorruptShuffleError
            A file of the earlier version is missing or has another length; nothing was changed.
        OptionError, StorageError
            An argument has a bad value, or the log could not be written. Its subclass
            UnsettledCommitError: the store did not answer.
        """
        from arrow_format.jobs.rollback import rollback_shuffle

        return rollback_shuffle(
            self._storage, version, expected_version=expected_version, undo_deletions=undo_deletions
        )

    def alter(
        self, *, unique: str | Sequence[str], expected_version: int | None = None
    ) -> Alteration:
        """Say which columns identify a row, after a look at all rows; no file is written.

        .. code-block:: python

            prices = pa.table({"item": [1, 2], "price": [9.5, 3.0]})
            arrow_shuffle.write_shuffle(prices, "/data/catalog", keys="item")
            arrow_shuffle.open_shuffle("/data/catalog").alter(unique="item")

        From this version on rows can be replaced by :meth:`upsert`, and appends are compared with
        the rows that are there, those that began before too.

        Parameters
        ----------
        unique
            As for :func:`~arrow_shuffle.write_shuffle`; empty: nothing identifies a row any more.
        expected_version
            Only if no rows were added or taken away, and no columns altered, after that version;
            None: do not ask.

        Returns
        -------
        Alteration
            The new version.

        Raises
        ------
        DuplicateKeyError
            Two rows are equal in the columns, or one of these is null.
        OptionError, SchemaError
            The columns cannot identify a row: one is missing or of a type that is no key, they lack
            a key of the partitioner, or rows are combined or placed without keys.
        ShuffleNotFoundError
            There is no shuffle.
        CommitConflictError
            Rows were changed after the expected version; commits of a stream wait to be flushed; or
            the result was released.
        StorageError
            The log could not be written. Its subclass UnsettledCommitError: the store did not
            answer.
        """
        from arrow_format.jobs.identify import identify_rows

        return identify_rows(self._storage, unique, expected_version=expected_version)

    def rescale(self, num_subpartitions: int, *, expected_version: int | None = None) -> Rescaling:
        """Give the files of later writes another number of subpartitions; no file is written.

        .. code-block:: python

            clicks = pa.table({"page": [1, 2], "times": [9, 3]})
            arrow_shuffle.write_shuffle(clicks, "/data/clicks", keys="page", num_subpartitions=8)
            arrow_shuffle.open_shuffle("/data/clicks").rescale(16)

        Files that are there keep theirs, and the shuffle is read by the largest number that divides
        all: 8 and 16 by 8, where subpartition i is i and i + 8 of 16; 8 and 12 by 4. A merge writes
        files of other numbers again, and then it has the one that was asked for. Appends, streams
        and batches that wait to be flushed go on, whatever number they were begun with.

        Parameters
        ----------
        num_subpartitions
            The number, 1 to 1,000,000.
        expected_version
            Only if no rows were added or taken away after that version; None: do not ask.

        Returns
        -------
        Rescaling
            The new version; the one that is there, where new files have this number already.

        Raises
        ------
        OptionError
            The number is out of bounds; or rows are not placed by a hash of keys, some are
            broadcast, or some lie elsewhere.
        ShuffleNotFoundError
            There is no shuffle. Its subclass ``ResultReleasedError``: it was released.
        CommitConflictError
            Rows were changed after the expected version.
        StorageError
            The log could not be written. Its subclass UnsettledCommitError: the store did not
            answer.
        """
        from arrow_format.jobs.rescale import rescale_shuffle

        return rescale_shuffle(self._storage, num_subpartitions, expected_version=expected_version)

    def rename_columns(
        self, names: Mapping[str, str], *, expected_version: int | None = None
    ) -> Alteration:
        """Give columns other names; no file is written, read or moved.

        .. code-block:: python

            orders.rename_columns({"price": "amount"})

        Keys, sort keys and combined columns may be renamed too. Earlier versions keep the old
        names. Writes that are under way mean the column that had a name when they began, as do
        readers. A stream that reads the column fails, and goes on with the new name when it is
        started again.

        Parameters
        ----------
        names
            New names by old ones; all are given at once, so that two columns may swap theirs.
        expected_version
            Rename only if no rows were added or taken away, and no columns altered, after that
            version; None: do not ask.

        Returns
        -------
        Alteration
            The new version, and its columns.

        Raises
        ------
        SchemaError
            A column is not there, or two would have one name, or names that differ only in case.
        OptionError
            The names are none; or a partitioner of your own places the rows, which may name
            columns.
        ShuffleNotFoundError
            There is no shuffle.
        CommitConflictError
            Another writer altered one of the columns meanwhile; rows were changed after the
            expected version; commits of a stream wait to be flushed; or the result was released.
        StorageError
            The log could not be written. Its subclass UnsettledCommitError: the store did not
            answer.
        """
        from arrow_format.jobs.alter import rename_columns

        return rename_columns(self._storage, names, expected_version=expected_version)

    def drop_columns(
        self, names: str | Sequence[str], *, expected_version: int | None = None
    ) -> Alteration:
        """Take columns out of a shuffle; no file is written, read or moved.

        .. code-block:: python

            orders.drop_columns("note")

        It erases nothing: the values stay in the files, and earlier versions have them, until a
        merge that rewrites has replaced the files and these have been collected. A column of that
        name that is added later is another one, which is null in all rows of now.

        Parameters
        ----------
        expected_version
            As for :meth:`rename_columns`.
        names
            The columns. None may be a key, sort key or combined column, and one has to be left.

        Returns
        -------
        Alteration
            The new version, and its columns.

        Raises
        ------
        SchemaError, OptionError, ShuffleNotFoundError, CommitConflictError, StorageError
            As :meth:`rename_columns`; and where a column may not be dropped.
        """
        from arrow_format.jobs.alter import drop_columns

        return drop_columns(self._storage, names, expected_version=expected_version)

    def delete(
        self,
        key_values: Keys,
        *,
        erase: bool = True,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        options: WriteOptions | None = None,
        on_bytes: Callable[[int], None] = ignore,
    ) -> DeletionReceipt:
        """Delete the rows of given keys from the newest version, as a new version.

        .. code-block:: python

            receipt = orders.delete({"customer": [17, 18]})

        Rows that another writer appends meanwhile are kept, those of the keys too: the receipt says
        so. Earlier versions stay readable and hold the rows until they expire and are collected.
        Where another writer merges, deletes or overwrites meanwhile, the deletion begins again with
        the new version, four times in all.

        Parameters
        ----------
        key_values
            The keys, one per row: exactly the key columns of the partitioner, as a table, record
            batch or dict of columns; a single value in a dict goes with all of the others. Values
            are cast to the stored types, where none changes by that; a number is no timestamp. A
            null is a key like any other, NaN equals NaN, and -0.0 equals 0.0. Without rows nothing
            happens, but that a transaction is noted.
        erase
            Write the files that hold the rows again without them, so that their bytes can go.
            False: only mark the rows as gone, which costs what they are, and not what their files
            are. They stay on disk until a merge writes their files again, and the receipt never
            says that they are gone: that takes another deletion of the keys, with ``erase``.
        expected_version
            Delete only if no rows were added or taken away after this version, retries included.
        transaction
            An application and its number, as for :func:`~arrow_shuffle.write_shuffle`. A number
            that was committed before deletes nothing: the result is the receipt of the first time,
            with ``is_repetition``, whatever the keys are now and whatever became of the rows since.
            A deletion that finds no row is committed too. None: each call searches and deletes.
        options
            Memory, chunk size, level, sync, and local directories for the new files; defaults when
            None. Its codec is not used: files keep theirs.
        on_bytes
            Called with the stored bytes that were searched or rewritten since the last call.

        Returns
        -------
        DeletionReceipt
            What was deleted, and what still holds the rows. No version is added where no row has a
            key; where earlier versions may have some, the log says that they are to go.

        Raises
        ------
        ShuffleNotFoundError
            There is no shuffle. Its subclass ``ResultReleasedError``: it was released.
        OptionError
            An argument is bad, or the keys of the shuffle do not decide the subpartition of a row.
        SchemaError
            The columns are not the key columns, or a value does not fit the stored type.
        CommitConflictError
            Rows were added or taken away after ``expected_version``; or other writers replaced the
            files at each attempt; or a larger number of the application is in the log, and that of
            the transaction is not, or as a write.
        CorruptShuffleError, FormatVersionError
            A file to be searched is damaged or missing.
        StorageError, OutOfDiskError
            The files could not be written; or the message says that the deletion was committed, and
            what failed after that.
        UnsettledCommitError
            The store did not answer, and the deletion may still appear.

        After any other error nothing was changed. With a transaction repeat it after any: what was
        committed returns its receipt.
        """
        from arrow_format.jobs.delete_rows import delete_rows

        return delete_rows(
            self._storage,
            key_values,
            erase=erase,
            expected_version=expected_version,
            transaction=transaction,
            options=options,
            on_bytes=on_bytes,
        )

    def erasure_status(self, receipt: DeletionReceipt) -> DeletionReceipt:
        """Return what still holds the rows that a deletion took out of a shuffle.

        .. code-block:: python

            receipt = orders.delete({"customer": [17, 18]})
            print(orders.erasure_status(receipt).is_gone)

        Parameters
        ----------
        receipt
            What :meth:`delete` returned.

        Returns
        -------
        DeletionReceipt
            The receipt, looked at: with ``is_gone`` once no version, tag or pending commit names a
            file that held the rows, these files do not exist any more, and the log has no bound
            that may be of one.

        Raises
        ------
        OptionError
            The receipt is not one, or was looked at; or it is of a deletion that the log of this
            shuffle does not have: it is another shuffle, or one that was restored, or repaired, to
            before the deletion.
        ShuffleNotFoundError
            The path holds no directory.
        CorruptShuffleError, FormatVersionError
            The log cannot be read.
        """
        from arrow_format.jobs.erasure import erasure_status

        return erasure_status(self._storage, receipt)

    def relocate(self, became: Literal["moved", "copied"]) -> Relocation:
        """Say what became of a shuffle with local directories: it was moved here, or it is a copy.

        .. code-block:: python

            moved = arrow_shuffle.open_shuffle("/data/moved")
            moved.relocate("moved")

        Until then nothing removes files from its local directories, and no write can use any.
        Nothing else may use the shuffle, or the original of a copy, meanwhile.

        Parameters
        ----------
        became
            ``moved``: it is no longer where it was, be it by a rename, by a copy of which the
            original was removed, or restored from a backup in the place of what was lost. Its files
            in local directories are its own, and are removed as before. ``copied``: the original
            exists and keeps these files. The copy can be read only as long as it keeps them: merge
            it with ``MergePolicy(rewrite="always")``, and it has all rows itself. So is one whose
            files were given to another shuffle, by its relocation, while this one could not be
            seen.

        Returns
        -------
        Relocation
            What was settled. Said again of a shuffle that was moved, it takes what could not be
            seen.

        Raises
        ------
        OptionError
            It was not moved: the original is in use elsewhere, or another copy has taken over its
            files. Or it is no copy: it is where it was written. Nothing was changed.
        ShuffleNotFoundError
            The path holds no directory.
        CorruptShuffleError
            What the shuffle, or a list of local directories, says cannot be read.
        StorageError
            Something could not be written; say it again.
        """
        from arrow_format.jobs.relocation import relocate_shuffle

        return relocate_shuffle(self._storage, became)

    def consumers(self) -> tuple[ConsumerState, ...]:
        """Return the consumers of a shuffle, by name.

        .. code-block:: python

            orders.consumers()

        Returns
        -------
        tuple of ConsumerState
            How far each has come, in versions and bytes.

        Raises
        ------
        ShuffleNotFoundError
            There is nothing at the path.
        """
        from arrow_format.streaming.consumption import list_consumers

        return list_consumers(self._storage)

    def forget_consumer(self, consumer: str) -> bool:
        """Remove a consumer that will not come back, so that no result waits for it.

        .. code-block:: python

            orders.forget_consumer("report")

        Where another machine may hold the name, it takes up to a minute to learn whether its
        process is alive.

        Parameters
        ----------
        consumer
            Its name.

        Returns
        -------
        bool
            Whether there was a consumer of that name.

        Raises
        ------
        ConsumerError
            A living process holds the name.
        """
        from arrow_format.streaming.consumption import forget_consumer

        return forget_consumer(self._storage, consumer)

    def flush_pending(
        self,
        *,
        due: bool = False,
        max_bytes: int = LATEST_ROWS_BYTES,
        options: WriteOptions | None = None,
    ) -> ShuffleReceipt | None:
        """Commit the pending checkpoints of a stream with a flush interval as one version.

        .. code-block:: python

            views.flush_pending()

        Parameters, result and errors are those of :func:`~arrow_shuffle.flush_pending`, which also
        works where no version can be opened.
        """
        from arrow_format.streaming.flush_pending import flush_pending

        return flush_pending(self._storage, due=due, max_bytes=max_bytes, options=options)

    def collect_garbage(
        self,
        *,
        retention: timedelta = DEFAULT_RETENTION,
        compact_log: bool = False,
        dry_run: bool = False,
        on_bytes: Callable[[int], None] = ignore,
    ) -> GcReport:
        """Remove versions that were superseded long ago, and what unfinished jobs left.

        .. code-block:: python

            orders.collect_garbage(retention=timedelta(days=7))

        The newest version is kept whatever its age, and so is everything that a version within the
        retention names, and of a pipelined result every version that a known consumer has not
        consumed. What was released is removed whatever its age. Rows of a version that is kept are
        never touched. Before that, rows of a stream that have waited longer than its flush interval
        become a version, unless consumers of a full result have to consume first.

        Parameters, result and errors are those of :func:`~arrow_shuffle.collect_garbage`, which
        also works where no version can be opened.
        """
        from arrow_format.streaming.collection import collect_garbage

        return collect_garbage(
            self._storage,
            retention=retention,
            compact_log=compact_log,
            dry_run=dry_run,
            on_bytes=on_bytes,
        )

    def release(self, *, expected_version: int | None = None) -> bool:
        """Release a result as a whole, whatever its type, and remove its files.

        .. code-block:: python

            orders.release()

        Pending rows of a stream with a flush interval are removed too, even before the first
        version. Readers and consumers then get a :class:`ResultReleasedError`; a writer may write a
        new result to the same path. Tagged versions are kept.

        Parameters, result and errors are those of :func:`~arrow_shuffle.release_shuffle`, which
        also works where no version can be opened.
        """
        from arrow_format.streaming.consumption import release_shuffle

        return release_shuffle(self._storage, expected_version=expected_version)

    def repair(self, dry_run: bool = True) -> RepairReport:
        """Give up the end of a log that cannot be read, so that the rest can be used again.

        .. code-block:: python

            print(orders.repair())

        No writer, stream or collection may run meanwhile. Restore damaged files from a backup
        instead, where there is one: a repair gives up committed rows. The files it moves aside stay
        in ``commit_log/damaged``.

        Parameters, result and errors are those of :func:`~arrow_shuffle.repair_shuffle`, which also
        works where no version can be opened.
        """
        from arrow_format.jobs.repair import repair_shuffle

        return repair_shuffle(self._storage, dry_run)
