"""GPTQ, and what goes before it, on single layers and blocks, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext.calibration.folding import hadamard
from aoext.calibration.gptq import by_activity, cholesky, corrected, gptq, on_cpu_if_missing, relative_error
from aoext.calibration.statistics import ExpertStatistics, Statistics
from aoext.configs.schemes import SCHEMES, as_config
from aoext.quality.grid import Grid
from aoext.reference import randn

K, N, T = 160, 24, 400


def correlated(generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
    mixed = randn(generator, K, K, dtype=torch.float64) / K**0.5 + 0.3 * torch.eye(K, dtype=torch.float64)
    return (randn(generator, T, K, dtype=torch.float64) @ mixed).to(device)


def column_by_column(w: Tensor, hessian: Tensor, grid: Grid, order: Tensor) -> Tensor:
    """As the paper derives it: after each column the inverse of what is left of H, in float64."""
    rest, values = w.double().clone(), torch.empty_like(w, dtype=torch.float64)
    left = order.tolist()
    while left:
        inverse = torch.linalg.inv(hessian[left][:, left])
        k, left = left[0], left[1:]
        values[:, k] = grid.rounded(rest[:, k : k + 1], torch.tensor([k], device=w.device)).squeeze(1)
        error = (rest[:, k] - values[:, k]) / inverse[0, 0]
        rest[:, left] -= error.unsqueeze(1) * inverse[0, 1:]
    return values


@pytest.mark.parametrize("scheme", ["int4", "int3", "nvfp4"])
def test_gptq_is_the_papers(scheme, device, generator):
    x, w = correlated(generator, device), randn(generator, N, K).to(device)
    hessian = x.t() @ x
    grid = Grid.of(as_config("test", scheme).quantize(w))
    order = by_activity(hessian)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(K, dtype=torch.float64, device=device)
    expected = column_by_column(w, damped, grid, order)
    torch.testing.assert_close(gptq(w, hessian, grid, 0.01, order).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_are_nearer_in_every_scheme(scheme, generator):
    x, w = correlated(generator), randn(generator, N, K)
    hessian = (x.t() @ x).float()
    grid = Grid.of(as_config("test", scheme).quantize(w))
    values = gptq(w, hessian, grid, 0.01, by_activity(hessian))
    stored = grid.tensor(values).to(torch.float32).dequantize()
    torch.testing.assert_close(stored, values, rtol=1e-5, atol=1e-6)
    rounded = relative_error(grid.rounded(w) - w, w, hessian)
    assert relative_error(values - w, w, hessian) < 0.9 * rounded


def test_a_weight_makes_up_for_errors_of_its_inputs(generator):
    of_float = correlated(generator)
    x = of_float + 0.1 * randn(generator, T, K, dtype=torch.float64)
    w = randn(generator, N, K, dtype=torch.float64)
    found = corrected(w, x.t() @ x, (of_float - x).t() @ x, 0.0, 1.0)
    expected = torch.linalg.lstsq(x, of_float @ w.t()).solution.t()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_singular_hessians_get_more_damping(generator):
    few = randn(generator, 3, K)
    few[:, 7] = 0
    hessian = few.t() @ few
    factor, damping = cholesky(hessian, 0.0)
    assert damping > 0
    assert bool(factor.isfinite().all())
    w = randn(generator, N, K)
    grid = Grid.of(aoext.Int4WeightOnlyConfig(32).quantize(w))
    assert bool(gptq(w, hessian, grid, 0.0).isfinite().all())
    hessian[3, 3] = float("nan")
    with pytest.raises(ValueError, match="NaN or Inf"):
        cholesky(hessian, 0.01)


def test_what_a_device_lacks_is_computed_on_the_cpu(device):
    def lacking(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            raise NotImplementedError("aten::linalg_cholesky_ex is not implemented")
        return tensor + 1

    assert on_cpu_if_missing(lacking, torch.zeros(2, device=device)).sum() == 2


def test_statistics_are_sums_over_all_rows(generator):
    x, of_float = randn(generator, 9, 1500), randn(generator, 9, 1500)
    statistics = Statistics.of(1500, torch.device("cpu"), with_cross=True)
    statistics.add(x[:4], of_float[:4])
    statistics.add(x[4:], of_float[4:])
    statistics.complete()
    assert statistics.tokens == 9
    torch.testing.assert_close(statistics.hessian, x.t() @ x)
    torch.testing.assert_close(statistics.cross, (of_float - x).t() @ x)


def test_rare_experts_get_a_share_of_the_mean(generator):
    rows = randn(generator, 10, K)
    whole = Statistics.of(K, torch.device("cpu"))
    each = {e: Statistics.of(K, torch.device("cpu")) for e in range(3)}
    statistics = ExpertStatistics(each, whole, 8)
    statistics.add(rows, torch.tensor([1, 1, 10], dtype=torch.int32), True)
    for each_one in (whole, *each.values()):
        each_one.complete()
    mean = rows.t() @ rows / 10
    torch.testing.assert_close(statistics.of_expert(0).hessian, rows[:1].t() @ rows[:1] + 7 * mean)
    assert statistics.of_expert(1).tokens == 0
    torch.testing.assert_close(statistics.of_expert(2).hessian, rows[1:].t() @ rows[1:])


def test_a_hadamard_matrix_is_its_own_inverse():
    turn = hadamard(32, torch.device("cpu"))
    torch.testing.assert_close(turn @ turn, torch.eye(32))
    assert len(turn.abs().unique()) == 1


class Attention(nn.Module):
    """What Llama's has: v for o, with repeated heads, and q and k that must not be taken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 32
        self.norm = nn.RMSNorm(64)
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(64, 32)
        self.o = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (p(y).unflatten(-1, (-1, 32)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
        return x + self.o(mixed.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.mark.parametrize("size", [1, 100])
def test_blocks_say_which_layer_takes_factors_and_rotations_over(size, generator):
    """Whatever the size of the input, which goes around all layers, and beside an attention sink."""
    from aoext.calibration.folding import links_of
    from aoext.calibration.inputs import Target, discover

    block = nn.Sequential(Attention(), Mlp()).double()
    for parameter in block.parameters():
        parameter.data.add_(randn(generator, *parameter.shape) * 0.2)
    x = randn(generator, 2, 12, 64).double() * size
    x[:, 0, 5] = 3000
    config = aoext.Int4WeightOnlyConfig(32)
    names = [name for name, module in block.named_modules() if isinstance(module, nn.Linear)]
    targets = [Target(name, config, [(name, "weight")]) for name in names]
    with torch.no_grad():
        groups = discover(block, targets, [lambda: block(x)])
        assert [[t.name for t in g.targets] for g in groups] == [
            ["0.q", "0.k", "0.v"],
            ["0.o"],
            ["1.gate", "1.up"],
            ["1.down"],
        ]
        links = links_of(block, groups, lambda: block(x), x)
        producers = {
            name: [None if link is None else link.producer for link in pair] for name, pair in links.items()
        }
        assert producers == {
            "0.q": [block[0].norm, None],
            "0.o": [block[0].v, block[0].v],
            "1.gate": [block[1].norm, None],
            "1.down": [block[1].up, None],
        }
        expected = block(x)
        for name, (scaling, rotating) in links.items():
            assert scaling is not None
            columns = block.get_submodule(name).weight.shape[1]
            scaling.scale(scaling.shared(randn(generator, columns).exp()))
            if rotating is not None:
                rotating.rotate()
        torch.testing.assert_close(block(x) - x, expected - x, rtol=1e-3, atol=1e-4)
