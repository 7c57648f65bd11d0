"""Shuffles of Spark DataFrames: written through ``mapInArrow``, read through ``spark.read``.

Users import :mod:`arrow_shuffle`; this is how it is built. ``__init__.pyi`` lists the public names,
which are loaded on first use: Spark's discovery of data sources imports this package and must stay
fast, and a failing import there would disable every Python data source.
"""

from __future__ import annotations

from arrow_format import __version__ as __version__
from arrow_format.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
