"""A job of many writers on a store that refuses what is above a rate of each prefix.

As S3 does above 3,500 puts and 5,500 gets a second, here above a hundredth of that.
``python -m integration.test_busy_prefixes`` prints how much is refused, and how long a job takes,
with digits in the names of files and without.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

from arrow_format import WriteOptions, open_shuffle
from arrow_format.jobs import job_files
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.storage.open import open_storage
from tests.support.fault_proxy import proxy_to
from tests.support.guarantees import guarantee
from tests.support.s3_server import S3Server, serving
from tests.support.small_shuffles import SCHEMA, run

PUTS, GETS = 35, 55
WRITERS = 200
N = 5


def write(server: S3Server, num_map_tasks: int) -> tuple[int, float]:
    """Write a job by 200 writers and read it back; what was refused, and the seconds it took."""
    bucket = server.new_bucket()
    with proxy_to(server) as proxy:
        storage = open_storage(f"s3://{bucket}/a", proxy.options)
        job = begin_job(
            storage,
            SCHEMA,
            num_subpartitions=N,
            partitioner=ColumnPartitioner("p"),
            options=WriteOptions(threads=1),
        )
        proxy.limit(PUTS, GETS)
        began = time.monotonic()
        with ThreadPoolExecutor(WRITERS) as writers:
            tasks = [
                partial(run, job, task, range(N), start=N * task) for task in range(num_map_tasks)
            ]
            statuses = list(writers.map(lambda task: task(), tasks))
        commit_job(job, statuses)
        seconds = time.monotonic() - began
        refused = len(proxy.broken)
    shuffle = open_shuffle(f"s3://{bucket}/a", storage_options=server.options)
    assert sorted(shuffle.read().read_all()["v"].to_pylist()) == [*range(N * num_map_tasks)]
    return refused, seconds


@guarantee("store faults")
def test_a_job_of_200_writers_lives_through_refusals_of_a_busy_prefix(s3):
    """200 writers on a store that answers 503 above a rate of each prefix: all rows are there"""
    refused, _ = write(s3, WRITERS)
    assert refused > 0


def main() -> None:
    """Print the figures for jobs of some sizes."""
    for num_map_tasks in map(int, sys.argv[1:] or ("200", "1000")):
        with serving(page=1000) as server:
            for names, fold_from in (
                ("without", (10**9, 10**9)),
                ("with", job_files.FOLD_FROM),
            ):
                with mock.patch.object(job_files, "FOLD_FROM", fold_from):
                    refused, seconds = write(server, num_map_tasks)
                print(
                    f"{num_map_tasks} map tasks, {names} digits: {refused} x 503, {seconds:.1f} s"
                )


if __name__ == "__main__":
    main()
