"""Check a built sdist and wheel: what is in them, and what their metadata says.

``python -m tests.check_dist dist`` prints ``file: problem`` and exits 1 when there is any. With
``--release`` it also asks whether this commit may be released: nothing uncommitted, a dated entry
in the changelog, a repository that the links of the README lead to.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from arrow_format.extras import EXTRAS

if TYPE_CHECKING:
    from collections.abc import Collection
    from email.message import Message

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
REPOSITORY = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
NOT_IN_BASE = {*EXTRAS}
JAR = "connector/jvm/arrow_shuffle.jar"
MOST_JAR_BYTES = 200_000
RELATIVE_LINK = re.compile(r"\]\((?!https?:)[^)\s]+\)")


def files_of_packages() -> set[str]:
    """Return the files that a wheel must have of the packages."""
    return {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix in {".py", ".pyi"} or file.name == "py.typed"
    } | {JAR}


def java_files() -> set[str]:
    """Return the sources of the jar, which only an sdist has."""
    return {file.relative_to(ROOT).as_posix() for file in (ROOT / JAR).parent.rglob("*.java")}


def wheel_problems(names: Collection[str], metadata: Message, version: str) -> list[str]:
    """Return what is wrong with a wheel, by the names of its files and its metadata."""
    wanted = files_of_packages()
    typed = {f"{package}/py.typed" for package in PACKAGES}
    inside = {name for name in names if ".dist-info/" not in name}
    found = [f"lacks {name}" for name in sorted((wanted | typed) - inside)]
    found += [f"has {name}, which is not of the packages" for name in sorted(inside - wanted)]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("lacks the license")
    if metadata["Version"] != version:
        found.append(f"is version {metadata['Version']}, and the package {version}")
    for text in metadata.get_all("Requires-Dist", ()):
        requirement = Requirement(text)
        if requirement.marker is None and requirement.name in NOT_IN_BASE:
            found.append(f"installs {requirement.name} without an extra")
    description = str(metadata.get_payload())
    found += [f"README: {link[2:-1]} leads nowhere" for link in RELATIVE_LINK.findall(description)]
    urls = metadata.get_all("Project-URL", [])
    if bool(REPOSITORY) != bool(urls):
        found.append(f"has {len(urls)} project URLs, and the repository is {REPOSITORY!r}")
    return found


def problems(directory: Path) -> list[str]:
    """Return one line for each problem of the files in a directory."""
    from arrow_format import __version__

    stem = f"arrow_shuffle-{__version__}"
    wheel, sdist = directory / f"{stem}-py3-none-any.whl", directory / f"{stem}.tar.gz"
    there = sorted(file.name for file in directory.iterdir())
    if there != sorted([wheel.name, sdist.name]):
        return [f"{directory}: has {there}, expected {wheel.name} and {sdist.name}"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        jar_bytes = sum(entry.file_size for entry in archive.infolist() if entry.filename == JAR)
        metadata = email.message_from_bytes(archive.read(f"{stem}.dist-info/METADATA"))
    found = [f"{wheel.name}: {what}" for what in wheel_problems(names, metadata, __version__)]
    if jar_bytes > MOST_JAR_BYTES:
        found.append(f"{wheel.name}: {JAR} has {jar_bytes:,} bytes, more than {MOST_JAR_BYTES:,}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        files_of_packages()
        | java_files()
        | {"LICENSE", "README.md", "pyproject.toml", "tests/__init__.py"}
    )
    found += [f"{sdist.name}: lacks {name}" for name in sorted(wanted - inside)]
    return found


def release_problems(version: str) -> list[str]:
    """Return what is missing for a release of this commit."""
    found = []
    if not REPOSITORY:
        found.append("pyproject.toml: set `repository` to the address of the public repository")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        found.append(f"CHANGELOG.md: give [{version}] the date of today")
    if git("status", "--porcelain"):
        found.append("there are uncommitted changes")
    if git("tag", "--list", f"v{version}"):
        found.append(f"there is a tag v{version}: raise __version__ in arrow_format/__init__.py")
    return found


def git(*arguments: str) -> str:
    """Return what git prints about this clone."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main(directory: str, *flags: str) -> int:
    """Check the distributions in a directory; return the exit status."""
    from arrow_format import __version__

    found = problems(Path(directory))
    if "--release" in flags:
        found += release_problems(__version__)
    print("\n".join([*found, f"{directory} checked, {len(found)} problems"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
