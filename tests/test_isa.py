"""`tools/isa`: what it reads out of Intel's disassembly, what it refuses, and what it predicts.

The compiler is a stand-in that hands over prepared disassembly; `make isa` runs the real one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools"
sys.path.insert(0, str(TOOLS / "isa"))
disassembly, geometry, roofline, targets = map(
    importlib.import_module, ("disassembly", "geometry", "roofline", "targets")
)

GATHER = "send.ugm (16|M0) r53 r26 null:0 0x0 0x04403580 {I@1,$2} // wr:2+0, rd:4; load.ugm.d32x4.a64"
CONSECUTIVE = "send.ugm (16|M0) r36 r34 null:0 0x0 0x0B80 {I@1} // wr:2+0, rd:1; load.ugm.d16u32.a64"
DPAS = "        dpas.8x1 (16|M0)  r51:f  null:f  r38:bf  r46.0:bf  {Atomic,I@1}"
END = """(W)     send.gtwy (1|M0)  null  r112  null:0  0x0  0x02000010  {EOT,F@1,$9} // end of thread
L9000:
(W)     mov (16|M0)  null<1>:ud  0x110B421C:ud
        illegal
"""


def tile(products: int = 4) -> str:
    """A loop over 32 int4 weights a lane: 2 products of 16, and as many with ones."""
    return f"""L0:
(W)     mov (1|M0)  r1.0<1>:q  0:w
L100:
        {GATHER}
        {CONSECUTIVE}
(W&f0.1) jmpi  L140
L120:
(W)     add (1|M0)  r1.0<1>:d  r1.0<0;1,0>:d  1:w
(W)     jmpi  L160
L140:
        add (16|M0)  r16.0<1>:q  r14.0<1;1,0>:q  r3.2<0;1,0>:q  {{Compacted}}
        math.inv (16|M0)  r17.0<1>:f  r18.0<1;1,0>:f
L160:
{chr(10).join([DPAS] * products)}
(W&~f1.0) jmpi  L100
L200:
{END}"""


def ze_info(kernels: dict[str, dict[str, int]]) -> str:
    lines = ["---", "version:         '1.73'", "kernels:"]
    for name, values in kernels.items():
        lines += [f"  - name:            __sycl_kernel_{name}", "    execution_env:"]
        lines += [f"      {key}:       {value}" for key, value in {"grf_count": 128, **values}.items()]
    return "\n".join([*lines, "kernels_misc_info:", "  - name:            __sycl_kernel_other"])


def test_code_ends_where_the_thread_ends() -> None:
    code = disassembly.parse(tile())
    assert len(code.instructions) == 14
    assert code.instructions[-1].last
    assert code.dpas == 4
    assert code.calls == 0


def test_main_loop_is_walked_the_longer_way() -> None:
    code = disassembly.parse(tile())
    assert code.loops == [(1, 12)]
    way = code.way(*code.main_loop)
    assert [i.name for i in way.instructions] == [
        *("send.ugm", "send.ugm", "jmpi", "add", "math.inv"),
        *["dpas.8x1"] * 4,
        "jmpi",
    ]
    assert (way.dpas, way.dpas_rows, way.sends, way.gathers, way.scalar) == (4, 4, 2, 1, 0)
    assert way.clocks == 10 + 1 + 3  # 64-bit integers take 2 clocks, inverses 4
    assert way.cache_lines == 16 + 1


def test_main_loop_is_the_innermost_that_multiplies() -> None:
    nested = f"""L0:
{DPAS}
L10:
        add (16|M0)  r1.0<1>:d  r1.0<1;1,0>:d  1:w
L20:
{DPAS}
{DPAS}
(W&f0.0) jmpi  L20
L30:
(W&f0.0) jmpi  L10
L40:
        add (16|M0)  r1.0<1>:d  r1.0<1;1,0>:d  1:w
        add (16|M0)  r1.0<1>:d  r1.0<1;1,0>:d  1:w
        add (16|M0)  r1.0<1>:d  r1.0<1;1,0>:d  1:w
        add (16|M0)  r1.0<1>:d  r1.0<1;1,0>:d  1:w
