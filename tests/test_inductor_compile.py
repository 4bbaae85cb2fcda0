"""aoext.inductor from outside: when it comes in, beside whom, its cache, and what is compiled with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import aoext
from aoext.formats.table import code_of
from aoext.inductor import generated
from aoext.inductor.passes import rewrites, sources
from aoext.reference import quantized, randn, rowwise_values
from conftest import PRELUDE, compiler_for
from inductor_graphs import both_ways, compiled
from test_inductor_passes import BF16, INT4, INT8, Holds, int4_fields, tiny_lm

ao = torch.ops.ao


def run(script: str, *arguments: str, **environment: str) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", PRELUDE + script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_aoext_imports_nothing_of_inductor_and_its_config_brings_the_passes():
    script = """
import sys, torch, aoext
unwanted = ("torch._inductor", "torch._dynamo", "aoext.inductor.passes")
loaded = [m for m in sys.modules if m.startswith(unwanted)]
assert not loaded, loaded
from torch._inductor import config
print(type(config.post_grad_custom_pre_pass).__name__, type(config.joint_custom_post_pass).__name__)
"""
    assert run(script).split() == ["AoextPass", "AoextPass"]
    late = "from torch._inductor import config; import aoext; print(config.post_grad_custom_pre_pass)"
    assert run(late, AOEXT_INDUCTOR="0").split() == ["None"]


class Noted(CustomGraphPass):
    """A pass of somebody else that notes which of our operators it sees."""

    def __init__(self, key: str | None = "noted") -> None:
        self.key = key
        self.seen: list[set[str]] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.seen.append({str(node.target) for node in graph.nodes if str(node.target).startswith("ao.")})

    def uuid(self) -> str | None:
        return self.key


@pytest.mark.parametrize("how", ["assigned", "patched", "list"])
def test_passes_of_others_run_first_whenever_they_are_set(how, generator):
    model = Holds(lambda x, w, s, z: F.linear(x, ao.dequantize(w, s, 0, None, z)), **int4_fields(generator))
    x = randn(generator, 3, 64, dtype=BF16)
    theirs = [Noted(), Noted()] if how == "list" else [Noted()]
    value = theirs if how == "list" else theirs[0]
    # Alone after the joint graph, so that the product is still in two when theirs come.
    with aoext.inductor.patch(weight_only=True), config.patch(joint_custom_post_pass=None):
        joint = aoext.inductor.passes.OURS["before_freezing"]
        names, joint.names = joint.names, ()
        try:
            if how == "patched":
                call, graphs = compiled(model, post_grad_custom_pre_pass=value)
                call(x)
            else:
                config.post_grad_custom_pre_pass = value
                try:
                    call, graphs = compiled(model)
                    call(x)
                finally:
                    config.post_grad_custom_pre_pass = None
        finally:
            joint.names = names
    assert graphs.of_ours() == {"weight_only_linear": 1}
    for each in theirs:
        assert each.seen == [{"ao.dequantize.default"}]


def test_the_key_of_a_slot_covers_all_passes_and_options():
    def key():
        return config.post_grad_custom_pre_pass.uuid()

    alone = key()
    assert alone == key()
    with aoext.inductor.patch(bias=False):
        assert key() != alone
    with config.patch(post_grad_custom_pre_pass=Noted("a")):
        beside = key()
        assert alone in beside
        with config.patch(post_grad_custom_pre_pass=Noted("b")):
            assert key() != beside
    with config.patch(post_grad_custom_pre_pass=Noted(None)):
        assert key() is None  # then Inductor caches nothing
    with aoext.inductor.patch(enabled=False):
        assert config.post_grad_custom_pre_pass is None


def test_a_slot_that_is_read_and_set_again_holds_our_passes_once():
    ours = config.post_grad_custom_pre_pass.uuid()
    with config.patch(post_grad_custom_pre_pass=Noted("a")):
        slot = config.post_grad_custom_pre_pass
        assert str(slot.uuid()).count(str(ours)) == 1
        for again in (slot, [slot, Noted("b")]):
            with config.patch(post_grad_custom_pre_pass=again):
                assert str(config.post_grad_custom_pre_pass.uuid()).count(str(ours)) == 1


def test_the_key_covers_every_source_that_decides_about_a_graph(tmp_path):
    """An edit of a pass, of a fake kernel or of the dtypes that the passes take is another key."""
    package = Path(aoext.__file__).parent
    assert sources(package) in config.post_grad_custom_pre_pass.uuid()
    copy = tmp_path / "aoext"
    for file in package.rglob("*.py"):
        target = copy / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    keys = {sources(copy)}
    assert keys == {sources(package)}
    for name in ("inductor/bias.py", "ops.py", "packing/int4.py", "tensors/base.py"):
        sources.cache_clear()
        with (copy / name).open("a") as file:
            file.write("# a change\n")
        keys.add(sources(copy))
    assert len(keys) == 5


def test_options_that_are_none_are_refused():
    with pytest.raises(TypeError, match="an option must be one of enabled, weight_only"):
        aoext.inductor.configure(fuse=True)
    with pytest.raises(TypeError, match="bias must be a bool, got 1"), aoext.inductor.patch(bias=1):
        pass
    assert aoext.inductor.current() == aoext.inductor.Options()
    aoext.inductor.configure(bias=False)
    try:
        assert not aoext.inductor.current().bias
    finally:
        aoext.inductor.configure(bias=True)


def test_another_process_takes_compiled_code_from_the_cache(tmp_path):
    script = """
