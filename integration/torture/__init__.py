"""Rounds of random work on shuffles, with a SIGKILL at a random moment of each.

``make torture ROUNDS=300 SEED=1``; how it goes is in ``docs/explanation/testing.md``.
"""