(f3.0)  goto.b (16|M0)  L50  L40
L50:
        join (16|M0)  L60
{END}"""
    code = disassembly.parse(nested)
    assert code.loops == [(1, 5), (2, 4), (6, 10)]
    assert code.innermost == [(2, 4), (6, 10)]
    assert code.main_loop == (2, 4)


def test_calls_are_found() -> None:
    assert disassembly.parse("L0:\n        call (16|M0)  r1.0  L50\nL50:\n" + END).calls == 1


@pytest.mark.parametrize(
    ("rows", "columns", "piece", "sums"),
    [(1, 1, 128, 1), (8, 1, 32, 1), (16, 2, 128, 1), (32, 2, 64, 1)],
)
def test_geometry_is_read_back_from_counts(
    rows: int, columns: int, piece: int, sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = max(1, rows // 8)
    gathers = piece * columns // 32
    products = blocks * (columns + sums) * piece // 16
    code = disassembly.parse("\n".join(["L0:", *[GATHER] * gathers, *[DPAS] * products, "jmpi L0", END]))
    kernel = disassembly.Kernel(f"int4_tile_bf16_m{rows}_g128", code=code)
    way = code.way(*code.main_loop)
    assert geometry.read_geometry("int4_tile", kernel, way) == geometry.Geometry(rows, columns, piece)
    family = geometry.Family(bits=8, sums=0, step=32, columns=lambda rows: columns)
    bytes_ = (
        [GATHER] * (piece * columns // 16),
        [DPAS.replace(":bf", ":b")] * (blocks * columns * piece // 32),
    )
    code8 = disassembly.parse("\n".join(["L0:", *bytes_[0], *bytes_[1], "jmpi L0", END]))
    monkeypatch.setitem(geometry.FAMILIES, "rowwise", family)
    way8 = code8.way(*code8.main_loop)
    assert geometry.read_geometry("rowwise", kernel, way8) == geometry.Geometry(rows, columns, piece)
    fewer = disassembly.Way(way.instructions[:-2] + way.instructions[-1:])
    assert geometry.read_geometry("int4_tile", kernel, fewer) is None


def test_prediction_is_what_a_hand_calculates() -> None:
    """One work-group's sub-groups on each of 2 Xe-cores with 4 engines each."""
    hardware = targets.Hardware(
        "test", cores=2, engines=8, clock=1e9, macs=128, bandwidth=1e9, threads_of_an_engine=1
    )
    cost = roofline.Cost(
        geometry.Geometry(rows=8, columns=1, tile_k=128),
        loop=200, block=10, rest=100, loop_rows=128, loop_lines=50, loop_instructions=190,
    )  # fmt: skip
    p = roofline.predict(hardware, "test", "kernel", cost, bits=4, M=5, N=32, K=1024)
    # 2 work-groups, so 4 sub-groups each fill 8 threads; each takes 2 of 8 blocks; one a engine.
    assert p.bytes == 32 * 1024 // 2 + 2 * (5 * 1024 + 5 * 32) + 2 * 2 * 8 * 32
    assert p.seconds == pytest.approx(
        {"memory": p.bytes / 1e9, "instructions": (100 + 2 * 210) / 1e9, "matrix engine": 2 * 128 * 2 / 1e9}
    )
    assert p.limit == "memory"
    assert p.lines == 4 * 2 * 50
    assert p.instructions_of_a_weight == pytest.approx(190 / 128)


FAKE = """
import json, shutil, sys
from pathlib import Path
verb, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2])) if verb == "disasm" else {a: b for a, b in zip(rest, rest[1:])}
if verb == "query":
    Path(rest[0]).write_text("1.2.3")
elif verb == "compile":
    content = json.loads(Path(options["-file"]).read_text())
    if options["-device"] in content["fails"]:
        sys.exit("error: " + content["fails"][options["-device"]])
    for name in content["warns"]:
        print(f"warning: in kernel '__sycl_kernel_{name}': Stack call has been detected in this kernel")
    Path(options["-out_dir"]).mkdir(exist_ok=True)
    shutil.copy(options["-file"], Path(options["-out_dir"]) / "module.bin")
else:
    content, folder = json.loads(Path(options["-file"]).read_text()), Path(options["-dump"])
    folder.mkdir()
    (folder / ".ze_info").write_text(content["ze_info"])
    for name, text in content["code"].items():
        (folder / f".text.__sycl_kernel_{name}.asm").write_text(text)
"""


