"""Which part of the bytes of all columns a few of them have."""

import pyarrow as pa
import pytest

from arrow_format import open_shuffle
from arrow_format.read.estimates import estimate_column_share
from tests.support.small_shuffles import write_rows


@pytest.mark.parametrize(
    ("names", "share"),
    [
        (["i"], 4 / 32),
        (["i", "t"], (4 + 20) / 32),
        (["t"], 20 / 32),
        (["i", "x", "t"], 1),
        ([], 0),
    ],
)
def test_texts_may_have_all_that_numbers_do_not(tmp_path, names, share):
    rows = pa.record_batch(
        {
            "i": pa.array(range(1_000), pa.int32()),
            "x": pa.array(range(1_000), pa.float64()),
            "t": ["0123456789abcdef"] * 1_000,  # 16 bytes and an offset
        }
    )
    write_rows(tmp_path, [rows], "i", n=3)
    snapshot = open_shuffle(tmp_path).snapshot
    assert estimate_column_share(snapshot, names) == pytest.approx(share, abs=0.02)
