"""Quantised weights among what trains: optimizers and averages walk over all parameters, frozen ones too."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from aoext.reference import randn
from formats import CLASSES, FORMATS, HIGH_PRECISION, is_by_groups, quantized, same

N, K = 24, 64


class Model(nn.Module):
    """K -> N -> K, both weights quantised, both biases training."""

    def __init__(self, format, device, generator):
        super().__init__()
        self.down, self.up = nn.Linear(K, N, device=device), nn.Linear(N, K, device=device)
        self.register_buffer("shift", randn(generator, N).to(device))
        for layer in (self.down, self.up):
            if layer is self.down or not (is_by_groups(format) or "nested" in format):
                weight = quantized(format, *layer.weight.shape, torch.float32, device, generator)
                layer.weight = nn.Parameter(weight, requires_grad=False)
            layer.bias.data = randn(generator, *layer.bias.shape).to(device)

    def forward(self, x):
        return self.up(self.down(x) + self.shift)

    def quantised(self):
        return [layer.weight for layer in (self.down, self.up) if not layer.weight.requires_grad]

    def train_once(self, x, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = self(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adafactor", "Adamax", "ASGD", "LBFGS"]
OPTIMIZERS += ["NAdam", "RAdam", "RMSprop", "Rprop"]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("format", CLASSES)
def test_optimizers_pass_over_quantised_weights(name, format, device, generator):
    model = Model(format, device, generator)
    before = copy.deepcopy(model)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
    x = randn(generator, 8, K).to(device)
    for _ in range(2):
        model.train_once(x, optimizer)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, weights_only=True))
    for weight, expected in zip(model.quantised(), before.quantised(), strict=True):
        assert same(weight.detach(), expected.detach())
    assert not torch.equal(model.up.bias, before.up.bias)


def test_adagrads_state_of_a_frozen_weight_takes_no_memory(device, generator):
    weight = quantized("int4", N, K, torch.float32, device, generator)
    state = torch.optim.Adagrad([nn.Parameter(weight, False)], initial_accumulator_value=0.25)
    (total,) = (entry["sum"] for entry in state.state.values())
    assert torch.equal(total, torch.full((N, K), 0.25, device=device))
    assert total.untyped_storage().nbytes() == total.element_size()
    assert torch.full_like(weight, 3, dtype=torch.int32).dtype is torch.int32


AVERAGES = {
    "default": {},
    "with buffers": {"use_buffers": True},
    "ema": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "ema of many": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "swa": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "swa of many": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
}


@pytest.mark.parametrize("options", AVERAGES.values(), ids=AVERAGES)
@pytest.mark.parametrize("format", FORMATS)
def test_averaged_models_keep_quantised_weights(format, options, device, generator):
    model = Model(format, device, generator)
    averaged = swa_utils.AveragedModel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    biases = []
    for _ in range(3):
        model.train_once(randn(generator, 8, K).to(device), optimizer)
        averaged.update_parameters(model)
        biases.append(model.up.bias.detach().clone())
    for weight, expected in zip(averaged.module.quantised(), model.quantised(), strict=True):
        assert same(weight.detach(), expected.detach())
    assert averaged.module.down.weight.qdata.data_ptr() != model.down.weight.qdata.data_ptr()
    if options == {}:
        torch.testing.assert_close(averaged.module.up.bias.detach(), sum(biases) / 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("format", CLASSES)
def test_the_moving_average_of_diffusers_keeps_quantised_weights(format, foreach, device, generator):
    pytest.importorskip("diffusers")
    from diffusers.training_utils import EMAModel

    model = Model(format, device, generator)
    before = copy.deepcopy(model)
    average = EMAModel(model.parameters(), foreach=foreach)
    for _ in range(3):
        with torch.no_grad():
            model.up.bias.add_(1)
        average.step(model.parameters())
    average.store(model.parameters())
    average.copy_to(model.parameters())
    assert not torch.equal(model.up.bias, before.up.bias + 3)
    average.restore(model.parameters())
    torch.testing.assert_close(model.up.bias, before.up.bias + 3)
    for weight, expected in zip(model.quantised(), before.quantised(), strict=True):
        assert same(weight.detach(), expected.detach())


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format", FORMATS)
def test_averages_of_equal_weights_are_those_weights(format, dtype, device, generator):
    weight = quantized(format, N, K, dtype, device, generator)
    average, other = weight.clone(), weight.clone()
    for decay in (0.1, 0.9, 0.999):
        average.lerp_(other, 1 - decay)
        average.lerp_(other, torch.tensor(1 - decay, device=device, dtype=dtype))
        average.copy_(decay * average + other * (1 - decay))
        with torch.no_grad():
            average.copy_(nn.Parameter((decay * average + other * (1 - decay)).cpu()))
        average.copy_(average + (other - average) / torch.tensor(3, device=device))
        average.sub_(0.1 * (average - other))
        average.add_(other - average, alpha=0.5)
        torch._foreach_lerp_([average], [other], 0.1)
        torch._foreach_lerp_([average], [other], [0.1])
        torch._foreach_copy_([average], [other])
        assert same(average, weight)
        assert same(average + torch.zeros(N, K, dtype=dtype, device=device), weight)


@pytest.mark.parametrize("format", CLASSES)
def test_averages_of_unequal_weights_are_refused(format, device, generator):
    weight, other = (quantized(format, N, K, torch.float32, device, generator) for _ in range(2))
    before = weight.clone()
    values = weight.dequantize()
    values[3, 5] += 1e-3 * values.abs().max()
    for operation in (
        lambda: weight.lerp_(other, 0.1),
        lambda: torch._foreach_lerp_([weight], [other], 0.1),
        lambda: weight.lerp_(values, 0.5),
    ):
        with pytest.raises(NotImplementedError, match="an average of unlike weights"):
            operation()
    values = weight.dequantize().requires_grad_()
    for operation in (lambda: weight.copy_(values), lambda: weight.lerp_(values, 0.5)):
        with pytest.raises(RuntimeError, match="needs a matrix that requires no gradient"):
            operation()
    assert same(weight, before)
    assert not weight.requires_grad
    plain, values = torch.zeros(N, K, device=device), weight.dequantize()
    assert torch.equal(plain.lerp_(weight, 0.5), torch.zeros_like(values).lerp_(values, 0.5))


@pytest.mark.parametrize("format", CLASSES)
def test_new_tensors_have_the_form_of_a_weight_or_are_plain(format, device, generator):
    weight = quantized(format, N, K, torch.float32, device, generator)
    for empty in (weight.new_empty(3, K), weight.new_empty_strided((3, K), (K, 1))):
        assert same(_zeros(empty), weight.new_zeros(3, K))
    assert same(torch.zeros_like(weight), weight.new_zeros(N, K))
    assert torch.zeros_like(weight, device="cpu").device.type == "cpu"
    assert same(torch.zeros_like(weight.t()).t(), weight.new_zeros(N, K))
    assert not torch.zeros_like(weight).dequantize().count_nonzero()
    for plain in (weight.new_zeros(5), weight.new_empty(()), torch.zeros_like(weight, dtype=torch.bool)):
        assert type(plain) is torch.Tensor
        assert plain.device == weight.device
    assert torch.equal(
        torch.zeros_like(weight, dtype=torch.bool), torch.zeros(N, K, dtype=torch.bool).to(device)
    )


def _zeros(weight):
    return weight.mapped(torch.zeros_like)
