"""What a program sets for all of PyTorch: its defaults and modes change no bit of what aoext makes.

AOEXT_TEST_DEFAULT_DTYPE runs all tests under another default dtype (conftest.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from torch.utils._python_dispatch import TorchDispatchMode

import aoext
from aoext.checkpoints import WRITERS, reader_for
from aoext.configs.schemes import SCHEMES, as_config
from aoext.ops import ERROR_BOUND
from aoext.reference import ALL_CALLS, Problem, randn
from aoext.tensors import QuantizedTensor
from conftest import XPU_SIM
from formats import FORMATS, bits, same

N, K = 32, 128
BF16 = torch.bfloat16


class Passing(TorchDispatchMode):
    """A mode that lets each operation through, as profilers and counters do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def having(set_: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    set_(value)
    try:
        yield
    finally:
        set_(before)


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "bfloat16": lambda: having(torch.set_default_dtype, torch.bfloat16, torch.get_default_dtype()),
    "float64": lambda: having(torch.set_default_dtype, torch.float64, torch.get_default_dtype()),
    "meta": lambda: having(torch.set_default_device, "meta", None),
    "deterministic": lambda: having(torch.use_deterministic_algorithms, True, False),
    "float32 by bfloat16": lambda: having(torch.set_float32_matmul_precision, "medium", "highest"),
    "no denormals": lambda: having(torch.set_flush_denormal, True, False),
    "a mode": Passing,
}


@pytest.fixture(params=SETTINGS)
def under(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    simulated = XPU_SIM is not None and "xpu" in request.node.name
    if simulated and request.param == "deterministic":
        pytest.skip("simulated reductions are NaN where PyTorch fills what it has not written")
    if "cuda" in request.node.name and request.param == "float32 by bfloat16":
        pytest.skip("PyTorch's own products, as of gradients, are as exact there as the program asks")
    return SETTINGS[request.param]


def alike(a: Any, b: Any) -> bool:
    """Whether results have the same bits, dtypes and devices, and texts are the same."""
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, QuantizedTensor):
        return a.device == b.device and same(a, b)
    if isinstance(a, Tensor):
        return a.dtype is b.dtype and a.device == b.device and torch.equal(bits(a.cpu()), bits(b.cpu()))
    return bool(a == b)


GRADIENT = 2  # among the results


def test_weights_are_made_and_multiplied_alike(under, device, generator):
    plain, x = (randn(generator, rows, K).to(device) for rows in (N, 3))
    indices = torch.tensor([[3, 1, 4], [1, 5, 9]], device=device)

    def results(format: str, dtype: torch.dtype) -> list[Any]:
        weight = FORMATS[format](plain.to(dtype))
        input = x.to(dtype).requires_grad_()
        y = linear(input, weight)
        (grad,) = torch.autograd.grad(y, input, torch.ones_like(y))
        again = weight.requantized(weight.dequantize().float() / 2)
        return [weight, y.detach(), grad, weight.dequantize(), embedding(indices, weight), again]

    # Gradients are PyTorch's own products, of float32 in part where weights have zero points, which CPUs that
    # multiply bfloat16 then round to it.
    by_bf16 = under is SETTINGS["float32 by bfloat16"]
    rounds_gradients = by_bf16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for format in FORMATS:
        for dtype in (BF16, torch.float32):
            expected = results(format, dtype)
            with under():
                found = results(format, dtype)
            if rounds_gradients:
                grad, exact = found.pop(GRADIENT).float(), expected.pop(GRADIENT).float()
                error = (grad - exact).norm(dim=1)
                assert (error <= ERROR_BOUND[BF16] * exact.norm(dim=1)).all(), (format, dtype)
            assert alike(found, expected), (format, dtype)


def test_models_are_quantised_saved_and_loaded_alike(under, device, generator, tmp_path):
    plain = {"0.weight": randn(generator, K, K), "1.weight": randn(generator, N, K)}
    x = randn(generator, 3, K).to(device)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(K, K, bias=False), nn.Linear(K, N, bias=False)).float()

    def results(scheme: str) -> list[Any]:
        with torch.device(device):
            real, empty = model(), model().to("meta")
        real.load_state_dict(plain)
        summary = aoext.quantize_(real, as_config("test", scheme))
        path = tmp_path / f"{torch.get_default_dtype()}.safetensors"
        aoext.save_model(real, path)
        aoext.load_model(empty, path)
        empty.to(device)
        assert alike(empty[0].weight, real[0].weight), scheme
        return [str(summary), real[0].weight, real(x).detach(), empty(x).detach(), path.read_bytes()]

    for scheme in SCHEMES:
        expected = results(scheme)
        with under():
            found = results(scheme)
        assert alike(found, expected), scheme


WRITTEN = {
    ("gptq", "int4_symmetric"): {},
    ("compressed-tensors", "int4_symmetric"): {},
    ("compressed-tensors", "int8"): {},
    ("compressed-tensors", "nvfp4"): {},
    ("bitsandbytes", "nf4"): {},
    ("bitsandbytes", "nf4 in large blocks"): {"double_quantization": True},
}


@pytest.mark.parametrize(("form", "format"), WRITTEN)
def test_checkpoints_of_others_are_written_and_read_alike(form, format, under, device, generator):
    plain = randn(generator, N, K).to(device, torch.float16)

    def results() -> list[Any]:
        if form == "bitsandbytes":
            weight: QuantizedTensor = aoext.Lut4Tensor.from_hp(plain, "nf4", block_size=[1, 64])
        else:
            weight = FORMATS[format](plain)
        writer = WRITERS[form](symmetric=False, **WRITTEN[form, format])
        tensors, facts = writer.write("layer", weight)
        settings = writer.settings({"layer": facts}, [])
        return [tensors, settings, reader_for(settings).weight("layer", tensors, torch.float16)]

    expected = results()
    with under():
        found = results()
    assert alike(found, expected)


def test_references_are_alike(under, generator):
    problem, seed = Problem(3, 16, 64, 32), generator.initial_seed()
    for operator, make in ALL_CALLS.items():
        expected = make(problem, torch.Generator().manual_seed(seed))
        with under():
            found = make(problem, torch.Generator().manual_seed(seed))
        assert alike([found.args, found.reference], [expected.args, expected.reference]), operator


def test_threads_get_the_same_bits(device, generator):
    plain, x = randn(generator, N, K, dtype=BF16).to(device), randn(generator, 20, K, dtype=BF16).to(device)
    weights = {format: make(plain) for format, make in FORMATS.items()}
    expected = {format: linear(x, weight) for format, weight in weights.items()}

    def wrong(_: int) -> list[str]:
        made = {format: (weight, linear(x, weight)) for format, weight in weights.items()}
        return [format for format, (weight, y) in made.items() if not torch.equal(y, expected[format])]

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(wrong, range(8)))
