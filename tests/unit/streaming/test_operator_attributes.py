"""What is said of an operator has to be of the right kind, also where it would change nothing."""

from datetime import timedelta

import pytest

from arrow_format import FlushOptions, OperatorAttributes, OptionError, decorated


@pytest.mark.parametrize(
    ("attributes", "how", "message"),
    [
        (None, {"keys": "k"}, "^attributes=None: expected OperatorAttributes"),
        (True, {}, "^attributes=True: expected"),
        (OperatorAttributes(), {"parallelism": "1"}, "^parallelism='1': expected a whole number"),
        (OperatorAttributes(), {"parallelism": 0}, "^parallelism=0: expected"),
    ],
)
@pytest.mark.parametrize("interval", [None, timedelta(seconds=1)])
def test_bad_arguments_are_named(attributes, how, message, interval):
    with pytest.raises(OptionError, match=message):
        decorated(object(), attributes, FlushOptions(max_interval=interval), **how)
