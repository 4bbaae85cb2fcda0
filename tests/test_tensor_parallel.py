"""Tensor parallel plans of transformers: two ranks that share quantised weights."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aoext
from aoext.tensors import QuantizedTensor
from ranks import Ranks
from test_transformers import IDS, llama, same_bits

transformers = pytest.importorskip("transformers", minversion="5.16")

SIZE = 2
SCHEMES: dict[str, Any] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
    "float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks("cpu", SIZE)
    yield ranks
    ranks.close()


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def _check(mesh, folder, config):
    os.environ |= {"RANK": str(mesh.get_rank()), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(mesh.get_rank())}
    whole = load(folder / "plain", quantization_config=config)
    for source, options in (("plain", {"quantization_config": config}), ("ours", {})):
        model = load(folder / source, tp_plan="auto", tp_size=SIZE, **options)
        shared = 0
        for name, parameter in whole.named_parameters():
            got = model.get_parameter(name)
            if isinstance(parameter, QuantizedTensor):
                assert isinstance(got.to_local(), QuantizedTensor), name
                assert got.to_local().numel() == parameter.numel() // SIZE, name
                shared += 1
        assert shared == 14
        with torch.no_grad():
            wanted, logits = whole(IDS).logits, model(IDS).logits
        # Dynamic quantisation rounds the parts of a row that ranks have, not the whole.
        dynamic = isinstance(config.scheme, aoext.Float8DynamicActivationFloat8WeightConfig)
        assert (logits - wanted).norm() <= (0.1 if dynamic else 1e-4) * wanted.norm()
        generated = [m.generate(IDS, max_new_tokens=4, do_sample=False) for m in (whole, model)]
        assert dynamic or torch.equal(*generated)
        model.save_pretrained(folder / f"from {source}")
        if mesh.get_rank() == 0:
            same_bits(whole, load(folder / f"from {source}"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_compute_together_what_one_would(tmp_path, ranks, scheme):
    llama().float().save_pretrained(tmp_path / "plain", max_shard_size="60KB")
    config = aoext.AoextConfig(SCHEMES[scheme])
    load(tmp_path / "plain", quantization_config=config).save_pretrained(tmp_path / "ours")
    ranks(_check, tmp_path, config)


def _check_named(mesh, folder, config):
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("aoext").addHandler(handler)
    model = load(folder / "plain", quantization_config=config, tp_plan="auto", tp_size=SIZE)
    quantised = [
        n for n, p in model.named_parameters() if isinstance(getattr(p, "_local_tensor", p), QuantizedTensor)
    ]
    assert not any("down_proj" in name for name in quantised)
    assert len(quantised) == 12
    (message,) = [message for message in messages if "ranks cannot share" in message]
    assert "model.layers.0.mlp.down_proj (Int4Tensor: a slice along K must begin and end on group" in message
    with pytest.raises(ValueError, match=r"the ranks cannot share model\.layers\.0\.mlp\.down_proj"):
        load(folder / "ours", tp_plan="auto", tp_size=SIZE)


def test_weights_whose_groups_cannot_be_divided_are_named(tmp_path, ranks):
    config = llama().config
    config.intermediate_size = 192  # 96 for each rank
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    config = aoext.AoextConfig(aoext.Int4WeightOnlyConfig(group_size=64))
    load(tmp_path / "plain", quantization_config=config).save_pretrained(tmp_path / "ours")
    ranks(_check_named, tmp_path, config)
