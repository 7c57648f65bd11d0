"""Every error this project raises on purpose; all of them are a :class:`ShuffleError`.

A message says what was found, where, and what to do about it.
"""

from __future__ import annotations


class ShuffleError(Exception):
    """Base of all errors raised by ``arrow_format`` and ``connector``."""


class CorruptShuffleError(ShuffleError):
    """A committed file is damaged, truncated, missing or not the one that was committed."""


class FormatVersionError(ShuffleError):
    """The files were written by a newer format version, or use a feature this one lacks."""


class ShuffleNotFoundError(ShuffleError):
    """There is no committed shuffle (or no such version of it) at the path."""


class ResultReleasedError(ShuffleNotFoundError):
    """The result was there, and was released: consumed, given up, or dropped by name."""


class ResultFailedError(ShuffleNotFoundError):
    """Whoever was to make the result failed, and nothing of it was committed."""


class RequestTimeoutError(ShuffleNotFoundError):
    """A consumer asked for a result, or for more of one, that did not come in time."""


class ConsumerError(ShuffleError):
    """A consumer of that name is at work already, or has lost its place to another."""


class BackPressureTimeoutError(ShuffleError):
    """A producer waited too long for the slowest consumer of a bounded result."""


class ShuffleOverwrittenError(ShuffleError):
    """A version began anew, while a reader follows what is added to those before it."""


class ShuffleExistsError(ShuffleError):
    """The path holds something already and the write mode does not allow that."""


class SchemaError(ShuffleError):
    """Columns do not fit: unsupported types, duplicate names, missing keys, another schema."""


class OptionError(ShuffleError):
    """An option or argument has a bad value, or asks for what is not supported yet."""


class ArithmeticOverflowError(ShuffleError):
    """A sum or mean is outside of what the type of the result holds."""


class StorageError(ShuffleError):
    """The file system or object store refused an operation (permission, I/O error)."""


class UnsettledCommitError(StorageError):
    """It is not known whether a commit goes through; nothing that it names was removed."""


class OutOfDiskError(StorageError):
    """No directory that was given has room for the map output."""


class CommitConflictError(ShuffleError):
    """Another writer changed the shuffle in a way this commit cannot be rebased on."""


class ReadBufferTimeoutError(ShuffleError):
    """Readers waited for room to read into, and for long nobody gave any back."""


class ClosedError(ShuffleError):
    """A writer or reader was used after it was finished, released or closed."""
