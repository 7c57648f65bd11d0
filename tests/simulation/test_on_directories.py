"""Interleavings of two or three actors, and groups at random, on directories."""

from tests.simulation.checks import Interleavings


class TestOnDirectories(Interleavings):
    on_stores = False
