"""Options of an object store, which may be credentials: they travel to tasks and are never shown.

Apart from the storages, which its users load on demand only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from arrow_format.errors import OptionError

STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Schemes, and obstore's class for each."""

VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""How the names of variables of the environment begin that obstore reads, by scheme."""

_MIN_HIDDEN = 6
"""Length of the shortest value that is hidden; no secret is shorter."""
_SHOWN = re.compile(
    r"region|endpoint|base_url|timeout|allow_http|account_name|style|credential_provider"
)
"""Options whose values may appear in a message."""


class StorageOptions(Mapping[str, str]):
    """Options with obstore's names, such as ``aws_region``, in any case.

    Neither ``repr`` nor ``str`` shows a value; pickling, inside a storage, keeps them all. Raises
    :class:`OptionError` for anything but a mapping of strings to strings.
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
        """Return ``text`` with ``***`` in place of the values that must not be shown."""
        for name, value in self._values.items():
            if len(value) >= _MIN_HIDDEN and not _SHOWN.search(name):
                text = text.replace(value, "***")
        return text
