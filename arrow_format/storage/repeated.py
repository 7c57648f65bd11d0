"""Asks an object store again where that is safe.

obstore repeats reads and parts of uploads itself, but no answer that was cut, and none of the
requests that may not be repeated in general: deletions, puts on a condition, the first of an upload
on Google. Those may be here, where bytes tell whose object there is.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from arrow_format.errors import StorageError
from arrow_format.storage.obstore_connection import patience_s
from arrow_format.storage.protocol import PutRefusedError
from arrow_format.storage.store_errors import CutAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.store_errors import StoreErrors

T = TypeVar("T")


def answered(
    errors: StoreErrors, ask: Callable[[], T], repeats: tuple[type[StorageError], ...]
) -> T:
    """Return an answer; ask again after errors that ``repeats`` has, and once where it was cut."""
    end, was_cut, is_first = time.monotonic() + patience_s(), False, True
    while True:
        try:
            with errors:
                return ask()
        except PutRefusedError as error:
            raise (error if is_first else uncertain(error)) from None
        except CutAnswerError:
            if was_cut:
                raise
            was_cut = True
        except repeats:
            if time.monotonic() >= end:
                raise
            time.sleep(random.uniform(0, 0.5))
        is_first = False


def uncertain(error: PutRefusedError) -> StorageError:
    """Return the error of a put that was refused, of which an earlier try may be carried out."""
    return StorageError(str(error))
