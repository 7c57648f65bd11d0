"""Check the documents: links and anchors lead somewhere, code blocks compile, pages are current.

``python -m tests.check_docs`` prints ``file:line: problem`` and exits 1 when there is any. It also
finds paths of documents in Python files that do not exist. Links to other hosts are not followed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tests.support import reference_pages

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
PARSERS: dict[str, Callable[[str], object]] = {
    "python": ast.parse,
    "json": json.loads,
    "toml": tomllib.loads,
}
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+) *(?P<language>\w*)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.*?)(?: +#+)?$")
LINK = re.compile(r"\]\(<?(?P<inline>[^)\s>]+)>?(?: +\"[^\"]*\")?\)|^\[[^\]]+\]: *(?P<named>\S+)")
DOCUMENT = re.compile(r"\bdocs/[\w/.-]+\.md\b|\b(?:README|CONTRIBUTING)\.md\b")
HTML_ANCHOR = re.compile(r"<a +(?:id|name)=\"([^\"]+)\"")


def split(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]]]:
    """Split a file into numbered lines of prose and (line, language, source) of its code blocks."""
    prose: list[tuple[int, str]] = []
    blocks: list[tuple[int, str, str]] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            prose.append((number, line))
            continue
        source: list[str] = []
        language = "never closed"
        for _, inner in lines:
            if inner.strip().startswith(fence["ticks"]) and not inner.strip(" `~"):
                language = fence["language"].lower()
                break
            source.append(inner.removeprefix(fence["indent"]))
        blocks.append((number, language, "\n".join(source)))
    return prose, blocks


def anchors(prose: list[tuple[int, str]]) -> set[str]:
    """Return the anchors that GitHub makes of the headings, and those written in HTML."""
    found: set[str] = set()
    for _, line in prose:
        found.update(HTML_ANCHOR.findall(line))
        if heading := HEADING.match(line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"]).lower()
            slug = base = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            repeat = 0
            while slug in found:
                repeat += 1
                slug = f"{base}-{repeat}"
            found.add(slug)
    return found


def problems(files: list[Path]) -> list[str]:
    """Return one line for each problem in the Markdown files."""
    parts = {file: split(file.read_text(encoding="utf-8")) for file in files}
    found: list[str] = []
    for file, (prose, blocks) in parts.items():
        name = file.relative_to(ROOT)
        for line, language, source in blocks:
            if language == "never closed":
                found.append(f"{name}:{line}: code block is never closed")
                continue
            try:
                PARSERS.get(language, str)(source)
            except (SyntaxError, ValueError) as error:
                found.append(f"{name}:{line}: {language} block does not compile: {error}")
        for line, text in prose:
            for match in LINK.finditer(re.sub(r"`[^`]*`", "", text)):
                link = unquote(match["inline"] or match["named"])
                if re.match(r"[a-z][a-z+.-]*:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = (file.parent / path).resolve() if path else file
                if not target.is_relative_to(ROOT) or not target.exists():
                    found.append(f"{name}:{line}: there is no {path}")
                elif anchor and target in parts and anchor not in anchors(parts[target][0]):
                    found.append(f"{name}:{line}: there is no anchor #{anchor} in {target.name}")
    return found


def missing_documents(folders: list[str]) -> list[str]:
    """Return one line for every document that a Python file names and that does not exist."""
    return [
        f"{file.relative_to(ROOT)}:{number}: there is no {document}"
        for folder in folders
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for document in DOCUMENT.findall(line)
        if not (ROOT / document).is_file()
    ]


def main() -> int:
    """Check the documents; return the exit status."""
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    found = [
        *problems(files),
        *missing_documents(["arrow_format", "arrow_shuffle", "connector", "integration", "tests"]),
        *reference_pages.problems(),
    ]
    print("\n".join([*found, f"{len(files)} files checked, {len(found)} problems"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
