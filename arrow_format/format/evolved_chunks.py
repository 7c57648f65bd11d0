"""Decoders of the chunks of one version, whose files may have been written with earlier schemas.

Apart from the codec, which knows one schema: nearly all files have that of their version, and their
chunks are decoded as if there were no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.arrays.row_fit import RowFit
from arrow_format.arrays.schema_evolution import has_same_columns
from arrow_format.format.codec import OpenChunks, StoredChunk
from arrow_format.format.codecs import ChunkDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class EvolvedChunkDecoder(ChunkDecoder):
    """Decodes chunks of an earlier schema as rows of a later one; see :class:`ChunkDecoder`."""

    def __init__(
        self, stored: pa.Schema, schema: pa.Schema, columns: Sequence[int] | None = None
    ) -> None:
        self._fit = RowFit(stored, schema, columns)
        super().__init__(self._fit.stored, self._fit.columns)
        self.schema = self._fit.schema
        self.added_row_bytes = self._fit.added_row_bytes

    def open_chunks(self, chunks: Sequence[StoredChunk]) -> OpenChunks:
        """Return chunks; their columns will be those of the later schema."""
        return _EvolvedChunks(super().open_chunks(chunks), self._fit)


class _EvolvedChunks(OpenChunks):
    """Open chunks whose columns are brought to the later schema."""

    def __init__(self, chunks: OpenChunks, fit: RowFit) -> None:
        self._chunks = chunks
        self._fit = fit
        self.schema = fit.schema
        self.num_rows = chunks.num_rows
        self.are_views = chunks.are_views

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        stored = self._chunks.columns(self._fit.sources(positions))
        return self._fit.fit(stored, positions, self.num_rows)


class ChunkDecoders:
    """The decoders of a version's schema for files of any schema that can be read as it.

    ``columns`` are the positions of those to return, in order; all when None.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self._schema = schema
        self._columns = columns
        self._plain = ChunkDecoder(schema, columns)
        self._evolved: dict[pa.Schema, ChunkDecoder] = {}

    def of(self, stored: pa.Schema) -> ChunkDecoder:
        """Return the decoder for files that were written with a schema."""
        if has_same_columns(stored, self._schema):
            return self._plain
        decoder = self._evolved.get(stored)
        if decoder is None:
            decoder = EvolvedChunkDecoder(stored, self._schema, self._columns)
            self._evolved[stored] = decoder
        return decoder
