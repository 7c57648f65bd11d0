"""Texts that users read name what they import: ``arrow_shuffle``, and not how it is built."""

import re

import pytest

import arrow_shuffle
from tests.support.sources import modules, texts_in

BUILT_OF = ("arrow_format", "connector")
NAMED = re.compile(rf"\b(?:{'|'.join(BUILT_OF)})\.(\w+)")


@pytest.mark.slow
def test_messages_name_what_users_import():
    wrong = [
        f"{path}: {named[0]}"
        for path, tree in modules(*BUILT_OF).items()
        for text in texts_in(tree)
        for named in NAMED.finditer(text)
        if named[1] in arrow_shuffle.__all__
    ]
    assert not wrong
