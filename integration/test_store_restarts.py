"""A store that is killed under its writers, and is back half a minute later."""

import threading
import time

import pyarrow as pa

from arrow_format import open_shuffle, write_shuffle
from arrow_format.errors import ShuffleError
from tests.support import gcs_server
from tests.support.guarantees import guarantee
from tests.support.store_server import free_port

WRITERS = 3
AWAY_S = 30


@guarantee("lost answers")
def test_a_store_that_is_away_for_half_a_minute_fails_no_write(tmp_path):
    port, ends = free_port(), threading.Event()
    versions, failed = [], []

    def append(path, options, number):
        while not ends.is_set():
            rows = pa.table({"writer": [number]})
            try:
                receipt = write_shuffle(
                    rows,
                    path,
                    keys="writer",
                    num_subpartitions=2,
                    mode="append",
                    storage_options=options,
                )
                versions.append(receipt.version)
            except ShuffleError as error:
                failed.append(error)
                return

    with gcs_server.serving(tmp_path, port) as server:
        path, options = f"gs://{server.new_bucket()}/a", server.options
        writers = [
            threading.Thread(target=append, args=(path, options, number))
            for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        wait_until(lambda: len(versions) > 2 * WRITERS or failed)
    before = len(versions)
    time.sleep(AWAY_S)
    with gcs_server.serving(tmp_path, port):
        wait_until(lambda: len(versions) > before + 2 * WRITERS or failed)
        ends.set()
        for writer in writers:
            writer.join()
        assert not failed, failed[0]
        assert sorted(versions) == list(range(1, len(versions) + 1))
        shuffle = open_shuffle(path, storage_options=options)
        assert shuffle.num_rows == len(versions)
        assert shuffle.verify().ok


def wait_until(holds):
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
