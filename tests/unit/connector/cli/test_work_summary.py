"""What ``inspect`` says of the work of map tasks."""

from arrow_format.write.counters import MapCounters, sum_counters
from connector.cli.inspection import work_lines


def test_times_as_shares_and_reasons_as_counts():
    one = MapCounters(
        partition_ns=100_000_000, gather_ns=500_000_000, encode_ns=1_000_000_000,
        write_ns=400_000_000, full_buffer_flushes=3, final_flushes=1, large_batches=2,
    )  # fmt: skip
    assert work_lines(sum_counters([one.as_dict(), one.as_dict()])) == [
        "4.0 s in all: finding subpartitions 5%, collecting and gathering 25%, "
        "encoding 50%, writing 20%",
        "buffers written because of: full buffer 6, end of a task 2",
        "batches larger than the buffer: 4",
    ]


def test_what_did_not_happen_is_not_mentioned():
    assert work_lines({}) == []
    assert work_lines(MapCounters(num_batches=1).as_dict()) == []
    assert work_lines({"failed_directories": 1, "failed_rewrites": 2, "of_the_future": 7}) == [
        "map outputs whose regions could not be joined: 2",
        "directories given up, full or broken: 1",
    ]
