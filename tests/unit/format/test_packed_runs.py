"""Which way values of many chunks are unpacked."""

from arrow_format.format.packed_runs import FEW_ROWS, MANY_CHUNKS, Runs


def test_a_few_values_of_many_chunks_are_unpacked_together():
    runs = Runs.of([(100, 7, 9), (50, 0, 0)] * MANY_CHUNKS)
    assert runs.few is not None
    assert runs.few.row.tolist() == [7, 8] * MANY_CHUNKS
    assert runs.few.chunk.tolist() == [i for i in range(0, 2 * MANY_CHUNKS, 2) for _ in range(2)]
    assert Runs.of([(100, 7, 9)]).few is None
    assert Runs.of([(100, 0, FEW_ROWS + 1)] * MANY_CHUNKS).few is None


def test_more_values_than_a_column_can_have_are_not_multiplied_in_64_bits():
    of_lists = Runs.of([(1, 0, 0)] * MANY_CHUNKS).times((1 << 31) - 1).times((1 << 31) - 1)
    assert of_lists.few is None
    assert of_lists.times((1 << 31) - 1).rows[0] == (((1 << 31) - 1) ** 3, 0, 0)
