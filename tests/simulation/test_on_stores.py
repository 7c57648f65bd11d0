"""Interleavings of two or three actors, and groups at random, on stores."""

from tests.simulation.checks import Interleavings


class TestOnStores(Interleavings):
    on_stores = True
