"""Benchmarks: ratios measured in one run, see ``docs/benchmarks.md``.

``python -m integration.bench`` measures three parts. Pure: ``results`` (ratios, verdicts),
``report`` (tables, JSON), ``targets``. Effects: ``lineitem`` (input), ``child`` (fresh processes), and
for each part who competes and how: ``engine`` with ``contenders``, ``memory`` with ``streaming``,
``spark``.
"""
