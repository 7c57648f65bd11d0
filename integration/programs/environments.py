"""Python environments beside the one that runs: with its packages, without this project's.

``python -m integration.programs.environments DIRECTORY`` makes one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyspark

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
    # Spark's may be in front of the others: where its version is another one, see the Makefile.
    installed = [Path(str(package.__file__)).parents[1] for package in (pyspark, np)]
    lines = dict.fromkeys([*also, *installed])
    (_modules(directory) / "packages.pth").write_text("".join(f"{line}\n" for line in lines))
    return directory / "bin" / "python"


def _modules(directory: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))


def zip_packages(file: Path) -> Path:
    """Put the packages of this project into a zip, for ``pyFiles`` and ``addArtifacts``.

    As a wheel has them, with the stubs that name what is public.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for package in PACKAGES:
            kept = (ROOT / package).rglob
            for module in sorted([*kept("*.py"), *kept("*.pyi")]):
                archive.write(module, module.relative_to(ROOT))
    return file


def pack_environment(directory: Path) -> Path:
    """Pack an environment with this project into a ``.tar.gz``, for ``--archives``.

    This project is inside; other packages are found where they are installed here, as 400 MB of
    them would be copied for each test.
    """
    make_environment(directory)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            _modules(directory) / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    packed = directory.with_name(f"{directory.name}.tar.gz")
    with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
        archive.add(directory, ".")
    shutil.rmtree(directory)
    return packed


if __name__ == "__main__":
    make_environment(Path(sys.argv[1]).absolute())
