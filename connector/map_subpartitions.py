"""A function per subpartition, inside the tasks that read: the name is fixed, the work is ahead."""

from __future__ import annotations

from typing import NoReturn

from arrow_format.errors import OptionError


def map_subpartitions(*args: object, **kwargs: object) -> NoReturn:
    """Refuse: not supported yet.

    Raises
    ------
    OptionError
        Always.
    """
    del args, kwargs
    msg = (
        "map_subpartitions: not supported yet; use read_shuffle(..., with_subpartition=True) and "
        'groupBy("_subpartition").applyInArrow'
    )
    raise OptionError(msg)
