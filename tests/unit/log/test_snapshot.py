"""A version with some of its map outputs replaced, settled anew after each lost race."""

import pytest

from arrow_format import CommitConflictError
from arrow_format.log.snapshot import PlacedOutputs, Replacement, join_outputs, replace_outputs
from arrow_format.model import MapOutput, PartitionedFile


def output_of(name, root=0, task=0):
    return MapOutput(name, task, 0, (PartitionedFile(name, 1, 1, 8, 8, 8, 8, root=root),))


A, B, C, D, E = map(output_of, "ABCDE")
MERGED, OTHER = output_of("merged"), output_of("other")


def placed(*outputs, roots=()):
    return PlacedOutputs(outputs, roots)


def change(inputs, output=MERGED, roots=(), output_roots=()):
    return Replacement(placed(*inputs, roots=roots), placed(output, roots=output_roots))


def test_the_merged_one_stands_where_its_inputs_were():
    assert replace_outputs(placed(A, B, C, D), [change([B, C])]).outputs == (A, MERGED, D)
    assert replace_outputs(placed(A, B), [change([A, B])]).outputs == (MERGED,)


def test_what_was_appended_meanwhile_stays_behind():
    assert replace_outputs(placed(A, B, C), [change([A, B])]).outputs == (MERGED, C)


def test_several():
    changes = [change([A, B]), change([D, E], OTHER)]
    assert replace_outputs(placed(A, B, C, D, E), changes).outputs == (MERGED, C, OTHER)


@pytest.mark.parametrize(
    "current", [(), (C,), (A, C), (B, A), (A, C, B), (MERGED,), (A, output_of("B", task=7))]
)
def test_inputs_that_are_not_there_as_they_were(current):
    with pytest.raises(CommitConflictError, match="overwrote or merged the shuffle meanwhile"):
        replace_outputs(placed(*current), [change([A, B])])


def test_roots_are_numbered_anew():
    current = join_outputs(
        [
            placed(output_of("x", 2), output_of("y"), roots=("/one", "/two")),
            placed(output_of("z", 1), roots=("/three",)),
        ]
    )
    assert current.roots == ("/two", "/three")
    assert [output.files[0].root for output in current.outputs] == [1, 0, 2]


def test_inputs_are_the_same_whatever_number_their_root_has():
    current = placed(output_of("a", 1), output_of("b", 2), roots=("/x", "/y"))
    same = change([output_of("b", 1)], output_of("m", 1), roots=("/y",), output_roots=("/z",))
    found = replace_outputs(current, [same])
    assert [output.job_id for output in found.outputs] == ["a", "m"]
    assert found.roots == ("/x", "/z"), "a root that no file is in any more is left out"
    assert [output.files[0].root for output in found.outputs] == [1, 2]
    elsewhere = change([output_of("b", 1)], roots=("/elsewhere",))
    with pytest.raises(CommitConflictError):
        replace_outputs(current, [elsewhere])
