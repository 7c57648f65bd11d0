"""The Arrow shuffle format and its engine: sort-merge write, verified read, no Spark needed.

Users import :mod:`arrow_shuffle`; this is how it is built. ``__init__.pyi`` lists the public names,
which are loaded on first use.
"""

from __future__ import annotations

from arrow_format.lazy_names import lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
