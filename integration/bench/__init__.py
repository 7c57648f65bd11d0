"""Benchmarks: ratios measured in one run, see ``docs/explanation/benchmarks.md``.

``python -m integration.bench`` measures several parts. Pure: ``results`` (ratios, verdicts),
``targets``, ``engine_lines``, ``cost_lines``, ``buffer_lines``, ``disk_lines``, ``memory_lines``,
``spark_lines`` (what is held against what), ``report`` (tables, JSON). Effects: ``lineitem``,
``narrow``, ``tables``, ``ipc`` (input), ``child`` (fresh processes), and for each part who competes
and how: ``engine`` with ``contenders`` and ``recompress``, ``cost``, ``disk`` (part ``bytes``),
``memory`` with ``streaming``, ``spark``, ``buffer``.
"""
