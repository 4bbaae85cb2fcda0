"""Two ranks that share quantised experts: DTensors, fully_shard, and transformers' plans."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import aoext
from aoext.tensors import QuantizedTensor
from formats import FORMATS, bits, same
from models import assert_same_state
from ranks import Ranks

SIZE = 2
CONFIG = aoext.Int4WeightOnlyConfig(group_size=16)
# Ranks have half of the experts, or half of each.
PLANS: dict[str, dict[str, Any]] = {
    "experts": {"tp_size": SIZE, "ep_size": SIZE},
    "tensors": {"tp_size": SIZE},
}


DEVICES = ["cpu", *["cuda"] * (torch.cuda.is_available() and torch.cuda.device_count() >= SIZE)]


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """gloo's, and NCCL's where each has a GPU of its own."""
    ranks = Ranks(request.param, SIZE)
    yield ranks
    ranks.close()


def device_of(mesh: Any) -> torch.device:
    return torch.device(mesh.device_type, mesh.get_rank() if mesh.device_type == "cuda" else None)


def load(folder: Path, **options: Any) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def _check(mesh, folder, plan):
    from transformers.distributed import DistributedConfig

    from moe_models import IDS

    os.environ |= {"RANK": str(mesh.get_rank()), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(mesh.get_rank())}
    config, ids = aoext.AoextConfig(CONFIG), IDS.to(device_of(mesh))
    whole = load(folder / "plain", quantization_config=config).to(device_of(mesh))
    for source, options in (("plain", {"quantization_config": config}), ("ours", {})):
        model = load(folder / source, distributed_config=DistributedConfig(**PLANS[plan]), **options)
        shared = 0
        for name, parameter in whole.named_parameters():
            if parameter.dim() == 3:
                own = model.get_parameter(name).to_local()
                assert isinstance(own, QuantizedTensor), name
                assert own.numel() == parameter.numel() // SIZE, name
                assert (len(own) < len(parameter)) == (plan == "experts"), name
                shared += 1
        assert shared == 4
        with torch.no_grad():
            wanted, logits = whole(ids).logits, model(ids).logits
        assert (logits - wanted).norm() <= 1e-4 * wanted.norm()
        generated = [m.generate(ids[:, :4], max_new_tokens=3, do_sample=False) for m in (whole, model)]
        assert torch.equal(*generated)
        model.save_pretrained(folder / f"{plan} from {source}")
        if mesh.get_rank() == 0:
            assert_same_state(whole.cpu(), load(folder / f"{plan} from {source}"))


def _shards(mesh, seed, format):
    """By experts and along both dimensions of a matrix; flattened, and put together."""
    from torch.distributed.tensor import Shard, distribute_tensor

    generator = torch.Generator().manual_seed(seed)
    weight = FORMATS[format](torch.randn(4, 32, 64, generator=generator)).to(device_of(mesh))
    for dim in range(3):
        shared = distribute_tensor(weight, mesh, [Shard(dim)])
        own = weight.chunk(SIZE, dim)[mesh.get_rank()]
        assert same(shared.to_local(), own)
        assert torch.equal(shared.full_tensor().dequantize(), weight.dequantize())
        for name, field in aoext.flatten_state_dict({"w": shared}).items():
            name = name.removeprefix("w.")
            assert field.shape == getattr(weight, name).shape, (dim, name)
            assert torch.equal(bits(field.to_local()), bits(getattr(own, name))), (dim, name)


def _fully_sharded(mesh, seed, format):
    from torch.distributed.fsdp import fully_shard

    generator = torch.Generator().manual_seed(seed)
    layer = nn.Module()
    layer.weight = nn.Parameter(
        FORMATS[format](torch.randn(4, 32, 64, generator=generator)), requires_grad=False
    )
    layer.forward = lambda x: torch.bmm(x, layer.weight.mT)
    layer.to(device_of(mesh))
    x = torch.randn(4, 3, 64, generator=generator).to(device_of(mesh))
    expected = layer(x)
    fully_shard(layer, mesh=mesh)
    assert len(layer.weight.to_local()) == 2
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("format", ["int4", "int8_dynamic", "block_float8_dynamic", "mxfp4"])
@pytest.mark.parametrize("check", [_shards, _fully_sharded])
def test_weights_of_experts_are_shared(check, format, ranks, generator):
    ranks(check, generator.initial_seed() % 2**31, format)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_ranks_compute_together_what_one_would(name, plan, tmp_path, ranks, generator):
    pytest.importorskip("transformers", minversion="5.20")
    from moe_models import build

    build(name, generator).save_pretrained(tmp_path / "plain")
    loaded = load(tmp_path / "plain", quantization_config=aoext.AoextConfig(CONFIG))
    loaded.save_pretrained(tmp_path / "ours")
    ranks(_check, tmp_path, plan)
