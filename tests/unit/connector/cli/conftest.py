"""The command, run in this process."""

import pytest

from connector.cli import main as cli


@pytest.fixture
def run(capsys):
    """Run the command; return exit status, stdout and stderr."""

    def run_command(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run_command
