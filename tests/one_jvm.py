"""Of several processes that run tests, one alone runs those with Spark: it starts the one JVM."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class OneJvm(LoadFileScheduling):
    """Hands out files as ``--dist=loadfile`` does, but those with Spark as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "with Spark" if uses_spark(file) else file


@cache
def uses_spark(file: str) -> bool:
    """Whether a function of a file of tests has the fixture, by its source."""
    source = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return re.search(r"^def \w+\([^)]*\bspark\b", source, re.MULTILINE) is not None
