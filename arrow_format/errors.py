"""The errors this project raises on purpose; all are subclasses of :class:`ShuffleError`.

A message says what was found, where, and what to do about it. They are in one place so that users
find them all.
"""

from __future__ import annotations


class ShuffleError(Exception):
    """Base of all errors that ``arrow_shuffle`` raises on purpose."""


class CorruptShuffleError(ShuffleError):
    """A committed file is damaged, truncated, missing or not the one that was committed."""


class FormatVersionError(ShuffleError):
    """The files were written by a newer format version, or use a feature this one lacks."""


class ShuffleNotFoundError(ShuffleError):
    """There is no committed shuffle (or no such version of it) at the path."""


class ResultReleasedError(ShuffleNotFoundError):
    """The result existed and was released: consumed, given up, or dropped by name."""


class ResultFailedError(ShuffleNotFoundError):
    """The job that was to produce the result failed and committed nothing."""


class RequestTimeoutError(ShuffleNotFoundError):
    """A consumer requested a result, or a further version, that was not committed in time."""


class ConsumerError(ShuffleError):
    """Another process consumes under this name, or has taken the name over."""


class BackPressureTimeoutError(ShuffleError):
    """The producer of a bounded result waited too long for its slowest consumer."""


class ShuffleOverwrittenError(ShuffleError):
    """A version replaced rows while a reader follows what is appended to earlier versions."""


class ShuffleExistsError(ShuffleError):
    """Something exists at the path and the write mode does not allow that."""


class SchemaError(ShuffleError):
    """Unsupported types, duplicate names, missing keys, or a schema other than the shuffle's."""


class DuplicateKeyError(ShuffleError):
    """Two rows have the key that identifies a row, or one of its columns is null."""


class OptionError(ShuffleError):
    """An option or argument has a bad value, or is not supported yet."""

    argument = ""
    """Whose value is bad: an argument, or a field of options; empty where it is not one value."""
    problem = ""
    """What is wrong with that value. The value is in the message alone: errors travel by pickle."""

    @classmethod
    def of(cls, argument: str, value: object, problem: str) -> OptionError:
        """Return the error of one bad value; its message names the argument and shows the value."""
        error = cls(f"{argument}={value!r}: {problem}")
        error.argument, error.problem = argument, problem
        return error


class MissingPackageError(OptionError, ImportError):
    """An optional package is not installed; ``name`` is its name, the message has the extra."""


class ArithmeticOverflowError(ShuffleError):
    """A sum or mean does not fit into the type of the result."""


class StorageError(ShuffleError):
    """The file system or object store refused an operation (permission, I/O error)."""


class UnsettledCommitError(StorageError):
    """A commit may or may not have succeeded; none of the files it names was removed."""


class OutOfDiskError(StorageError):
    """No directory of the shuffle has enough free space for the map output."""


class CommitConflictError(ShuffleError):
    """Another writer changed the shuffle in a way that this commit cannot be rebased on."""


class ReadBufferTimeoutError(ShuffleError):
    """Readers waited too long for a read buffer that no other reader returned."""


class ClosedError(ShuffleError):
    """A writer or reader was used after it was finished, released or closed."""
