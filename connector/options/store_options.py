"""Options of object stores as Spark hands them over, whose secrets it would show. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.storage.options import StorageOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

STORAGE_PREFIX = "storage."
"""What the names of options begin with that go to the object store."""
SECRET_PREFIX = "storage.secret."
"""The same; Spark's plans and logs hide the values of options whose names say secret."""

_SECRETS = re.compile(r"key(?!_id)|sas|credential|bearer|certificate")
_SECRET_VALUES = re.compile(r"://[^/\s]*@|[?&]sig=")
"""A password or signature inside of a URL."""
_HIDDEN = re.compile(r"secret|password|token")
"""Of what Spark hides by default (``spark.redaction.regex``)."""


def parse_storage_options(known: Mapping[str, str]) -> StorageOptions:
    """Read the options that begin with :data:`STORAGE_PREFIX`; others are left alone.

    Parameters
    ----------
    known
        Options; names of these in small letters.

    Raises
    ------
    OptionError
        Spark would show a secret, by the name it has.
    """
    options = {}
    for name, value in known.items():
        if not name.startswith(STORAGE_PREFIX):
            continue
        own = name.removeprefix(SECRET_PREFIX).removeprefix(STORAGE_PREFIX)
        is_secret = _SECRETS.search(name) or _SECRET_VALUES.search(value)
        if is_secret and not _HIDDEN.search(name):
            msg = (
                f"option {name}: Spark would show its value in plans and logs; call it "
                f"{SECRET_PREFIX}{own}, or give storage_options to connector.read_shuffle and "
                "connector.write_shuffle"
            )
            raise OptionError(msg)
        options[own] = value
    return StorageOptions(options)
