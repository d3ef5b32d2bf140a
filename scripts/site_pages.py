"""Hook of MkDocs: the pages that stand in the repository's root become pages of the site.

Links between the root and docs/ are written for readers of the repository; the site has all pages in one folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=links_inside(text, "")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links that leave docs/ to the pages of the site."""
    return links_inside(markdown, "../")


def links_inside(text: str, before: str) -> str:
    """Replace links to the pages of the root, which are written with `before` in front of the name."""
    for name, page in PAGES.items():
        text = re.sub(rf"\]\({re.escape(before + name)}(?=[)#])", f"]({page}", text)
    return text
