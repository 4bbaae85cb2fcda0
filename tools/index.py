"""What a release publishes, of wheels: a static package index for each device, a wheel for PyPI, and notes.

    python tools/index.py dist out/index --tag v0.1.0

out/index/<variant>/ is what `pip install --index-url` takes (PEP 503), with the wheels and their
hashes; out/index/pypi has the CPU's wheel under its version without a label, which is all that PyPI accepts;
out/index/notes.md is the part of CHANGELOG.md about this version. The tag must be the wheels' version.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import re
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEEL = re.compile(r"aoext-(?P<version>[\d.]+(?:(?:a|b|rc)\d+)?)\+(?P<variant>\w+)-py3-none-[\w.]+\.whl")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_index(wheels: list[Path], folder: Path) -> None:
    """Wheels and the page that lists them."""
    project = folder / "aoext"
    project.mkdir(parents=True)
    links = []
    for wheel in wheels:
        shutil.copy2(wheel, project)
        name = html.escape(wheel.name.replace("+", "%2B"))
        links.append(f'<a href="{name}#sha256={digest(wheel)}">{html.escape(wheel.name)}</a><br>')
    page = "<!DOCTYPE html>\n<html><body>\n{}\n</body></html>\n"
    (project / "index.html").write_text(page.format("\n".join(links)))
    (folder / "index.html").write_text(page.format('<a href="aoext/">aoext</a>'))


def without_label(wheel: Path, folder: Path, version: str) -> Path:
    """A copy of a wheel under its version without the local label: metadata, folder and record renamed."""
    labelled = WHEEL.fullmatch(wheel.name)
    assert labelled is not None
    old = f"aoext-{version}+{labelled['variant']}.dist-info"
    new = f"aoext-{version}.dist-info"
    target = folder / wheel.name.replace(f"+{labelled['variant']}", "")
    folder.mkdir(parents=True, exist_ok=True)
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for item in source.infolist():
            name = item.filename.replace(old, new)
            if name == f"{new}/RECORD":
                continue
            content = source.read(item)
            if name == f"{new}/METADATA":
                line = f"Version: {version}+{labelled['variant']}".encode()
                assert content.count(line) == 1
                content = content.replace(line, f"Version: {version}".encode())
            sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={sha},{len(content)}")
            renamed = zipfile.ZipInfo(name, item.date_time)
            renamed.external_attr, renamed.compress_type = item.external_attr, zipfile.ZIP_DEFLATED
            copy.writestr(renamed, content)
        copy.writestr(f"{new}/RECORD", "\n".join([*record, f"{new}/RECORD,,"]) + "\n")
    return target


def notes(version: str) -> str:
    """What CHANGELOG.md says of a version; of what is not released yet where it says nothing."""
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for title in (version, "Unreleased"):
        for part in parts[1:]:
            if part.split("\n", 1)[0].split(" ")[0] == title:
                return part.split("\n", 1)[1].strip() + "\n"
    sys.exit(f"index: CHANGELOG.md says nothing of {version}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tag", required=True, help="such as v0.1.0")
    options = parser.parse_args()
    version = options.tag.removeprefix("v")
    variants: dict[str, list[Path]] = {}
    for wheel in sorted(options.dist.glob("*.whl")):
        name = WHEEL.fullmatch(wheel.name)
        if name is None or name["version"] != version:
            sys.exit(
                f"index: {wheel.name} must be aoext {version} with the label of a variant, as the tag says"
            )
        variants.setdefault(name["variant"], []).append(wheel)
    if not variants:
        sys.exit(f"index: {options.dist} must have wheels, got none")
    shutil.rmtree(options.target, ignore_errors=True)
    for variant, wheels in variants.items():
        write_index(wheels, options.target / variant)
    for wheel in variants.get("cpu", []):
        without_label(wheel, options.target / "pypi", version)
    (options.target / "notes.md").write_text(notes(version), encoding="utf-8")
    print(f"index: {', '.join(f'{len(wheels)} of {variant}' for variant, wheels in variants.items())}")


if __name__ == "__main__":
    main()
