"""transformers' packed GGUF models on aoext's kernels, on devices for which it has none itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aoext

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
kernels = pytest.importorskip("transformers.integrations.gguf.kernels")

utils = pytest.importorskip("transformers.integrations.gguf.utils")
if not hasattr(utils, "GgufExperts"):
    pytest.skip("this transformers has no packed experts", allow_module_level=True)

from transformers.integrations.gguf.utils import GgufEmbedding, GgufExperts, GgufLinear  # noqa: E402

from aoext.integrations.gguf import kernels as gguf_kernels  # noqa: E402
from aoext.tensors import QuantizedTensor  # noqa: E402
from gguf_hybrid import MODELS, H, write_hybrid  # noqa: E402
from gguf_models import random_blocks, type_of  # noqa: E402

IDS = torch.arange(3, 15)[None]
KINDS = sorted(gguf_kernels.GEMV_TYPES)


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def differs(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result.cpu().double() - wanted.cpu().double()).norm() / wanted.norm())


@pytest.mark.parametrize("number", KINDS, ids=lambda number: gguf.GGMLQuantizationType(number).name)
def test_the_four_functions(device, number):
    """Products, products by expert, numbers, and rows of them."""
    kind = gguf.GGMLQuantizationType(number).name
    E, N, K, T, k = 3, 24, 512, 5, 2
    raw = torch.from_numpy(random_blocks(kind, E * N, K)).view(E, N, -1)
    values = torch.from_numpy(gguf.quants.dequantize(raw.flatten(0, 1).numpy(), type_of(kind)).copy())
    values, raw = values.double().view(E, N, K), raw.to(device)
    x = torch.randn(T, K)
    ids = torch.randint(E, (T, k))
    product = gguf_kernels.mul_mat_vec(raw[0], x.to(device), number, N)
    assert differs(product, x.double() @ values[0].T) <= 1e-5
    chosen = torch.einsum("tk,tcnk->tcn", x.double(), values[ids])
    by_expert = gguf_kernels.mul_mat_id(raw, x.to(device), ids.to(device, torch.int32), number, N)
    assert by_expert.shape == (T, k, N)
    assert differs(by_expert, chosen) <= 1e-5
    plain = gguf_kernels.dequantize(raw[1], number, N, K, torch.float32)
    assert differs(plain, values[1]) <= 1e-6
    rows = torch.tensor([3, 3, 0])
    assert torch.equal(gguf_kernels.get_rows(raw[1], rows.to(device), number, K, torch.float32), plain[rows])


def model_of_clear_choices(path, architecture: str, kind: str) -> tuple[Any, torch.Tensor]:
    """What write_hybrid gives, and its logits: rounding must not send a token to another expert."""
    ahead: list[float] = []

    def note(router: Any, args: Any, output: Any) -> None:
        ordered = output[0].sort(-1, descending=True).values
        ahead.append(float((ordered[:, router.top_k - 1] - ordered[:, router.top_k]).min()))

    while True:
        model = write_hybrid(path, architecture, kind)
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(note)
        ahead.clear()
        logits = model(IDS).logits
        assert bool(ahead) == (architecture == "qwen35moe")
        if min(ahead, default=1.0) >= 1e-3:
            return model, logits


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("architecture", MODELS)
def test_models(tmp_path, device, architecture, kind):
    """transformers keeps the blocks, and load_gguf keeps them too."""
    expected, wanted = model_of_clear_choices(tmp_path / "model.gguf", architecture, kind)
    packed = type(expected).from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    packed = packed.to(device)
    by_class = [type(module) for module in packed.modules()]
    assert GgufEmbedding in by_class
    assert by_class.count(GgufLinear) >= 4 * 4
    assert (GgufExperts in by_class) == (architecture == "qwen35moe")
    assert differs(packed(IDS.to(device)).logits, wanted) <= 1e-4
    assert differs(packed(IDS[:, :1].to(device)).logits, wanted[:, :1]) <= 1e-4

    ours = aoext.load_gguf(tmp_path / "model.gguf", dtype=torch.float32)
    plain = [
        name for name, p in ours.named_parameters() if p.dim() > 1 and not isinstance(p, QuantizedTensor)
    ]
    small = ("gate.weight", "in_proj_a", "in_proj_b", "conv1d", "conv.conv")
    assert all(any(part in name for part in small) for name in plain), plain
    assert differs(ours.to(device)(IDS.to(device)).logits, wanted) <= 1e-4


@torch.no_grad()
def test_compiled_layers(device):
    """A graph without breaks, whatever the number of rows."""
    layer = GgufLinear(H, 32, int(type_of("Q4_K")), bias=True)
    layer.weight.copy_(torch.from_numpy(random_blocks("Q4_K", 32, H)))
    layer.bias.copy_(torch.randn(32))
    layer = layer.to(device)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for rows in (1, 20):
        x = torch.randn(rows, H, device=device)
        assert torch.equal(compiled(x), layer(x))


@torch.no_grad()
def test_experts_of_other_dtypes(device):
    """As the two products by expert, one after the other, and the weighted sum."""
    number, experts, inner = int(type_of("Q4_K")), 4, 256
    layer = GgufExperts(experts, H, inner, number, number, torch.nn.functional.silu)
    for weight in (layer.gate_up_proj, layer.down_proj):
        raw = random_blocks("Q4_K", weight.shape[0] * weight.shape[1], H)
        weight.copy_(torch.from_numpy(raw).view(weight.shape))
    layer = layer.to(device)
    x = torch.randn(6, H, device=device)
    ids, weights = torch.randint(experts, (6, 2), device=device), torch.rand(6, 2, device=device)
    gate_up = gguf_kernels.mul_mat_id(layer.gate_up_proj, x, ids, number, 2 * inner)
    gate, up = gate_up.chunk(2, -1)
    rows = (torch.nn.functional.silu(gate) * up).flatten(0, 1)
    down = gguf_kernels.mul_mat_id(layer.down_proj, rows, ids.reshape(-1, 1), number, H).view(6, 2, H)
    wanted = (down * weights.unsqueeze(-1)).sum(1)
    assert differs(layer(x, ids, weights), wanted) <= 1e-5
    half = layer(x.bfloat16(), ids, weights.bfloat16())
    assert half.dtype is torch.bfloat16
    assert differs(half, wanted) <= 2e-2


def test_other_formats_are_unpacked(device):
    """Those that aoext has no kernels for stay readable."""
    number = int(type_of("IQ3_S"))
    raw = random_blocks("IQ3_S", 4, 256)
    plain = kernels.dequantize_blocks(torch.from_numpy(raw).to(device), number, 4, 256, torch.float32)
    assert differs(plain, torch.from_numpy(gguf.quants.dequantize(raw, type_of("IQ3_S")))) <= 1e-6
