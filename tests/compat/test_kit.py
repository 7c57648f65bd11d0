"""All of the kit is answered as it must be: by the product, and by a reader of the pages alone."""

import json
import sys

import jsonschema
import pytest

from arrow_format import CorruptShuffleError, open_shuffle
from integration.programs.compiler import CompilerError, find_compiler
from tests.compat.golden import HERE, SEEN_WHOLE
from tests.compat.kit import DIGESTS, FROZEN, cases, copied, digests, problems, read_alike
from tests.compat.product import read
from tests.compat.schemas import HERE as SCHEMAS
from tests.compat.schemas import schemas
from tests.support.guarantees import guarantee
from tests.support.store_server import skip_but_in_ci


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["tests.compat.product", "integration.readers"])
def test_a_reader_answers_the_kit(reader):
    assert list(problems([sys.executable, "-m", reader])) == []


@pytest.mark.spark
@pytest.mark.parametrize("how", [[], ["pieces"]], ids=["whole", "pieces"])
def test_the_reader_in_java_answers_the_kit(how):
    try:
        find_compiler()
    except CompilerError as error:
        skip_but_in_ci(str(error))
    assert list(problems([sys.executable, "-m", "integration.readers.jvm", *how])) == []


@pytest.mark.parametrize(
    "case",
    [case for case in cases() if case.answer == "rows" and case.damage is None],
    ids=lambda case: str(case),
)
def test_rows_read_without_an_order_are_those_of_the_kit(case, tmp_path):
    shuffle = copied(case.directory, tmp_path / case.name) / "shuffle"
    assert read_alike(case, read(shuffle, case.version, ordered=False))


@guarantee("verify")
@pytest.mark.parametrize("case", [case for case in cases() if case.answer == SEEN_WHOLE], ids=str)
def test_a_check_of_whole_files_finds_what_no_reader_of_some_need(case):
    with pytest.raises(CorruptShuffleError):
        open_shuffle(case.directory / "shuffle", case.version).verify()


def test_the_bytes_of_the_kit_are_kept():
    kept, found = json.loads(DIGESTS.read_bytes()), digests()
    changed = sorted(name for name in kept.keys() | found if kept.get(name) != found.get(name))
    why = "changed: a line of CHANGELOG.md says why, and `python -m tests.compat.datagen` keeps it"
    assert not changed, f"{', '.join(changed)} {why}"


@guarantee("frozen format")
def test_no_shuffle_of_the_frozen_version_ever_changes():
    frozen, found = json.loads(FROZEN.read_bytes()), digests()
    changed = sorted(name for name in frozen if frozen[name] != found.get(name))
    assert not changed, f"{', '.join(changed)}: version 1 is frozen; add other shuffles"
    assert len(frozen) >= 60


def test_the_kit_has_answers_of_every_kind():
    answers = [case.answer for case in cases()]
    assert min(answers.count(answer) for answer in ("rows", "damage", "newer", "absent")) > 3


def test_the_schemas_that_machines_read_are_those_of_the_code():
    found = {path.name: path.read_bytes() for path in SCHEMAS.iterdir()}
    assert found == schemas(), "run `python -m tests.compat.datagen`"


@pytest.mark.slow
def test_every_entry_and_range_is_as_its_schema_says():
    schema = json.loads((SCHEMAS / "entry.schema.json").read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    entries = [
        path
        for kind in ("entry", "range")
        for path in HERE.glob(f"*/shuffle/commit_log/*/{'[0-9]' * 20}.{kind}")
    ]
    for path in entries:
        validator.validate(json.loads(path.read_bytes().partition(b"\n")[0]))
    assert len(entries) > 100
