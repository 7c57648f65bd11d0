"""Options of an object store, credentials among them: they travel, and are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from arrow_format.errors import OptionError

_MIN_HIDDEN = 6
"""Characters of the shortest value that is taken out of a text; no secret is shorter."""
_SHOWN = re.compile(r"region|endpoint|timeout|allow_http|account_name|style")
"""Options whose values may stand in a message."""


class StorageOptions(Mapping[str, str]):
    """Names and values as obstore has them, such as ``aws_region``; names without regard to case.

    Neither ``repr`` nor ``str`` shows a value. They travel by pickle, inside the storage.

    Parameters
    ----------
    options
        None for none: what the environment says is used then.

    Raises
    ------
    OptionError
        It is no mapping of texts to texts.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            msg = f"storage_options is {type(options).__name__}: expected a mapping"
            raise OptionError(msg)
        self._values: dict[str, str] = {}
        for name, value in (options or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                # Not the value: it may be a secret.
                msg = f"storage_options: {name!r} is {type(value).__name__}; expected text"
                raise OptionError(msg)
            self._values[name.lower()] = value

    def __reduce__(self) -> tuple[type[StorageOptions], tuple[dict[str, str]]]:
        return StorageOptions, (self._values,)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"<{len(self)} storage options: {', '.join(self)}>"

    def hidden_in(self, text: str) -> str:
        """Return ``text`` with the values taken out that must not be shown."""
        for name, value in self._values.items():
            if len(value) >= _MIN_HIDDEN and not _SHOWN.search(name):
                text = text.replace(value, "***")
        return text
