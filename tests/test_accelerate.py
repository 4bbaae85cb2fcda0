"""accelerate saves, loads and moves models with quantised weights."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import aoext
from aoext.reference import randn
from conftest import XPU_SIM
from formats import same
from test_tensor_parameters import ADVICE

BF16 = torch.bfloat16
K = 64

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
}


@pytest.fixture(params=CONFIGS)
def model(request, generator) -> nn.Module:
    layers = [nn.Linear(K, K, dtype=BF16) for _ in range(4)]
    layers[3].weight = layers[0].weight
    made = nn.Sequential(layers[0], nn.ReLU(), *layers[1:])
    aoext.quantize_(made, CONFIGS[request.param], lambda module, name: name != "2")
    return made


def placed(device) -> str:
    return "xpu" if XPU_SIM and device.type == "xpu" else str(device)


def test_accelerate_saves_and_loads_its_state(model, generator, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("safetensors")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(model)
    with pytest.raises(RuntimeError, match=ADVICE):
        accelerator.save_state(tmp_path)
    before = copy.deepcopy(prepared)
    accelerator.save_state(tmp_path, safe_serialization=False)
    x = randn(generator, 3, K, dtype=BF16)
    with torch.no_grad():
        for parameter in prepared.parameters():
            parameter.copy_(torch.zeros_like(parameter))
        assert not prepared(x).any()
    accelerator.load_state(tmp_path)
    assert torch.equal(prepared(x), before(x))


@pytest.mark.parametrize("way", ["cpu_offload", "from a file", "with_hook", "dispatch", "empty weights"])
def test_accelerate_moves_quantised_weights(model, way, device, generator, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    x = randn(generator, 3, K, dtype=BF16)
    expected = copy.deepcopy(model).to(device)(x.to(device))
    weights = copy.deepcopy(model)
    target = placed(device)
    if way == "cpu_offload":
        model = accelerate.cpu_offload(model, execution_device=target)
    elif way == "from a file":
        torch.save(model.state_dict(), tmp_path / "model.pt")
        state = torch.load(tmp_path / "model.pt", mmap=True)
        model = accelerate.cpu_offload(model, execution_device=target, state_dict=state)
    elif way == "with_hook":
        model, _ = accelerate.cpu_offload_with_hook(model, execution_device=target)
    elif way == "dispatch":
        places = {"0": target, "1": target, "2": "cpu", "3": "cpu", "4": target}
        model = accelerate.dispatch_model(model, places, main_device=target, force_hooks=True)
    else:
        with accelerate.init_empty_weights():
            empty = nn.Sequential(
                nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K), nn.Linear(K, K), nn.Linear(K, K)
            )
        empty[4].weight = empty[0].weight
        aoext.quantize_(empty.to(BF16), _config_of(model), lambda module, name: name != "2")
        assert empty[0].weight.qdata.is_meta
        empty.load_state_dict(model.state_dict(), assign=True)
        model = empty.to(device)
    for _ in range(2):
        y = model(x.to(device))
        torch.testing.assert_close(y.to(device), expected, rtol=2e-2, atol=2e-2)
    if way in ("cpu_offload", "from a file"):
        assert all(p.is_meta for p in model.parameters())
    state = model.state_dict() if way in ("with_hook", "empty weights") else {}
    for name, tensor in state.items():
        if name.startswith(("0", "3")) and name.endswith("weight"):
            assert same(tensor.to("cpu"), weights.state_dict()[name])


def test_the_snippets_of_the_document_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    document = (Path(__file__).parent.parent / "docs" / "weights.md").read_text(encoding="utf-8")
    for snippet in re.findall(r"```python\n(.*?)```", document, re.DOTALL):
        exec(compile(snippet, "weights.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "torch.Size([2, 512, 256])" in printed
    assert "torch.Size([4, 256])" in printed


def _config_of(model):
    return next(
        config
        for config in CONFIGS.values()
        if type(config.quantize(torch.randn(32, 32, dtype=BF16))) is type(model[0].weight)
    )