class Images:
    """A folder of images, and a copy of the tool that finds them sound."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "spirv"
        self.folder.mkdir()
        self.tool = Path(shutil.copytree(TOOLS / "isa", folder / "isa"))
        self.fake = folder / "ocloc"
        self.fake.write_text(f"#!{sys.executable} -IS\n{FAKE}")
        self.fake.chmod(0o755)
        self.write("int4_tile.dpas", {"int4_tile_bf16_m1_g32": tile()})
        self.write("int4_tile.lanes", {"int4_tile_bf16_m1_g32": tile(0), "int4_tile_fp32_m1_g32": tile(0)})

    def write(self, image: str, code: dict[str, str], **others: Any) -> None:
        values = others.pop("values", {})
        shutil.rmtree(self.folder / image, ignore_errors=True)
        (self.folder / image).mkdir()
        for name, text in code.items():
            content = {
                "code": {name: text},
                "ze_info": ze_info({name: values}),
                "fails": {},
                "warns": [],
                **others,
            }
            (self.folder / image / f"{name}.spv").write_text(json.dumps(content))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "OCLOC": str(self.fake), **environment}
        variables.pop("AOEXT_REQUIRE_ISA", None) if "AOEXT_REQUIRE_ISA" not in environment else None
        command = [sys.executable, self.tool, self.folder, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=variables)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    images = Images(tmp_path)
    done = images.run("--update")
    assert done.returncode == 0, done.stderr
    return images


def test_sound_images_pass_and_are_listed(images: Images) -> None:
    done = images.run()
    assert done.returncode == 0, done.stderr
    assert "isa: ok: 3 kernels of 2 images on bmg, pvc, lnl-m, ptl-h, dg2, ocloc 1.2.3" in done.stdout
    assert "int4_tile.dpas: not for dg2" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert json.loads((images.tool / "expected.json").read_text())["dpas"] == {
        "int4_tile.dpas": {"int4_tile_bf16_m1_g32": 4}
    }


def test_markdown_is_a_table_of_the_same_numbers(images: Images) -> None:
    done = images.run("--markdown")
    assert done.returncode == 0, done.stderr
    (row,) = (line for line in done.stdout.splitlines() if "`int4_tile_bf16_m1_g32`" in line)
    assert (
        row
        == "| `int4_tile.dpas`: `int4_tile_bf16_m1_g32` | 4 | 128 | 14 | 10 | 0 | 2 | 128 | 14 | 10 | 0 | 2 |"
    )
    assert "no kernel that is chosen spills" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"spill_size": 64}}, "int4_tile_bf16_m1_g32: spill in memory: bmg, pvc, lnl-m, ptl-h"),
        ({"values": {"private_size": 64}}, "private in memory"),
        ({"values": {"has_stack_calls": "true"}}, "stack calls"),
        ({"warns": ["int4_tile_bf16_m1_g32"]}, "stack calls"),
        (
            {"fails": {"pvc": "undefined symbol"}},
            "does not build for pvc: int4_tile_bf16_m1_g32: error: undefined symbol",
        ),
        ({"code": {"int4_tile_bf16_m1_g32": tile(0)}}, "no DPAS"),
        ({"code": {"int4_tile_bf16_m1_g32": tile(2)}}, "do not go with the weights"),
        ({"code": {"int4_tile_bf16_m1_g32": tile(8)}}, "8 DPAS, expected 4"),
        ({"code": {"int4_tile_bf16_m2_g32": tile()}}, "4 DPAS, expected none, it is new"),
    ],
    ids=[
        "spill",
        "private memory",
        "stack calls",
        "warning",
        "build",
        "no DPAS",
        "too few",
        "too many",
        "new",
    ],
)
def test_flaws_fail(images: Images, change: dict[str, Any], message: str) -> None:
    code = change.pop("code", {"int4_tile_bf16_m1_g32": tile()})
    images.write("int4_tile.dpas", code, **change)
    done = images.run()
    assert done.returncode == 1
    assert message in done.stderr
    assert "isa: FAILED" in done.stdout


def test_fallbacks_of_matrix_kernels_may_spill_where_the_matrix_engine_is(images: Images) -> None:
    images.write("int4_tile.lanes", {"int4_tile_bf16_m1_g32": tile(0)}, values={"spill_size": 8})
    done = images.run()
    assert "spill in memory (a fallback, where" in done.stdout
    assert done.returncode == 1  # dg2 has no other kernel
    assert "int4_tile_bf16_m1_g32: spill in memory: dg2\n" in done.stderr


def test_images_that_the_build_no_longer_embeds_are_left_alone(images: Images) -> None:
    images.write("old.lanes", {"old": tile(0)}, values={"spill_size": 8})
    assert images.run().returncode == 1
    rows = (
        f'#include "{images.folder / name / "modules.inc"}"' for name in ("int4_tile.dpas", "int4_tile.lanes")
    )
    (images.folder.parent / "sycl_modules.cpp").write_text("\n".join(rows))
    done = images.run()
    assert done.returncode == 0, done.stderr
    assert "old" not in done.stdout


def test_images_of_a_kind_may_be_several(images: Images) -> None:
    for kind, products in (("dpas", 4), ("lanes", 0)):
        (images.folder / f"int4_tile.{kind}").rename(images.folder / f"int4_tile.{kind}_bf16")
        images.write(f"int4_tile.{kind}_fp16", {"int4_tile_fp16_m1_g32": tile(products)})
    done = images.run("--update")
    assert done.returncode == 0, done.stderr
    assert "int4_tile.dpas_bf16, int4_tile.dpas_fp16: not for dg2" in done.stdout


def test_folder_without_images_says_what_to_do(images: Images) -> None:
    shutil.rmtree(images.folder)
    done = images.run()
    assert done.returncode == 1
    assert "AOEXT_SYCL=ON" in done.stderr


@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_missing_compiler_is_announced_loudly(
    images: Images, tmp_path: Path, required: str, code: int
) -> None:
    (tmp_path / "intel_gpu_compiler.sh").write_text("echo no mirror here >&2; exit 69")
    done = images.run(OCLOC="", AOEXT_REQUIRE_ISA=required)
    assert done.returncode == code
    assert done.stderr.count("\n!") >= 6
    assert "no mirror here" in done.stderr
    assert ("SKIPPED" in done.stdout) == (code == 0)


def test_script_says_why_it_cannot_lay_a_compiler(tmp_path: Path) -> None:
    for name in ("bash", "realpath"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    command = [str(tmp_path / "bash"), str(TOOLS / "intel_gpu_compiler.sh"), str(tmp_path / "igc")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 69
    assert "needs apt-get" in done.stderr
    assert not (tmp_path / "igc").exists()
