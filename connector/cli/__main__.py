"""``python -m connector.cli``: the command where its script is not installed."""

import sys

from connector.cli.main import main

sys.exit(main())
