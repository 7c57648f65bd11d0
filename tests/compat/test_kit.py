"""All of the kit is answered as it must be: by the product, and by a reader of the pages alone."""

import sys

import pytest

from tests.compat.kit import cases, problems


@pytest.mark.parametrize("reader", ["tests.compat.product", "integration.readers"])
def test_a_reader_answers_the_kit(reader):
    assert list(problems([sys.executable, "-m", reader])) == []


def test_the_kit_has_answers_of_every_kind():
    answers = [case.answer for case in cases()]
    assert min(answers.count(answer) for answer in ("rows", "damage", "newer", "absent")) > 3