import torch, aoext
from torch._dynamo.utils import counters
from aoext.inductor.passes import rewrites, sources
torch.manual_seed(0)
for scheme in (
    aoext.Int4WeightOnlyConfig(group_size=32),
    aoext.Int8DynamicActivationInt8WeightConfig(),
    aoext.Float8WeightOnlyConfig(),
):
    layer = torch.nn.Linear(64, 32)
    aoext.quantize_(layer, scheme)
    with torch.no_grad():
        torch.compile(layer, fullgraph=True)(torch.randn(3, 64).relu())
for cache, kind in (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache")):
    print(*(counters[cache][f"{kind}_{what}"] for what in ("hit", "miss", "bypass")))
"""
    where = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    # Of Inductor's code, and of AOTAutograd's, whose key has the tensors' own hashes in it.
    assert run(script, **where).splitlines() == ["0 3 0", "0 3 0"]
    assert run(script, **where).splitlines() == ["3 0 0", "3 0 0"]
    others = run(script, **where, AOEXT_INDUCTOR="0").splitlines()  # other passes, other code
    assert others == ["0 3 0", "0 3 0"]


@pytest.mark.parametrize("scheme", [INT4, INT8], ids=["int4", "int8"])
def test_a_compiled_model_serves_every_batch_with_one_graph(scheme, device, generator):
    torch._dynamo.reset()
    counters.clear()
    model, _ = tiny_lm(generator)
    aoext.quantize_(model.to(device), scheme)
    run_compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=compiler_for(device))
    with torch.no_grad():
        for batch, length in ((2, 9), (3, 9), (5, 17)):
            tokens = torch.randint(256, (batch, length), generator=generator).to(device)
            result, expected = run_compiled(tokens), model(tokens)
            assert (result - expected).float().norm() <= 2e-2 * expected.float().norm()
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_every_mode_gives_the_results_of_eager(mode, dynamic, device, generator):
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for a simulated device")
    torch._dynamo.reset()
    layers = [torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Linear(64, 32)]
    model = torch.nn.Sequential(*layers).to(device, BF16).eval()
    aoext.quantize_(model, INT4 if mode == "max-autotune" else INT8)
    run_compiled = torch.compile(model, fullgraph=True, mode=mode, dynamic=dynamic)
    with torch.no_grad(), config.patch(force_disable_caches=True):
        for batch in (4, 7) if dynamic else (4,):
            x = randn(generator, batch, 64, dtype=BF16).to(device)
            result, expected = run_compiled(x), model(x)
            assert (result - expected).float().norm() <= 1e-2 * expected.float().norm()


def test_max_autotune_offers_the_plain_product_and_takes_what_wins(generator):
    """Both ways give the result; which one is faster here is none of this test's business."""
    custom_op = pytest.importorskip("torch._inductor.kernel.custom_op")
    assert custom_op
    layer = torch.nn.Linear(64, 48, dtype=BF16)
    aoext.quantize_(layer, INT4)
    x = randn(generator, 8, 64, dtype=BF16)
    for forced, expected in ((True, "dequantize"), (False, "bf16i4bf16_rowwise_bias")):
        torch._dynamo.reset()
        options = {"max_autotune": True, "test_configs.force_custom_op_decomposition": forced}
        with torch.no_grad(), config.patch(force_disable_caches=True):
            result, code = run_and_get_code(torch.compile(layer, fullgraph=True, options=options), x)
            torch.testing.assert_close(result, layer(x), rtol=2e-2, atol=2e-2)
        assert f"torch.ops.ao.{expected}.default(" in code[-1].split("def call(")[-1]


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_generated_quantisation_keeps_every_bit(source, dtype, device, generator, monkeypatch):
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for a simulated device")
    torch._dynamo.reset()
    monkeypatch.setattr(generated, "_pays", lambda x, dtype: True)
    x = randn(generator, 12, 64)
    x[0] = 0
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    x[3] = 1e-40
    x[4] *= 1e-36
    x[5] = 3e38
    x[6], x[6, 0] = 0, 1e-44
    x[7] = torch.arange(64) / 2  # ties
    x[8] *= 1e-5  # below float16's smallest normal number
    x[9] *= 7e4  # around its largest number
    x = x.to(device, source)

    def through_a_norm(x, w):
        y = F.rms_norm(x * w, (64,), w)
        return *ao.quantize(y, dtype), y

    def plain(x):
        return ao.quantize(x * 1.0, dtype)

    w = (torch.rand(64, generator=generator) + 0.5).to(device, source)
    with torch.no_grad(), config.patch(force_disable_caches=True):
        rewrites.clear()
        q, scale, y = torch.compile(through_a_norm, fullgraph=True)(x, w)
        q2, scale2 = torch.compile(plain, fullgraph=True)(x)
        assert rewrites["fuse_quantization"] == 2
    for quantised, values, scales in ((y, q, scale), (x, q2, scale2)):
        expected, expected_scales = quantized(quantised.cpu(), dtype)
        assert torch.equal(values.cpu().view(torch.uint8), expected.view(torch.uint8))
        torch.testing.assert_close(scales.cpu(), expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_dequantised_weight_that_no_product_takes_is_generated(dtype, dynamic, device, generator):
    if compiler_for(device) != "inductor":
        pytest.skip("Inductor has no compiler for a simulated device")
    w, s = (t.to(device) for t in rowwise_values((24,), 64, dtype, generator))
    at = torch.randint(24, (2, 5), generator=generator).to(device)

    def rows(w, s, at):
        return ao.dequantize(w[at.flatten()], s[at.flatten()], code=int(code_of(w.dtype)), dtype=BF16)

    result, graphs, _, plain = both_ways(rows, w, s, at, dynamic=dynamic)
    assert (plain.of_ours(), graphs.of_ours()) == ({"dequantize": 1}, {})
    assert torch.equal(result, rows(w, s, at))


def test_quantisation_is_generated_where_it_pays_alone(generator):
    layer = torch.nn.Linear(64, 32, dtype=BF16)
    aoext.quantize_(layer, INT8)

    def graphs_of(function, *inputs, **options):
        return both_ways(function, *inputs, **options)[1].of_ours()

    few, many = (randn(generator, rows, 64, dtype=BF16) for rows in (4, 64))
    fused, kept = {"scaled_mm": 1}, {"scaled_linear": 1}
    assert graphs_of(lambda x: layer(F.silu(x)), few) == fused
    assert graphs_of(lambda x: layer(F.silu(x)), many) == kept
    assert many.numel() > generated.MOST_ELEMENTS
    assert graphs_of(layer, few) == kept  # nothing before it to fuse with
    assert graphs_of(lambda x: layer(F.silu(x)), few, dynamic=True) == kept


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False")
@pytest.mark.parametrize("dynamic", [False, True])
def test_quantisation_is_generated_behind_norms_alone_on_cuda(dynamic, generator):
    layers = [torch.nn.Linear(64, 32, dtype=BF16).cuda() for _ in range(3)]
    for layer in layers:
        aoext.quantize_(layer, INT8)
    weight = torch.rand(64, generator=generator).to("cuda", BF16)

    def behind_norm(x):
        y = F.rms_norm(x, (64,), weight)
        return [layer(y) for layer in layers]

    def behind_activation(x):
        return layers[0](F.silu(x))

    def calls(function, rows):
        x = randn(generator, rows, 64).to("cuda", BF16)
        with torch.no_grad():
            return both_ways(function, x, dynamic=dynamic)[1].of_ours()

    assert calls(behind_norm, 9) == {"scaled_mm": 3}
    assert calls(behind_activation, 9) == {"scaled_linear": 1}
    if not dynamic:  # the product's kernel quantises one row on its own
        assert calls(behind_norm, 1) == {"scaled_linear": 3}
