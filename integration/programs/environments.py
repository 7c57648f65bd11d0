"""Python environments beside the one that runs: with its packages, without this project's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("arrow_format", "arrow_shuffle", "connector", "pyspark_arrow_shuffle")


def make_environment(directory: Path, *also: Path) -> Path:
    """Make a virtual environment with what is installed here, except this project.

    The clone is installed by a ``.pth`` file, which Python reads in the environment's own directory
    of packages only, not in that of another one.

    Parameters
    ----------
    directory
        Where it goes.
    also
        Directories of modules in front of the packages.

    Returns
    -------
    Path
        Its ``bin/python``.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", directory], check=True, capture_output=True
    )
    own = sysconfig.get_path("purelib", "venv", {"base": str(directory)})
    installed = Path(np.__file__).parents[1]
    lines = [*also, installed]
    (Path(own) / "packages.pth").write_text("".join(f"{line}\n" for line in lines))
    return directory / "bin" / "python"
