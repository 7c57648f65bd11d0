"""A storage may keep views of what it is given to write, as an upload does: nobody changes them."""

import pytest

from arrow_format import WriteOptions
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import PosixStorage
from arrow_format.write.merge_policy import MergePolicy
from tests.support.small_shuffles import N, begin, numbered


class _KeepingWriter:
    """Writes through, and checks in the end that every buffer is what it was when it came."""

    def __init__(self, writer, checked):
        self._writer = writer
        self._checked = checked
        self._kept = []

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def writev(self, buffers):
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        self._kept += [(view, bytes(view)) for view in views]
        self._writer.writev(buffers)

    def close(self):
        assert all(view == then for view, then in self._kept)
        self._checked.append(len(self._kept))
        self._writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_buffers_that_were_written_are_not_used_again(tmp_path, monkeypatch, codec):
    checked = []
    real = PosixStorage.open_writer
    monkeypatch.setattr(
        PosixStorage,
        "open_writer",
        lambda self, path, *, sync: _KeepingWriter(real(self, path, sync=sync), checked),
    )
    options = WriteOptions(codec=codec, sync=False, sort_buffer_bytes=64 << 10, chunk_bytes=2_000)
    for turn in range(2):
        job = begin(tmp_path, options=options)
        batches = [numbered([i % N for i in range(1_000)], turn) for _ in range(12)]
        commit_job(job, [run_map_task(job, 0, 0, batches)], mode="append")
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=options, by="map_output")
    assert len(checked) == 6, "data and index, three times"
    assert max(checked) > 50


def test_what_is_changed_after_it_was_written_may_be_stored_changed(s3):
    """Why: an upload copies nothing. Where it does, the protocol may promise more."""
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/a", s3.options)
    writer = storage.open_writer("x", sync=False)
    buffer = bytearray(b"before")
    writer.writev([buffer])
    buffer[:] = b"after!"
    writer.close()
    assert storage.read("x") == b"after!"
