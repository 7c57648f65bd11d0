"""Methods that fail, as on a broken disk or a server that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def break_method(
    patch: pytest.MonkeyPatch,
    kind: type,
    name: str,
    error: Exception,
    when: Callable[..., bool] = lambda *_: True,
) -> list[str]:
    """Let a method raise an error where that holds of its object and arguments, and else work.

    Returns
    -------
    list
        Gets the name of the method each time that it fails.
    """
    real, failed = getattr(kind, name), []

    def method(this: object, *arguments: Any, **named: Any) -> Any:
        if not when(this, *arguments):
            return real(this, *arguments, **named)
        failed.append(name)
        raise error

    patch.setattr(kind, name, method)
    return failed
