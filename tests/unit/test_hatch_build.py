"""What a registry shows: the README's links and the project's URLs lead into the repository."""

import re

from hatch_build import RepositoryMetadata
from tests.check_docs import ROOT

METADATA = {"version": "1.2.3"}


def updated(repository):
    metadata = dict(METADATA)
    RepositoryMetadata(str(ROOT), {"repository": repository}).update(metadata)
    return metadata["readme"]["text"], metadata["urls"]


def test_links_lead_to_the_tag_of_the_version():
    text, urls = updated("https://host/owner/name")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    files = "https://host/owner/name/blob/v1.2.3/"
    assert all(link.startswith(files) for link in links)
    assert all((ROOT / link.removeprefix(files).partition("#")[0]).is_file() for link in links)
    assert urls["Source"] == "https://host/owner/name"
    assert urls["Changelog"] == f"{files}CHANGELOG.md"


def test_without_a_repository_the_text_of_links_stays():
    text, urls = updated("")
    assert "](" not in text
    assert urls == {}
    assert "all pages" in text
