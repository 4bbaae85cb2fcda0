"""The values that quantised weights can have: what lies on them stays, and what is next is found."""

from __future__ import annotations

import pytest
import torch

import aoext
from aoext.configs.schemes import SCHEMES, as_config
from aoext.quality.grid import Grid
from aoext.reference import randn
from formats import bits

CONFIGS = {
    **{name: as_config("test", name) for name in SCHEMES},
    **{f"int{b}_symmetric": aoext.IntxWeightOnlyConfig(bits=b, symmetric=True) for b in (3, 4, 8)},
    "int8_groups": aoext.IntxWeightOnlyConfig(bits=8),
    "float8_e5m2": aoext.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_weight_on_its_grid_stays_and_others_go_to_what_is_next(name, dtype, device, generator):
    w = randn(generator, 130, 256, dtype=dtype).to(device)
    w[3], w[5, :128] = 0, 0.25  # blocks of one value
    quantized = CONFIGS[name].quantize(w)
    values = quantized.to(torch.float32).dequantize()
    grid = Grid.of(quantized)

    again = grid.tensor(values)
    for (field, expected), (_, result) in zip(quantized.named_fields(), again.named_fields(), strict=True):
        assert torch.equal(bits(result), bits(expected)), field

    # No worse than rounding by scales that were not yet rounded themselves.
    rounded = grid.rounded(w.float())
    assert (rounded - w.float()).norm() <= (values - w.float()).norm() * 1.0001
    part = torch.tensor([1, 200, 17], device=w.device)
    assert torch.equal(grid.rounded(w.float()[:, part], part), rounded[:, part])

    # Other scales are made ones that are stored, and the tensor has just these.
    other = grid.at(grid.scale * 0.83, None if grid.offset is None else grid.offset * 0.9)
    rounded = other.rounded(w.float())
    result = other.tensor(rounded).to(torch.float32).dequantize()
    torch.testing.assert_close(result, rounded, rtol=1e-6, atol=3e-7)
    # Among all values of a block none is nearer: moved by a step, no value is.
    step = other.columns(slice(None))[0].abs()
    for moved in (other.rounded(rounded + step), other.rounded(rounded - step)):
        assert ((moved - w.float()).abs() >= (rounded - w.float()).abs() - 1e-6).all()
