"""How large chunks are, by the columns that they have."""

import pyarrow as pa
import pytest

from arrow_format.write.chunk_writer import closing_bytes


@pytest.mark.parametrize(
    ("num_columns", "expected"), [(1, 1_000), (16, 1_000), (24, 1_500), (64, 4_000), (300, 4_000)]
)
def test_wide_tables_have_larger_chunks_up_to_a_bound(num_columns, expected):
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(num_columns)])
    assert closing_bytes(schema, 1_000, "zstd") == expected
    assert closing_bytes(schema, 4 << 20, "zstd") == 4 << 20


def test_chunks_that_are_not_compressed_grow_further():
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(300)])
    assert closing_bytes(schema, 1_000, "none") == 8_000
    assert closing_bytes(pa.schema(list(schema)[:16]), 1_000, "none") == 1_000


def test_what_is_inside_of_a_column_counts_as_a_column():
    inside = pa.struct([(f"f{i}", pa.int8()) for i in range(31)])
    assert closing_bytes(pa.schema([("c", inside)]), 1_000, "zstd") == 2_000
    assert closing_bytes(pa.schema([("c", inside)]), 1, "zstd") == 2
