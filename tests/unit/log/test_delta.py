"""Deltas compose: however a history is cut into pieces, the version is the one of its entries."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.log.delta import Delta, compose
from arrow_format.log.outputs import NO_KEYS, NO_OUTPUTS, MapOutputs, key_of
from arrow_format.log.totals import sum_totals
from arrow_format.model import MapOutput, PartitionedFile, Position
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee


def output_of(number, task, rows, position=None):
    file = PartitionedFile(f"j{number}/{task}", rows, 1, 10 * rows, rows, 8, 8, 8)
    return MapOutput(
        f"j{number}", task, 0, (file,), position=position or Position(number, task, number)
    )


def totals_of(outputs):
    """Of two subpartitions: an output with an odd number of rows has them in the second."""
    rows = np.zeros(2, np.int64)
    for output in outputs:
        rows[output.num_rows % 2] += output.num_rows
    return rows, 10 * rows


@dataclass
class History:
    """What entries do, and the version that each should give."""

    deltas: list[Delta] = field(default_factory=list)
    contents: list[list[MapOutput]] = field(default_factory=list)

    @property
    def content(self):
        return self.contents[-1] if self.contents else []

    def add(self, content, **changes):
        self.deltas.append(Delta(**changes))
        self.contents.append(sorted(content, key=lambda output: output.position[:2]))

    def replaced(self, inputs, outputs):
        before, after = totals_of(inputs), totals_of(outputs)
        self.add(
            [one for one in self.content if one not in inputs] + outputs,
            added=MapOutputs.of(outputs),
            removed=pa.array(map(key_of, inputs), pa.string()),
            totals=(after[0] - before[0], after[1] - before[1]),
        )


@st.composite
def histories(draw):
    history = History()
    for number in range(1, draw(st.integers(1, 10)) + 1):
        kind = draw(
            st.sampled_from(
                ["append", "append", "overwrite", "merge", "delete", "release", "rollback",
                 "nothing"]
            )
        )  # fmt: skip
        content = history.content
        if kind in ("append", "overwrite"):
            made = [output_of(number, task, draw(st.integers(1, 9)))
                    for task in range(draw(st.integers(0, 2)))]  # fmt: skip
            clears = kind == "overwrite" or number == 1
            history.add(
                made if clears else content + made,
                added=MapOutputs.of(made), clears=clears, totals=totals_of(made),
            )  # fmt: skip
        elif kind == "rollback" and content:
            back = draw(st.sampled_from(history.contents))
            history.add(back, added=MapOutputs.of(back), clears=True, totals=totals_of(back))
        elif kind == "merge" and len(content) > 1:
            first = draw(st.integers(0, len(content) - 2))
            inputs = content[first : first + 2]
            last = max(one.position.last_version for one in inputs)
            position = inputs[0].position._replace(last_version=last)
            rows = sum(one.num_rows for one in inputs)
            history.replaced(inputs, [output_of(number, 0, rows, position)])
        elif kind == "delete" and content:
            (gone,) = draw(st.lists(st.sampled_from(content), min_size=1, max_size=1))
            left = [output_of(number, 0, gone.num_rows - 1, gone.position)]
            history.replaced([gone], left if gone.num_rows > 1 else [])
        elif kind == "release" and content:
            through = draw(st.integers(1, number - 1))
            kept = [one for one in content if one.position.last_version > through]
            if kept != content:
                before, after = totals_of(content), totals_of(kept)
                totals = (after[0] - before[0], after[1] - before[1])
                history.add(kept, released=through, totals=totals)
        elif kind == "release":
            history.add([], clears=True)
    return history


def grouped(data, deltas):
    """Compose them in any order of brackets."""
    parts = list(deltas)
    while len(parts) > 1:
        first = data.draw(st.integers(0, len(parts) - 2))
        count = data.draw(st.integers(2, len(parts) - first))
        parts[first : first + count] = [compose(parts[first : first + count])]
    return parts[0]


@pytest.mark.slow
@guarantee("checkpoints")
@guarantee("partial totals")
@settings(deadline=None, max_examples=examples(200, 200))
@given(history=histories(), data=st.data())
def test_composition_is_associative(history, data):
    if not history.deltas:
        return
    at_once = compose(history.deltas)
    assert list(at_once.added) == history.content
    found = grouped(data, history.deltas)
    assert list(found.added) == history.content
    assert found.clears == at_once.clears
    expected = [part.tolist() for part in totals_of(history.content)]
    for delta in (at_once, found):
        nothing = (np.zeros(2, np.int64),) * 2
        assert [part.tolist() for part in delta.totals or nothing] == expected


@pytest.mark.slow
@guarantee("checkpoints")
@settings(deadline=None, max_examples=examples(200, 200))
@given(history=histories(), data=st.data())
def test_a_part_of_a_history_composes_with_what_is_before_it(history, data):
    """As a checkpoint does that does not begin with the log."""
    if len(history.deltas) < 2:
        return
    cut = data.draw(st.integers(1, len(history.deltas) - 1))
    before, part = compose(history.deltas[:cut]), compose(history.deltas[cut:])
    first, *rest = history.deltas[cut:]
    again = compose([first, grouped(data, rest)]) if rest else compose([first])
    assert (list(part.added), part.clears, part.released) == (
        list(again.added), again.clears, again.released,
    )  # fmt: skip
    assert set(part.removed.to_pylist()) == set(again.removed.to_pylist())
    assert list(compose([before, part]).added) == history.content


def test_nothing_composes_to_nothing():
    nothing = compose([])
    assert (list(nothing.added), nothing.clears, nothing.totals) == ([], False, None)
    assert compose([Delta(), Delta()]) == Delta() == nothing


def test_what_was_removed_before_it_was_added_here_stays_removed():
    gone = pa.array(["j1/0", "j2/0"])
    part = compose([Delta(MapOutputs.of([output_of(2, 0, 1)])), Delta(removed=gone)])
    assert part.removed.to_pylist() == ["j1/0"]
    assert (part.added, part.clears) == (NO_OUTPUTS, False)
    assert compose([part, Delta(clears=True)]).removed.equals(NO_KEYS)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.data())
def test_totals_of_several_numbers_count_modulo_any_that_divides_all(numbers, data):
    parts = [
        Delta(totals=(rows, 10 * rows))
        for rows in (np.array(data.draw(st.lists(st.integers(-9, 9), min_size=n, max_size=n)))
                     for n in numbers)
    ]  # fmt: skip
    cut = data.draw(st.integers(0, len(parts)))
    n = np.gcd.reduce(numbers)
    expected = sum(part.totals[0].reshape(-1, n).sum(axis=0) for part in parts)
    whole, joined = compose(parts), compose([compose(parts[:cut]), compose(parts[cut:])])
    assert [len(of) for of in whole.totals] == [max(numbers)] * 2
    for one, other in zip(whole.totals, joined.totals, strict=True):
        assert one.tolist() == other.tolist()
    assert [of.tolist() for of in sum_totals([whole.totals], n)] == [
        expected.tolist(),
        (10 * expected).tolist(),
    ]
