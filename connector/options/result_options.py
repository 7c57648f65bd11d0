"""Options of results as Spark hands them over: what is made, and who consumes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.log.consumers import check_consumer
from arrow_format.result_type import ResultPartitionType
from connector.options.duration import parse_duration
from connector.options.text import bad, num_bytes, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULT_OPTIONS = (
    "resultType",
    "maxUnconsumedBytes",
    "maxUnconsumedVersions",
    "backPressureTimeout",
)
"""Names of those of a write."""
REQUEST_OPTIONS = ("requestTimeout", "consumer")
"""Names of those of a read."""


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """How a read asks for a result."""

    timeout: float = 0.0
    """Seconds to wait for the shuffle to be there."""
    consumer: str | None = None
    """The name under which it consumes; None where it only looks."""


def parse_request(known: Mapping[str, str]) -> ResultRequest:
    """Read :data:`REQUEST_OPTIONS` among options by their documented names.

    Raises
    ------
    OptionError
        A value is bad; names it.
    """
    timeout = parse_duration(known.get("requestTimeout", "0s"), "option requestTimeout")
    consumer = check_consumer(known["consumer"]) if "consumer" in known else None
    return ResultRequest(timeout.total_seconds(), consumer)


def parse_result_options(known: Mapping[str, str]) -> dict[str, object]:
    """Read :data:`RESULT_OPTIONS` among options by their documented names.

    Returns
    -------
    dict
        Arguments of :class:`~arrow_format.WriteOptions`.

    Raises
    ------
    OptionError
        A value is bad, or the type is one that has no such option; names it.
    """
    settings: dict[str, object] = {}
    kind = known.get("resultType", "").upper()
    if "resultType" in known:
        names = ResultPartitionType.__members__
        if kind not in names:
            raise bad("resultType", known["resultType"], f"one of {', '.join(names)}")
        settings["result_type"] = kind
    is_bounded = kind == ResultPartitionType.PIPELINED_BOUNDED.name
    for name, key in (
        ("maxUnconsumedBytes", "max_unconsumed_bytes"),
        ("maxUnconsumedVersions", "max_unconsumed_versions"),
    ):
        if name in known:
            if not is_bounded:
                msg = f"option {name}: only resultType=PIPELINED_BOUNDED has bounds; give it too"
                raise OptionError(msg)
            parse = num_bytes if name.endswith("Bytes") else whole
            settings[key] = parse(name, known[name])
    if "backPressureTimeout" in known:
        if kind and not is_bounded:  # without a type, that of the shuffle appended to holds
            msg = (
                "option backPressureTimeout: only resultType=PIPELINED_BOUNDED waits for its "
                f"consumers, and resultType is {kind}; leave one of them out"
            )
            raise OptionError(msg)
        wait = parse_duration(known["backPressureTimeout"], "option backPressureTimeout")
        settings["back_pressure_timeout"] = wait.total_seconds()
    return settings
