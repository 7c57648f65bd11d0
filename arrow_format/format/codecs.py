"""The codecs there are, by their names and by the encodings that indexes have; and the decoder.

A new one is a module beside :mod:`.codec_zstd`, a line here, and its name in ``options.Codec``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.arrays.batches import copied
from arrow_format.errors import FormatVersionError
from arrow_format.format.codec import ChunkColumns, Codec, OpenChunks, StoredChunk
from arrow_format.format.codec_none import NoneCodec
from arrow_format.format.codec_zstd import ZstdCodec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from arrow_format.format.codec import ChunkOpener
    from arrow_format.options import Codec as CodecName

CODECS: dict[CodecName, Codec] = {codec.name: codec for codec in (ZstdCodec(), NoneCodec())}
"""By name. Where a file may be of several, the first of them is taken."""

_BY_ENCODING = {codec.encoding: codec for codec in CODECS.values()}

LAST_ENCODING = max(_BY_ENCODING)
"""Larger ones are of newer versions."""


def codec_of_chunk(encoding: int) -> Codec:
    """Return the codec that wrote a chunk; raises FormatVersionError where a newer version did."""
    codec = _BY_ENCODING.get(encoding)
    if codec is None:
        msg = f"chunk encoding {encoding} is not known; read it with a newer arrow-shuffle"
        raise FormatVersionError(msg)
    return codec


def codec_of_file(encodings: Iterable[int]) -> Codec:
    """Return the codec of a file with chunks of some encodings.

    It is their own if they have one, else the first of them whose files take those of others. A
    file without chunks is a plain Arrow file.
    """
    own = {codec_of_chunk(encoding) for encoding in encodings}
    if len(own) < 2:
        return next(iter(own), CODECS["none"])
    return next(codec for codec in CODECS.values() if codec in own and codec.takes_others)


class ChunkDecoder:
    """Decodes stored chunks of a data schema, and checks the CRC of what it decodes.

    ``columns`` are the positions of those to return, in order; all when None. A batch of no columns
    still has its number of rows. Frames that have none of the columns are not looked at.
    """

    added_row_bytes = 0
    """Bytes by which a row is larger than what is stored of it, at least."""

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self._wanted = wanted = ChunkColumns(schema, columns)
        self.stored, self.columns = wanted.stored, wanted.columns
        self.schema = wanted.schema
        """Of the batches that are returned."""
        self._openers: dict[int, ChunkOpener] = {}

    def open_chunks(self, chunks: Sequence[StoredChunk]) -> OpenChunks:
        """Return chunks of one codec with no column decoded; of messages a single one.

        Those cost little more together than one of them. What is decoded keeps no rows in memory
        that are not wanted.

        Raises
        ------
        CorruptShuffleError
            The CRC, the form or the number of rows of a message differs from the index.
        FormatVersionError
            This version does not know the encoding.
        """
        encoding = chunks[0].places.encoding
        opener = self._openers.get(encoding)
        if opener is None:
            opener = self._openers[encoding] = codec_of_chunk(encoding).opener(self._wanted)
        return opener(chunks)

    def decode(self, chunks: Sequence[StoredChunk]) -> pa.RecordBatch:
        """Verify and decode chunks; an uncompressed one may be a view of what is stored.

        As :meth:`open_chunks`, and raises as that and :meth:`OpenChunks.columns`.
        """
        opened = self.open_chunks(chunks)
        batch = opened.batch()
        is_part_of_view = opened.are_views and not self._wanted.is_whole
        if is_part_of_view and 2 * batch.nbytes < chunks[0].stored.size:
            # A few small columns must not pin the whole chunk: readers hold rows of many chunks,
            # and count the columns' bytes. Next to the CRC of all columns the copy costs little.
            return copied(batch)
        return batch
