"""A filter bound to a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from arrow_format.filters.row_filter import RowFilter


def bind_filter(
    filter: str | pc.Expression, schema: pa.Schema, *, time_zone: str = "UTC"
) -> RowFilter:
    """Bind."""
    del filter, schema, time_zone
    msg = "filters: not supported yet"
    raise OptionError(msg)
