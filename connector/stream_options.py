"""Options of streams: strings from Spark to checked values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.source_options import (
    WRITE_OPTIONS,
    boolean_option,
    known_options,
    target_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.source_options import TargetOptions

SINK_OPTIONS = ("emptyVersions",)
"""Options of a sink beside those of a batch write."""

_OF_THE_QUERY = ("checkpointLocation", "queryName")
"""Spark's own, which it hands to the sink as well."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of one ``df.writeStream``."""

    target: TargetOptions
    empty_versions: bool = False
    """Whether a micro-batch without rows becomes a version too."""


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of a sink from what Spark hands over.

    Raises
    ------
    OptionError
        An unknown option, or a bad value; the message names it and what is allowed.
    """
    allowed = (*WRITE_OPTIONS, *SINK_OPTIONS)
    known = known_options(
        options, (*allowed, *_OF_THE_QUERY), f"options of a stream's sink are {', '.join(allowed)}"
    )
    empty = known.get("emptyVersions", "false")
    return SinkOptions(target_options(known), boolean_option("emptyVersions", empty))
