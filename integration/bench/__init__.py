"""Benchmarks: ratios measured in one run, see ``docs/explanation/benchmarks.md``.

``python -m integration.bench`` measures the parts ``engine``, ``read``, ``spark``, ``lane``,
``joins``, ``memory``, ``buffer`` and ``combine``, each a module with a function ``run``. They share
``results`` (ratios and verdicts, pure), ``targets``, ``report`` (table and JSON), ``rounds`` (who
is measured when), ``child`` (a fresh process on one core) and ``inputs``.
"""
