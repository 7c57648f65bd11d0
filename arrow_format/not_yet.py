"""Names of the public surface whose work is still ahead: they answer, and say so."""

from __future__ import annotations

from arrow_format.errors import OptionError


class NotYet:
    """Base of classes whose names are fixed but that later versions bring."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        msg = f"{type(self).__name__}: not supported yet"
        raise OptionError(msg)


class BufferOutput(NotYet):
    """An output that keeps the latest row per key until it flushes: not supported yet."""
