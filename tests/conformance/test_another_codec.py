"""A codec that is added is one module and its name: writers, readers and merges know no other."""

from dataclasses import replace
from typing import get_args

import pytest

from arrow_format import WriteOptions
from arrow_format.errors import FormatVersionError
from arrow_format.format import codecs
from arrow_format.format.codec_zstd import ZstdCodec, _FrameChunks
from arrow_format.option_fields import Kind
from arrow_format.options import Codec
from tests.conformance.test_merger import KINDS, merger_in, written
from tests.support.merges import rows_in


class _OtherChunks(_FrameChunks):
    def encode(self, rows, extents):
        return [
            replace(chunk, frames=replace(chunk.frames, encoding=OtherCodec.encoding))
            for chunk in super().encode(rows, extents)
        ]


class OtherCodec(ZstdCodec):
    """Frames under another number."""

    name = "other"
    encoding = 2

    def __init__(self):
        self.num_opened = 0

    def writer(self, sink, schema, *, level, chunk_bytes):
        return _OtherChunks(sink, level, chunk_bytes)

    def opener(self, wanted):
        self.num_opened += 1
        return super().opener(wanted)


@pytest.fixture
def other(monkeypatch):
    codec = OtherCodec()
    monkeypatch.setitem(codecs.CODECS, codec.name, codec)
    monkeypatch.setitem(codecs._BY_ENCODING, codec.encoding, codec)
    monkeypatch.setattr(WriteOptions.__dataclass_fields__["codec"], "metadata", {"kind": Kind()})
    return codec


@KINDS
@pytest.mark.parametrize(
    ("names", "merged_as"),
    [
        (("other",) * 3, "other"),
        (("other", "none", "other"), "other"),
        (("other", "zstd", "none"), "zstd"),
    ],
)
def test_its_files_are_read_and_merged(storage, other, kind, names, merged_as):
    inputs = written(storage, names)
    assert [one.codec for one in inputs] == [*names]
    merged = getattr(merger_in(storage), kind)(inputs)
    assert rows_in(merged) == rows_in(*inputs)
    assert other.num_opened
    if kind == "append":
        assert merged.codec == merged_as


@KINDS
def test_without_it_its_files_are_of_a_newer_version(storage, other, monkeypatch, kind):
    inputs = written(storage, ("zstd", "other", "other"))
    monkeypatch.delitem(codecs._BY_ENCODING, other.encoding)
    for call in (lambda: rows_in(*inputs), lambda: getattr(merger_in(storage), kind)(inputs)):
        with pytest.raises(FormatVersionError, match="chunk encoding 2 is not known"):
            call()


def test_names_are_those_that_options_and_the_log_allow():
    assert tuple(codecs.CODECS) == get_args(Codec)
    assert next(iter(codecs.CODECS)) == WriteOptions().codec
    assert [*codecs._BY_ENCODING] == [codec.encoding for codec in codecs.CODECS.values()]
