"""Every interleaving: the real code runs against a simulated storage, one call at a time.

:mod:`~tests.simulation.files` says what a storage does, as pure functions of its content.
:mod:`~tests.simulation.storage` lets the code call it, :mod:`~tests.simulation.process` gives each
actor a clock, random numbers and an identity of its own, and :mod:`~tests.simulation.programs` runs
an actor call by call and remembers what it does after which answers. With that,
:mod:`~tests.simulation.explorer` goes through the interleavings, which
:mod:`~tests.simulation.schedule` prints and replays; :mod:`~tests.simulation.oracle` judges them
by :mod:`~tests.simulation.model`, and :mod:`~tests.simulation.scenarios` says who takes part.
"""
