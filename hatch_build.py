"""Metadata that depends on where the repository is: the README's links, and the project's URLs.

A registry shows the README away from its files, so relative links become links to the version's
tag in the repository. Where no repository is set in pyproject.toml, their text stays.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)\s]+)\)")


class RepositoryMetadata(MetadataHookInterface):
    """Sets ``readme`` and ``urls``; ``repository`` is the address without a slash at its end."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields."""
        repository = self.config["repository"]
        files = f"{repository}/blob/v{metadata['version']}"
        link = rf"[\1]({files}/\2)" if repository else r"\1"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": RELATIVE_LINK.sub(link, text),
        }
        metadata["urls"] = (
            repository
            and {
                "Source": repository,
                "Documentation": f"{files}/docs/README.md",
                "Changelog": f"{files}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        ) or {}
