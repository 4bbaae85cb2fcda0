"""Builds the documents as a site of static files, out/site: searchable, every link inside it checked.

The pages are README.md, docs/, benchmarks/*.md and what else stands beside the README, at the same places, so
that their links serve both here and there; docs/api.md is made of the docstrings of the public names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/*.md",
    "benchmarks/*.md",
    "examples/*/README.md",
    "xpu_sim/README.md",
    "benchmarks/**/CARD.md",
)
# Files that pages link to and that become downloads.
FILES = ("LICENSE", "benchmarks/**/*.png", "docs/*.svg")

CONF = """
import sys
from importlib.metadata import version as installed

sys.path.insert(0, {tools!r})
from site_docstrings import as_written

project, author, copyright = "aoext", "the aoext authors", "the aoext authors"
version = release = installed("aoext").split("+")[0]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme, html_title = "furo", f"aoext {{version}}"
myst_heading_anchors = 4
autodoc_member_order = "bysource"


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
"""


def staged(target: Path) -> list[str]:
    """The pages, copied to the same places below `target`; their names without .md."""
    shutil.rmtree(target, ignore_errors=True)
    names = []
    for pattern in (*PAGES, *FILES):
        for source in sorted(ROOT.glob(pattern)):
            name = source.relative_to(ROOT)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                names.append(str(name.with_suffix("")))
                (target / name).write_text(without_folders(source), encoding="utf-8")
            else:
                shutil.copy2(source, target / name)
    return names


def without_folders(page: Path) -> str:
    """A page whose links to folders and sources, which a site does not have, are their words alone."""

    def link(match: re.Match[str]) -> str:
        words, path = match.groups()
        there = (page.parent / path.partition("#")[0]).resolve()
        if path.startswith(("http", "#")) or there.suffix in (".md", ".png") or there.name == "LICENSE":
            return match.group(0)
        if not there.exists():
            sys.exit(f"site: {page.relative_to(ROOT)} links to {path}, which is not there")
        return words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, page.read_text(encoding="utf-8"))


def contents(names: list[str]) -> str:
    """The site's table of contents, hidden: the theme shows it at the side."""

    def tree(caption: str, pages: list[str]) -> str:
        return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])

    docs = [name for name in names if name.startswith("docs/")]
    measured = [name for name in names if name.startswith("benchmarks/")]
    examples = [name for name in names if name.startswith("examples/")]
    others = [name for name in names if name not in (*docs, *measured, *examples, "README")]
    return "\n".join(
        [
            tree("Documents", docs),
            tree("Measured", measured),
            tree("Examples", examples),
            tree("Project", others),
        ]
    )


def main() -> None:
    source, site = OUT / "site-source", OUT / "site"
    names = staged(source)
    (source / "conf.py").write_text(CONF.format(tools=str(ROOT / "tools")), encoding="utf-8")
    readme = source / "README.md"
    (source / "index.md").write_text(
        readme.read_text(encoding="utf-8") + "\n" + contents(names), encoding="utf-8"
    )
    readme.write_text("---\norphan: true\n---\n" + readme.read_text(encoding="utf-8"), encoding="utf-8")
    shutil.rmtree(site, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "2",
        source,
        site,
    ]
    done = subprocess.run([str(part) for part in command], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    print(f"site: {len(list(site.rglob('*.html')))} pages in {site.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
