"""Pieces of a subpartition: runs of its order, each row in one, whatever its files are like."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from arrow_format.read.chunk_plan import Piece
from arrow_shuffle import MergePolicy, WriteOptions, open_shuffle
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.operations import written

SMALL = WriteOptions(sync=False, chunk_bytes=4096, sort_buffer_bytes=1 << 20)
FILTERS = [None, "v < 90", "v > 500", "k = 0", "k IN (1, 2) OR k = 5"]
SOME = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 900), st.booleans()), min_size=1, max_size=5
)


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Chunks of a few KiB where a subpartition has more, else one of a MiB."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("arrow_format.write.clustering.SPLIT_CHUNK_BYTES", 4096)
        yield


def table(numbers, many, keys):
    """Rows of which most have one key."""
    ids = list(itertools.islice(numbers, many))
    hot = [0 if i % 4 else i % keys for i in ids]
    texts = [f"{i}" * 20 for i in ids]
    return pa.table({"k": pa.array(hot, pa.int64()), "v": pa.array(ids, pa.int64()), "t": texts})


def rows_of(runs, column="v"):
    return [value for run in runs for value in run.batch[column].to_pylist()]


@guarantee("pieces")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=examples(25, 300),
    deadline=None,
)
@given(
    SOME, st.integers(1, 9), st.sampled_from([None, "map_output", "subpartition"]), st.booleans(),
    st.booleans(), st.sampled_from([1, 2, 6]), st.sampled_from(FILTERS),
)  # fmt: skip
def test_pieces_one_after_the_other_are_the_subpartition(
    tmp_path_factory, outputs, of, merge_by, is_sorted, deletes, n, filter
):
    path, numbers = tmp_path_factory.mktemp("pieces"), itertools.count()
    how = {"sort_by": "t"} if is_sorted else {}
    shuffle = written(path, table(numbers, 100, 9), "k", n=6, options=SMALL, **how)
    for keys, many, is_wide in outputs:
        rows = table(numbers, many * (4 if is_wide else 1), keys + 1)
        shuffle.append(rows, options=SMALL)
    shuffle = shuffle.newest()
    if merge_by is not None:
        shuffle.merge(merge_by, policy=MergePolicy(rewrite="always"), options=SMALL)
        shuffle = shuffle.newest()
    if deletes:
        shuffle.delete({"k": [1, 2]}, erase=False, options=SMALL)
        shuffle = shuffle.newest()
    shuffle = open_shuffle(path).divided(n)
    if filter is not None:
        shuffle = shuffle.where(filter)
    for subpartition in range(n):
        pieces = [Piece(number, of) for number in range(of)]
        whole = rows_of(shuffle.rows([subpartition]))
        in_order = [rows_of(shuffle.rows([subpartition], piece=piece)) for piece in pieces]
        joined = [*itertools.chain.from_iterable(in_order)]
        assert sorted(joined) == sorted(whole)
        if shuffle.is_in_order(subpartition):
            assert joined == whole
        event(f"in order: {shuffle.is_in_order(subpartition)}, sorted: {is_sorted}")
        one = subpartition, subpartition + 1
        stored = rows_of(shuffle.reader(*one))
        assert rows_of(itertools.chain(*(shuffle.reader(*one, piece=p) for p in pieces))) == stored


def test_a_merged_subpartition_is_cut_evenly_and_in_order(tmp_path):
    numbers = itertools.count()
    shuffle = written(tmp_path, table(numbers, 20_000, 50), "k", n=8, options=SMALL, sort_by="v")
    for _ in range(3):
        shuffle.append(table(numbers, 20_000, 50), options=SMALL)
    hot = shuffle.subpartition_of(k=0)
    assert not shuffle.newest().is_in_order(hot)
    shuffle.merge("subpartition", policy=MergePolicy(rewrite="always"))
    shuffle = shuffle.newest()
    assert shuffle.is_in_order(hot)
    counts = [len(rows_of(shuffle.rows([hot], piece=Piece(i, 8)))) for i in range(8)]
    assert sum(counts) == shuffle.subpartition_rows.to_pylist()[hot] > 60_000
    assert max(counts) < 1.3 * sum(counts) / 8


def test_only_files_of_a_piece_are_opened(tmp_path, monkeypatch):
    numbers = itertools.count()
    shuffle = written(tmp_path, table(numbers, 1_000, 9), "k", n=2, options=SMALL)
    for _ in range(7):
        shuffle.append(table(numbers, 1_000, 9), options=SMALL)
    hot = shuffle.subpartition_of(k=0)
    for number in range(4):
        shuffle = open_shuffle(tmp_path)
        opened = {source.order for source, _ in
                  shuffle.reader(hot, hot + 1, piece=Piece(number, 4)).planned()}  # fmt: skip
        assert opened <= {2 * number - 1, 2 * number, 2 * number + 1, 2 * number + 2}
