"""Upserts of 1 % of the keys, on one core: against writing all again, and against peers.

A table of 1 million rows, of customers that have 50 orders each, whose rows are together. An upsert
brings all orders of 1 % of the customers. Each round is a fresh process that has upserted into
another copy before. Processor time; rows are compared by sums of their columns.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import arrow_shuffle
from arrow_format import WriteOptions, merge_shuffle, open_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.results import Part, cpu_line
from integration.bench.rounds import installed

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

NUM_ORDERS = 50
"""Of each customer."""
NUM_UPSERTS = 30
OPTIONS = WriteOptions(sync=False)
OURS, REWRITE, LANCE, DELTA = "upsert", "writing all again", "Lance", "Delta"
BEFORE, AFTER, MERGED = "read before", "read after 30", "read after a merge"
PEERS = {LANCE: ("lance", "pylance"), DELTA: ("deltalake", "deltalake")}
UNIQUE = ["customer", "order"]


def orders(customers: np.ndarray, seed: int) -> pa.Table:
    """Return all orders of customers, with numbers and a text that differ by the seed."""
    num_rows = len(customers) * NUM_ORDERS
    random = np.random.default_rng(seed)
    price = pa.array(random.integers(0, 1 << 20, num_rows))
    return pa.table(
        {
            "customer": np.repeat(customers, NUM_ORDERS),
            "order": np.tile(np.arange(NUM_ORDERS, dtype=np.int32), len(customers)),
            "price": price,
            "discount": random.integers(0, 100, num_rows) / 100,
            "day": pa.array(random.integers(0, 3000, num_rows, np.int32)).cast(pa.date32()),
            "comment": pc.binary_join_element_wise("order", price.cast(pa.string()), " "),
        }
    )


def change(scale: float, seed: int) -> pa.Table:
    """Return all orders of 1 % of the customers."""
    num = _num_customers(scale)
    chosen = np.random.default_rng(seed).choice(num, num // 100, replace=False)
    return orders(np.sort(chosen), seed)


def _num_customers(scale: float) -> int:
    return max(100, int(1_000_000 * scale) // NUM_ORDERS)


def write_all(scale: float, out: str, n: int, peers: list[str]) -> dict[str, Any]:
    """Write the table for each contender, and the shuffle after upserts, and after a merge."""
    rows = orders(np.arange(_num_customers(scale)), 1)
    how: dict[str, Any] = {"keys": "customer", "num_subpartitions": n, "options": OPTIONS}
    for name in (BEFORE, AFTER, MERGED):
        arrow_shuffle.write_shuffle(rows, f"{out}-{name}", unique=UNIQUE, **how)
    for name in (AFTER, MERGED):
        shuffle = arrow_shuffle.open_shuffle(f"{out}-{name}")
        for seed in range(NUM_UPSERTS):
            shuffle.upsert(change(scale, 100 + seed), options=OPTIONS)
    merge_shuffle(f"{out}-{MERGED}", by="subpartition", options=OPTIONS)
    if LANCE in peers:
        import lance as peer

        peer.write_dataset(rows, f"{out}-{LANCE}")
    if DELTA in peers:
        import deltalake

        deltalake.write_deltalake(f"{out}-{DELTA}", rows)
    return {}


def upsert(source: str, label: str, scale: float, n: int) -> dict[str, Any]:
    """Upsert into a copy in one way; the sum of a column after it says what is there."""
    total = 0
    for seed in (2, 3):  # the first loads the code
        copy = f"{source}-copy"
        # Nothing changes a file that is there: links are copies enough.
        shutil.copytree(source, copy, copy_function=os.link)
        new = change(scale, seed)
        if label == LANCE:
            import lance as peer

            with timed() as answer:
                merge = peer.dataset(copy).merge_insert(UNIQUE)
                merge.when_matched_update_all().when_not_matched_insert_all().execute(new)
            total = pc.sum(peer.dataset(copy).to_table(columns=["price"])["price"]).as_py()
        elif label == DELTA:
            import deltalake

            table = deltalake.DeltaTable(copy)
            same = "t.customer = s.customer AND t.order = s.order"
            with timed() as answer:
                merge = table.merge(new, same, source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
            total = pc.sum(table.to_pyarrow_table(columns=["price"])["price"]).as_py()
        elif label == REWRITE:
            with timed() as answer:
                old = open_shuffle(copy).read().read_all()
                kept = old.filter(pc.invert(pc.is_in(old["customer"], new["customer"])))
                arrow_shuffle.write_shuffle(
                    pa.concat_tables([kept, new]), f"{copy}-new", keys="customer",
                    num_subpartitions=n, unique=UNIQUE, options=OPTIONS,
                )  # fmt: skip
            total = pc.sum(open_shuffle(f"{copy}-new").read().read_all()["price"]).as_py()
            shutil.rmtree(f"{copy}-new")
        else:
            with timed() as answer:
                arrow_shuffle.open_shuffle(copy).upsert(new, options=OPTIONS)
            total = pc.sum(open_shuffle(copy).read().read_all()["price"]).as_py()
        shutil.rmtree(copy)
    return {**answer, "num_rows": total, "num_bytes": 0}


def read(path: str) -> dict[str, Any]:
    """Read all rows, one time before the clock starts."""
    shuffle = open_shuffle(path)
    for _ in range(2):
        with timed() as answer:
            num_rows = sum(batch.num_rows for batch in shuffle.read())
    return {**answer, "num_rows": num_rows}


def run(settings: Settings) -> Part:
    """Measure upserts."""
    part = Part("upserts", f"Engine, 1 % of {settings.scale:g} million keys upserted")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    peers = installed(part, PEERS)
    for n in settings.numbers:
        settings.report(f"n = {n:,}: writing")
        out = str(settings.scratch / f"upserts-{n}")
        run_in_child(write_all, scale=settings.scale, out=out, n=n, peers=peers)
        case = f"1 % of the keys, n = {n:,}"
        into_copy = partial(run_in_child, upsert, scale=settings.scale, n=n)
        writes = {
            label: partial(
                into_copy, source=f"{out}-{label if label in peers else BEFORE}", label=label
            )
            for label in (OURS, REWRITE, *peers)
        }
        reads = {
            label: partial(run_in_child, read, path=f"{out}-{label}")
            for label in (BEFORE, AFTER, MERGED)
        }
        timings = settings.measure(part, case, writes)
        if len({timing.num_rows for timing in timings.values()}) > 1:
            msg = f"{case}: {timings} disagree on the rows that are there"
            raise RuntimeError(msg)
        timings |= settings.measure(part, f"{case}: reading", reads)
        part.lines.append(cpu_line(case, timings, OURS, REWRITE, targets.UPSERT_AGAINST_REWRITE))
        part.lines += [
            cpu_line(case, timings, OURS, peer, targets.UPSERT_AGAINST_PEERS) for peer in peers
        ]
        part.lines.append(cpu_line(case, timings, AFTER, BEFORE, targets.READ_AFTER_UPSERTS))
        part.lines.append(cpu_line(case, timings, MERGED, BEFORE, targets.READ_AFTER_MERGE))
    return part
