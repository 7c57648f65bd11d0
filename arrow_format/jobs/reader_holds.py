"""Which versions readers hold, and which holds are left over from readers that died.

A reader that is at work for longer than versions are retained registers itself as the frozen format
registers consumers (:class:`arrow_format.streaming.version_hold.VersionHold`), and is none: it
takes part in no release and no back pressure. While its process lives, a collection keeps the
version that it reads, and all later ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.concurrency import run_concurrently
from arrow_format.log.consumers import ConsumerRegistry, record_path

if TYPE_CHECKING:
    from arrow_format.log.state import LogState
    from arrow_format.process_identity import ProcessIdentity
    from arrow_format.storage.open import Storage

SILENCE_MS = 3_600_000
"""A reader of which no process here can say whether it lives, as on another machine, counts as dead
after so long without a record, by this clock and the storage's. It puts one every 15 seconds."""


@dataclass(frozen=True, slots=True)
class ReaderHold:
    """The hold of one reader on a version."""

    name: str
    """Of its directory."""
    version: int
    """The version that it reads; 0 where its newest record does not say one."""
    holder: ProcessIdentity | None
    """The process that reads; None: it has ended its hold."""
    is_living: bool
    """Whether the process lives, as far as can be known. Else the hold keeps nothing."""

    def keeps(self, state: LogState) -> bool:
        """Whether it keeps its version and later ones from a collection of a log in a state.

        It keeps none that has expired, even if a tag has it, and nothing of a result that was
        released as a whole.
        """
        return self.is_living and self.version >= max(state.oldest, state.ended + 1)

    def __str__(self) -> str:
        return f"{self.name}, {self.holder}"


def reader_holds(storage: Storage, now_ms: int | None = None) -> list[ReaderHold]:
    """Return the holds of all readers, by version; those of the dead too.

    ``now_ms`` is the time, in milliseconds since 1970. Raises CorruptShuffleError where a record is
    damaged, and StorageError where one cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    registry = ConsumerRegistry(storage)
    looks = [partial(_hold, registry, name, now_ms) for name in registry.readers()]
    holds = run_concurrently(looks, storage.max_requests)
    return sorted(holds, key=lambda hold: (hold.version, hold.name))


def _hold(registry: ConsumerRegistry, name: str, now_ms: int) -> ReaderHold:
    record = registry.newest(name)
    version = 0 if record.version is None else record.version + 1
    holder = record.holder
    is_living = version > 0 and holder is not None and holder.is_alive()
    if is_living is None:
        stat = registry.storage.stat(record_path(name, record.number))
        put_ms = (stat and stat.modified_ms) or record.at_ms
        is_living = now_ms - put_ms < SILENCE_MS
    return ReaderHold(name, version, holder, is_living)
