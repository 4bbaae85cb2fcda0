"""What the README promises: its table of operators, and its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from aoext.formats.table import FORMATS, Code, code_of
from aoext.library.info import build_config
from aoext.reference import EIGHT_BIT, GROUPED, SUBJECTS, Problem, call_of, op
from formats import OPERATORS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("compile", "files", "quantize", "training")),
]


def weights_taken(operator: str) -> str:
    """The weight formats that an operator accepts, found by calling it."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in EIGHT_BIT]
    if operator == "quantize":
        return ", ".join(dtypes)
    if operator == "sort_by_expert":
        return "–"
    taken = set()
    for subject in SUBJECTS:
        if subject.operator != operator or subject.kind in GROUPED:
            continue
        call = call_of(subject, Problem(2, 8, 256, 32), torch.Generator())
        call.run(torch.device("cpu"), op(operator))
        given = call.named()
        if "code" not in given:
            given["code"] = Code.INT4 if subject.format == "int4" else code_of(given["weight"].dtype)
        taken.add(given["code"])
    if taken == set(Code):
        return "every format"
    if taken == {code for code in Code if not FORMATS[code].has_table}:
        return "every format without a table"
    names = {Code.INT4: "int4", **{code_of(dtype): str(dtype).removeprefix("torch.") for dtype in EIGHT_BIT}}
    return ", ".join(name for code, name in names.items() if code in taken)


def expected_table() -> list[str]:
    config = build_config()
    folders = {"CUDA": "cuda", "XPU": "sycl"}
    built = {key: config[folder] == "ON" for key, folder in folders.items()}

    def kernels(operator: str, key: str) -> str:
        own = torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator}", key)
        if not built.get(key, True):
            assert not own  # this build leaves the device out; the table speaks of one that does not
            sources = (ROOT / "csrc" / folders[key]).glob("*.cpp")
            registered = rf"AOEXT_REGISTER\({key}, {operator},"
            own = any(re.search(registered, file.read_text(encoding="utf-8")) for file in sources)
        return "own" if own else "generic"

    return [
        f"| `{op}` | {weights_taken(op)} | "
        + " | ".join(kernels(op, key) for key in ("CPU", "CUDA", "XPU", "MPS"))
        + " |"
        for op in OPERATORS
    ]


def test_the_table_of_operators_is_what_is_registered():
    table = [line for line in README.splitlines() if re.match(r"\| `\w+` \| [^|]+ \| own \|", line)]
    assert table == expected_table()


@pytest.mark.parametrize(
    "code",
    [
        code
        for document in DOCUMENTS
        for code in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    ],
)
def test_an_example_runs(code):
    exec(compile(code, "an example", "exec"), {})


def test_every_make_target_that_the_documents_name_exists():
    root = Path(__file__).parent.parent
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for document in (root / "README.md", root / "CONTRIBUTING.md", *(root / "benchmarks").glob("*.md")):
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"(?:^ *|`)make ([a-z0-9-]+)", text, re.MULTILINE):  # commands, not prose
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (
                document,
                target,
            )


def test_every_link_of_the_documents_leads_somewhere():
    root = Path(__file__).parent.parent
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "benchmarks").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), (page.name, link)
            if anchor:
                titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
                assert anchor in anchors, (page.name, link)


def test_the_page_of_operators_names_all_of_them_and_no_other():
    page = (Path(__file__).parent.parent / "docs" / "operators.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)) == set(OPERATORS)
