"""Scales and zero points that are searched for: never worse than rounding's, close to the best of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import aoext
from aoext.cli.commands import cli
from aoext.configs.schemes import SCHEMES, as_config, to_dict
from aoext.packing.blockwise import in_tiles
from aoext.quality import scales
from aoext.quality.grid import Grid
from aoext.quality.scales import grid_for
from aoext.reference import randn
from formats import bits

CONFIGS = {
    **{name: as_config("test", name) for name in SCHEMES},
    **{f"int{b}_symmetric": aoext.IntxWeightOnlyConfig(bits=b, symmetric=True) for b in (3, 4, 8)},
    "int8_groups": aoext.IntxWeightOnlyConfig(bits=8),
}

# Floats have about the same errors at any scale, and powers of two are few to choose from.
SMALL_GAIN = ("float8_block", "mxfp8")


def errors(quantized, w, importance=None):
    """The float64 sum of squared errors of each block."""
    difference = (quantized.to(torch.float32).dequantize().cpu().double() - w.cpu().double()).square()
    if importance is not None:
        difference *= importance.cpu().double()
    return in_tiles(difference, quantized.block_size).sum((1, 3))


@pytest.mark.parametrize("name", CONFIGS)
def test_no_block_is_worse_than_by_rounding(name, device, generator):
    w = randn(generator, 70, 384, dtype=torch.bfloat16).to(device)
    w[3], w[5, :128] = 0, 0.25
    importance = randn(generator, 384).square().to(device)
    config = CONFIGS[name]
    rounded, searched = config.quantize(w), replace(config, algorithm="search").quantize(w)
    assert searched.stored_bytes == rounded.stored_bytes
    before, after = errors(rounded, w), errors(searched, w)
    assert (after <= before * (1 + 1e-5)).all()
    assert after.sum() < before.sum() * (1.00001 if name in SMALL_GAIN else 0.995)

    grid = grid_for(config, w, importance)
    before, weighted = errors(rounded, w, importance), errors(grid.tensor(w), w, importance)
    assert (weighted <= before * (1 + 1e-5)).all()
    if before.numel() > 100:  # in one block or another the search may end at a lesser optimum
        assert weighted.sum() <= errors(searched, w, importance).sum()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_search_is_near_the_best_of_very_many(bits, device, generator):
    """Every scale and offset of a fine grid, in float64."""
    w = randn(generator, 40, 32)
    searched = grid_for(aoext.IntxWeightOnlyConfig(bits=bits, group_size=32), w.to(device)).tensor(
        w.to(device)
    )
    x, steps = w.double(), 2**bits - 1
    low, high = x.amin(1), x.amax(1)
    best = torch.full((40,), torch.inf, dtype=torch.double)
    for size in torch.linspace(0.4, 1.1, 141, dtype=torch.double):
        s = ((high - low) * size / steps)[:, None, None]
        z = low[:, None] + (high - low)[:, None] * torch.linspace(-0.1, 0.6, 141, dtype=torch.double)
        q = ((x[:, None] - z[..., None]) / s).round().clamp(0, steps)
        best = torch.minimum(best, (q * s + z[..., None] - x[:, None]).square().sum(2).amin(1))
    assert (errors(searched, w).sum() / best.sum()) < 1.05


@pytest.mark.parametrize(("bits", "symmetric"), [(2, False), (3, False), (4, False), (4, True), (6, False)])
def test_weights_that_lie_on_levels_are_found_again(bits, symmetric, device, generator):
    """Blocks that lack the outermost levels, which rounding takes for others."""
    low = -(1 << (bits - 1))
    q = torch.randint(low, -low, (40, 4, 32), generator=generator)
    q[..., 0], q[..., 1] = low, -low - 1
    outermost = q[:20]
    outermost[outermost == -low - 1] -= 1
    step = 2.0 ** torch.randint(-6, 2, (40, 4, 1), generator=generator)
    w = (q * step if symmetric else q * step + 8 * step).flatten(1).to(device)
    config = aoext.IntxWeightOnlyConfig(bits=bits, group_size=32, symmetric=symmetric)
    found = grid_for(config, w).tensor(w)
    exact = (errors(found, w) < 1e-9 * step.square().sum(2)).double().mean()
    assert exact > (0.95 if bits > 2 else 0.8)


def test_nvfp4_maps_the_largest_of_a_block_to_4_or_6(device, generator):
    w = randn(generator, 32, 64).to(device)
    w[0, :16] = torch.tensor([8.0, 6, 4, -4, 2, -2, 1, 0] * 2)  # on the levels 4, 3, 2, 1, 0.5
    w[1, 0] = 10.5  # by which the block above gets a scale that float8 has
    rounded = aoext.NVFP4WeightOnlyConfig().quantize(w)
    searched = aoext.NVFP4WeightOnlyConfig(algorithm="search").quantize(w)
    assert torch.equal(searched.global_scale, 2 * rounded.global_scale)
    assert errors(searched, w)[0, 0] < 1e-9 < errors(rounded, w)[0, 0]


def test_hqq_is_its_formula(device, generator):
    w = randn(generator, 64, 128)
    grid = grid_for(aoext.Int4WeightOnlyConfig(group_size=32), w.to(device), algorithm="hqq")
    x = w.double().unflatten(1, (-1, 32))
    low, high = x.amin(2, keepdim=True), x.amax(2, keepdim=True)
    scale = 15 / (high - low)
    zero, beta = -low * scale, 10.0
    best, best_error = zero, torch.full_like(zero, torch.inf)
    for _ in range(20):
        q = (x * scale + zero).round().clamp(0, 15)
        error = x - (q - zero) / scale
        better = error.abs().mean(2, keepdim=True) < best_error
        best = torch.where(better, zero, best)
        best_error = torch.where(better, error.abs().mean(2, keepdim=True), best_error)
        kept = error.sign() * (error.abs() - error.abs() ** -0.3 / beta).clamp(min=0)
        zero = (q - (x - kept) * scale).mean(2, keepdim=True)
        beta *= 1.01
    expected = (best_error * 32).sum()
    found = (grid.rounded(w.to(device)).cpu().double() - w.double()).abs().sum()
    assert abs(found / expected - 1) < 0.02
    assert torch.equal(
        grid.scale, Grid.of(aoext.Int4WeightOnlyConfig(group_size=32).quantize(w.to(device))).scale
    )


def test_parts_and_experts_are_searched_alike(device, generator, monkeypatch):
    config = aoext.Int4WeightOnlyConfig(group_size=32, algorithm="search")
    w = randn(generator, 3, 40, 64, dtype=torch.bfloat16).to(device)
    whole = config.quantize(w)
    monkeypatch.setitem(scales.ELEMENTS, device.type if hasattr(device, "type") else device, 1)
    for e in range(3):
        for name, field in config.quantize(w[e]).named_fields():
            assert torch.equal(bits(field), bits(getattr(whole, name)[e])), name


def test_a_config_says_its_algorithm():
    config = as_config("test", {"scheme": "int4", "group_size": 32, "algorithm": "hqq"})
    assert repr(config) == "Int4WeightOnlyConfig(group_size=32, symmetric=False, algorithm='hqq')"
    assert as_config("test", to_dict(config)) == config
    assert "algorithm" not in to_dict(replace(config, algorithm="rounding"))
    model = nn.Sequential(nn.Linear(64, 64))
    assert (
        aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), algorithm="search").config.algorithm == "search"
    )


@pytest.mark.parametrize(
    ("config", "algorithm", "says"),
    [
        (aoext.Int4WeightOnlyConfig(), "best", "algorithm must be one of rounding, search, hqq, got 'best'"),
        (
            aoext.Int8WeightOnlyConfig(),
            "hqq",
            "'hqq' is for integers with zero points, which this scheme lacks",
        ),
        (aoext.Int4WeightOnlyConfig(symmetric=True), "hqq", "is for integers with zero points"),
    ],
)
def test_a_wrong_algorithm_leaves_the_model_as_it_was(config, algorithm, says):
    model = nn.Sequential(nn.Linear(64, 64))
    weight = model[0].weight
    with pytest.raises(ValueError, match=says):
        aoext.quantize_(model, config, algorithm=algorithm)
    assert model[0].weight is weight


def test_wrong_importance_is_told(generator):
    w = randn(generator, 8, 64)
    for importance, says in (
        (torch.ones(32), r"importance must be \[K\] = \[64\], got \[32\]"),
        (-torch.ones(64), "importance must be finite and not negative"),
        (torch.full((64,), torch.nan), "importance must be finite"),
    ):
        with pytest.raises(ValueError, match=says):
            grid_for(aoext.Int8WeightOnlyConfig(), w, importance)


def test_convert_takes_an_algorithm_for_schemes_alone(tmp_path):
    done = CliRunner().invoke(cli, ["convert", str(tmp_path), str(tmp_path / "out"), "--algorithm", "search"])
    assert done.exit_code == 2
    assert "--algorithm and --data are for --scheme" in done.output
