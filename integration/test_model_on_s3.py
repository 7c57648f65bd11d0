"""The model of ``tests/conformance/test_model.py`` in an object store, with faults at its changes.

Few examples of few steps, since each of them makes some hundred requests; more at night.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from arrow_format import ShuffleError, StorageError, collect_garbage, open_shuffle
from arrow_format.storage.object_store import ObjectStorage, Upload
from arrow_format.storage.open import open_storage
from tests.conformance.test_model import ShuffleMachine
from tests.support.exhaustive import times
from tests.support.system_calls import Death

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = times(3, 30)


class StoreChanges:
    """What changes a store, one of which may meet with a fault; see ``SystemCalls``."""

    def __init__(self) -> None:
        self.count = 0
        self.is_dead = False
        self._fault = (-1, "")

    def fail(self, number: int, fault: str) -> None:
        """Let change `number`, counted from now, meet with a fault."""
        self._fault = (self.count + number, fault)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the faults in place; a death ends the block."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                (ObjectStorage, "_put"),
                (ObjectStorage, "delete"),
                (ObjectStorage, "delete_all"),
                (Upload, "close"),
            ):
                real = getattr(owner, name)
                patch.setattr(owner, name, self._wrapped(real))
            try:
                yield
            except Death:
                assert self.is_dead

    def _wrapped(self, real: Callable[..., None]) -> Callable[..., None]:
        def change(owner: object, *arguments: object, **how: object) -> None:
            if self.is_dead:
                raise Death
            number, fault = self._fault
            self.count += 1
            if self.count - 1 != number:
                return real(owner, *arguments, **how)
            if fault in ("dies after", "told wrong"):
                real(owner, *arguments, **how)
            if fault == "dies within" and real.__name__ == "delete_all":
                paths = arguments[0]
                assert isinstance(paths, list)
                real(owner, paths[: len(paths) // 2])
            if fault.startswith("dies"):
                self.is_dead = True
                raise Death
            msg = fault
            raise StorageError(msg)

        return change


class StoreMachine(ShuffleMachine):
    """The same operations, below a prefix of a bucket."""

    def __init__(self, bucket: str) -> None:
        super().__init__()
        self.path = f"s3://{bucket}/{uuid.uuid4().hex}"

    def attempt(
        self, fault: tuple[int, str], operation: Callable[[], object]
    ) -> tuple[bool, ShuffleError | None]:
        """Carry out an operation with a fault; whether its process died, and its error."""
        changes = StoreChanges()
        if fault[1]:
            changes.fail(fault[0] % 10, fault[1])
        error = None
        with changes.installed():
            try:
                operation()
            except ShuffleError as found:
                error = found
        return changes.is_dead, error

    @precondition(lambda self: self.versions)
    @rule()
    def collect_everything(self) -> None:
        """No object is left over: only those that the newest version names, and of late tasks."""
        collect_garbage(self.path, retention=timedelta(0))
        self.collected_at_once()
        live = {
            name
            for output in open_shuffle(self.path).map_outputs
            for file in output.files
            for name in (file.data_path, file.index_path)
        }
        there = set(open_storage(self.path).files("map_outputs", depth=5))
        assert live <= there
        assert {file.rpartition("/")[0] for file in there - live} <= self.late


def test_any_sequence_of_operations(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    run_state_machine_as_test(
        partial(StoreMachine, s3.new_bucket()),
        settings=settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None),
    )
