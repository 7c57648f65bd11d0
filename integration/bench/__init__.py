"""Benchmarks: ratios measured in one run, see ``docs/benchmarks.md``.

``python -m integration.bench`` measures three parts. Pure: ``results`` (ratios, verdicts),
``targets``, ``engine_lines``, ``memory_lines``, ``spark_lines`` (what is held against what),
``report`` (tables, JSON). Effects: ``lineitem`` (input), ``child`` (fresh processes), and for each
part who competes and how: ``engine`` with ``contenders``, ``memory`` with ``streaming``, ``spark``.
"""
