"""The simulation itself: it repeats what it does, and finds what is wrong."""

import random
from dataclasses import replace

import pytest

from tests.simulation import actors, files
from tests.simulation.campaign import explored, replayed, staged
from tests.simulation.explorer import walk
from tests.simulation.process import virtual_world
from tests.simulation.programs import NotRepeatableError, Program
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.schedule import run_words
from tests.simulation.stage import Scenario


class TestRepeats:
    @pytest.mark.parametrize("name", ["append+gc", "merge+read on a store", "five on a table"])
    def test_what_is_remembered_is_what_the_code_does(self, name):
        with staged(name) as (world, oracle):
            known = [
                walk(world, oracle.on_step, oracle.on_end, random.Random(seed), fault=0.0)[0]
                for seed in range(4)
            ]
            ends = [run_words(words, world, oracle.on_step) for words in known]
            runs = sum(program.num_runs for program in world.programs)
        for words, end in zip(known, ends, strict=True):
            with staged(name) as (world, oracle):
                again = run_words(words, world, lambda _, state: state)
            assert again.files.entries == end.files.entries
            assert [node.events for node in again.nodes] == [node.events for node in end.nodes]
        assert runs >= len(world.programs)

    def test_a_program_that_does_something_else_is_refused(self):
        turns = []

        def act(storage):
            turns.append(None)
            storage.stat(f"a{len(turns)}")
            storage.stat("b")

        with virtual_world():
            program = Program("unsteady", act)
            first = program.root
            one = program.after(first, files.Answer(0, files.OK))
            program.after(one, files.Answer(0, files.OK))
            with pytest.raises(NotRepeatableError, match="'a2'"):
                program.after(first, files.Answer(1, files.OK))
            program.close()

    def test_a_printed_schedule_goes_wrong_in_the_same_way(self, monkeypatch):
        _broken(monkeypatch, "delete", _not_at_all)
        name = "append+overwrite"
        found = explored(name)
        assert found.wrong
        assert replayed(name, found.schedule)[0] == found.wrong


def _wrong_in(begin, monkeypatch):
    """What a search finds in a scenario of its own."""
    monkeypatch.setitem(SCENARIOS, "of its own", Scenario("of its own", begin))
    return explored("of its own").wrong


def _broken(monkeypatch, kind, handler):
    monkeypatch.setitem(files._HANDLERS, kind, handler)


def _not_at_all(content, call, now_ms, has_directories):
    return content, files.OK, None


class TestFinds:
    """What a storage must not do: each lets the oracle say so."""

    def test_puts_that_replace_what_exists(self, monkeypatch):
        def put(content, call, now_ms, has_directories):
            return content.changed({call[1]: files.Entry(call[2], now_ms)}), files.OK, None

        _broken(monkeypatch, "put", put)
        assert explored("append+append on a store").wrong

    def test_links_that_replace_what_exists(self, monkeypatch):
        def link(content, call, now_ms, has_directories):
            data = content.entries[call[2]].data
            changes = {call[1]: files.Entry(data, now_ms), call[2]: None}
            return content.changed(changes), files.OK, None

        _broken(monkeypatch, "link", link)
        assert explored("append+append").wrong

    def test_deletions_of_what_is_needed(self, monkeypatch):
        def begin(stage):
            stage.rows(1, 2)

            def remove(storage):
                (path, *_) = storage.files("map_outputs", depth=2)
                storage.delete(path)

            return {"R": actors.read(), "V": remove}

        assert "is not there" in _wrong_in(begin, monkeypatch)

    def test_an_actor_that_fails_before_its_first_call(self, monkeypatch):
        def begin(stage):
            stage.rows(1)

            def fail(storage):
                raise TypeError("at the start")

            return {"R": actors.read(), "V": fail}

        assert "at the start" in _wrong_in(begin, monkeypatch)

    def test_rows_that_are_committed_twice(self, monkeypatch):
        def begin(stage):
            stage.rows(1)
            first, second = stage.job([11]), stage.job([11])

            def twice(storage):
                actors.commit("append", first)(storage)
                # Not said: as if the first commit had been repeated.
                actors.commit_job(
                    replace(second.job, storage=storage), second.statuses, mode="append"
                )

            return {"A": twice, "R": actors.read()}

        assert "no commit said so" in _wrong_in(begin, monkeypatch)

    def test_files_that_nothing_names(self, monkeypatch):
        _broken(monkeypatch, "delete", _not_at_all)
        assert "left over" in explored("append+overwrite").wrong


def test_words_of_a_schedule_that_mean_nothing():
    with staged("append+read") as (world, oracle):
        for words in ("Z*1", "A", "A@nowhere", "A!lost/x"):
            with pytest.raises((ValueError, KeyError)):
                run_words(words, world, oracle.on_step)
