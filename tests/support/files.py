"""Files of several formats, for tests of what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

if TYPE_CHECKING:
    from pathlib import Path


def write_ipc(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


SAVED = {"parquet": pq.write_table, "ipc": write_ipc, "orc": orc.write_table}
"""What writes a table as a file, by the name of the format."""
