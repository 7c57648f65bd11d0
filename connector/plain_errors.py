"""Errors that leave our code for Spark say what is wrong, and not where in our code it was found.

Spark sends an error as text, with a line or three for each frame. With frames of ours the sentence
that helps is the last of thirty lines. With none it is below all of Spark's, which Spark leaves
away only where it finds another: so one is kept.

In few lines of its own, since all that Spark calls needs it: the data source, and what tasks run.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from arrow_format.errors import ShuffleError
from arrow_format.operators.results import is_of_function, without_our_frames

if TYPE_CHECKING:
    from collections.abc import Callable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def make_plain(error: Exception) -> bool:
    """Take from an error what its reader does not need; return whether it still has frames.

    A ShuffleError has neither frames nor causes then; an error of a user's function has those
    frames that are not ours. Any other is a fault of ours, and keeps all.
    """
    if isinstance(error, ShuffleError):
        error.__traceback__ = None
    elif is_of_function(error):
        error.__traceback__ = without_our_frames(error.__traceback__)
    return error.__traceback__ is not None


def plain_errors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function, or a generator function, that Spark calls: its errors are plain."""
    called: Any = function
    if inspect.isgeneratorfunction(called):

        @functools.wraps(called)
        def wrapped(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            try:
                yield from called(*args, **named)
            except Exception as error:
                if make_plain(error):
                    raise  # without this frame
                raise error from None

    else:

        @functools.wraps(called)
        def wrapped(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            try:
                return called(*args, **named)
            except Exception as error:
                if make_plain(error):
                    raise  # without this frame
                raise error from None

    made: Callable[Parameters, Result] = wrapped
    return made
