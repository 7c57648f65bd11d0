"""Check the Markdown files: links and anchors lead somewhere, code blocks compile, tests exist.

``python -m tests.check_docs`` prints ``file:line: problem`` and exits 1 when there is any. Links to
other hosts are not followed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
PARSERS = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+) *(?P<language>\w*)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.*?)(?: +#+)?$")
LINK = re.compile(r"\]\(<?(?P<inline>[^)\s>]+)>?(?: +\"[^\"]*\")?\)|^\[[^\]]+\]: *(?P<named>\S+)")
TEST = re.compile(r"`((?:tests|integration)/[\w/]+\.py)::(\w+(?:::\w+)?)`")
HTML_ANCHOR = re.compile(r"<a +(?:id|name)=\"([^\"]+)\"")


def split(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]]]:
    """Part a file into numbered lines of prose and (line, language, source) of its code blocks."""
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


@cache
def tests_of(file: Path) -> frozenset[str]:
    """Return the tests of a module, ``Class::test`` where they are in one; none without the file.

    A state machine's tests are a name that is assigned to.
    """
    if not file.is_file():
        return frozenset()
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)
            }
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return frozenset(found)


def problems(files: list[Path]) -> list[str]:
    """Return one line for everything that is wrong in the files."""
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
            found += [
                f"{name}:{line}: there is no test {path}::{test}"
                for path, test in TEST.findall(text)
                if test not in tests_of(ROOT / path)
            ]
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


def main() -> int:
    """Check README and all of docs/; return the exit status."""
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    found = problems(files)
    print("\n".join([*found, f"{len(files)} files checked, {len(found)} problems"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
