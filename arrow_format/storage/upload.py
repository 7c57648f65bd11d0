"""An object on its way to a store, in parts; and a sign beside it that its writer is alive.

A store shows nothing of an upload before it is complete. So that garbage collection does not take a
job for dead whose tasks upload for longer than its retention, a writer that goes on for long puts a
small object beside the one to come, again and again: its time tells when something was written
last, as that of a growing file does on a disk. It goes when the upload ends. S3 dates an object by
the beginning of its upload; that a task has just ended is told by its index, which is put after.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from arrow_format.errors import ClosedError, ShuffleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.storage.protocol import ByteSource

PART_BYTES = 8 << 20
PARTS_UNDER_WAY = 2
"""An open object takes up to three parts of memory: two on their way and one being filled."""
MAX_OBJECT_BYTES = 10_000 * PART_BYTES
"""S3 takes 10,000 parts."""

SIGN_INTERVAL_S = 300.0
"""Seconds from the beginning of an upload, and from one sign to the next; most end before."""
SIGN_SUFFIX = ".writing"


class Upload:
    """An object on its way.

    Parameters
    ----------
    upload
        The writer of obstore. It keeps views of what it is given until a part is full.
    where
        Path of the object, for messages.
    errors
        Gives the context that turns an error of obstore into ours, for what is being done.
    sign
        Puts the sign, or another in its place.
    remove_sign
        Removes it.
    """

    def __init__(
        self,
        upload: Any,  # noqa: ANN401
        where: str,
        errors: Callable[[str], contextlib.AbstractContextManager[None]],
        sign: Callable[[], None],
        remove_sign: Callable[[], None],
    ) -> None:
        self._upload: Any = upload
        self._where = where
        self._errors = errors
        self._sign = sign
        self._remove_sign = remove_sign
        self._num_bytes = 0
        self._signed_at = time.monotonic()
        self._is_signed = False

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        """See :meth:`ObjectWriter.writev`."""
        if self._upload is None:
            msg = f"{self._where}: already closed"
            raise ClosedError(msg)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            self._num_bytes += len(view)
            if self._num_bytes > MAX_OBJECT_BYTES:
                msg = (
                    f"{self._where}: is larger than the {MAX_OBJECT_BYTES} "
                    "bytes an object may have; write more, smaller map outputs"
                )
                raise StorageError(msg)
            with self._errors("write to it"):
                self._upload.write(view)
        self._sign_if_due()

    def _sign_if_due(self) -> None:
        if time.monotonic() - self._signed_at < SIGN_INTERVAL_S:
            return
        self._is_signed = True
        # Without it the job looks as silent as it would have: that is no reason to fail.
        with contextlib.suppress(ShuffleError):
            self._sign()
        self._signed_at = time.monotonic()

    def _unsign(self) -> None:
        if self._is_signed:
            self._is_signed = False
            # What stays is removed with what else a commit does not name.
            with contextlib.suppress(ShuffleError):
                self._remove_sign()

    def truncate(self, num_bytes: int) -> None:
        """Raise: parts that are gone cannot be cut, and there is no other directory to go to."""
        msg = f"{self._where}: cannot be cut to {num_bytes} bytes"
        raise StorageError(msg)

    def close(self) -> None:
        """See :meth:`ObjectWriter.close`."""
        if self._upload is not None:
            with self._errors("finish it"):
                self._upload.close()
            self._upload = None
            self._unsign()

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        upload, self._upload = self._upload, None
        if upload is not None:
            # An upload that cannot be given up stays invisible; the store clears it some day.
            with contextlib.suppress(Exception):
                upload.__exit__(StorageError, StorageError("given up"), None)
            self._unsign()
