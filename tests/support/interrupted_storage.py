"""Local storage amid whose calls something happens: another comes first, or the process dies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from arrow_format.errors import StorageError
from arrow_format.storage.open import PosixStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CHANGES = ("put_if_absent", "delete")
"""Calls by which anything durable is changed, but for data and empty directories."""


@contextlib.contextmanager
def before_calls(act: Callable[[], object], names: tuple[str, ...]) -> Iterator[None]:
    """Let something happen before each call of these methods, by anyone in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(PosixStorage, name, _after(act, getattr(PosixStorage, name)))
        yield


def _after(act: Callable[[], object], real: Callable[..., object]) -> Callable[..., object]:
    def call(storage: PosixStorage, *arguments: object, **how: object) -> object:
        act()
        return real(storage, *arguments, **how)

    return call


@contextlib.contextmanager
def before_call(
    number: int, act: Callable[[], object], names: tuple[str, ...]
) -> Iterator[list[object]]:
    """Let something happen before one call of these methods, counted from 0.

    Yields
    ------
    list
        What it returned, once it happened; nothing where there were not so many calls.
    """
    left = number
    came: list[object] = []  # also where what it did was an error

    def call() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            came.append(None)
            came[0] = act()

    with before_calls(call, names):
        yield came


def dies_after(num_calls: int, act: Callable[[], object], names: tuple[str, ...] = CHANGES) -> bool:
    """Do something of which only so many calls are carried out; whether that was not all of it."""
    left = num_calls

    def call() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            msg = "killed"
            raise StorageError(msg)

    with before_calls(call, names):
        try:
            act()
        except StorageError:
            return True
    return False


@contextlib.contextmanager
def instead_of_first_entry(
    act: Callable[[Callable[[], None], str], object],
) -> Iterator[list[str]]:
    """Let something happen in the place of the first put of a log entry.

    Parameters
    ----------
    act
        Called with that put, which it may carry out, and with the path.

    Yields
    ------
    list
        The path, once it was put.
    """
    real = PosixStorage.put_if_absent
    puts: list[str] = []

    def put(storage: PosixStorage, path: str, data: bytes, *, sync: bool) -> None:
        if puts or not (path.startswith("commit_log/") and path.endswith(".entry")):
            real(storage, path, data, sync=sync)
            return
        puts.append(path)
        act(lambda: real(storage, path, data, sync=sync), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixStorage, "put_if_absent", put)
        yield puts


@contextlib.contextmanager
def before_first_entry(act: Callable[[], object]) -> Iterator[list[str]]:
    """Let something happen before the first put of a log entry, which is carried out then."""

    def first(put: Callable[[], None], _: str) -> None:
        act()
        put()

    with instead_of_first_entry(first) as puts:
        yield puts
