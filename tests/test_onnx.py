"""ONNX: models with quantised layers as DequantizeLinear and MatMul, run by onnxruntime."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aoext
from aoext.reference import randn
from aoext.tensors import TENSOR_TYPES
from formats import LARGEST_CODES

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=16),
    "int8": aoext.Int8WeightOnlyConfig(),
    "int8 dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "float8 dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(),
    "int4 under int8, dynamic": aoext.Int8DynamicActivationInt4WeightConfig(16),
    "int4 under float8, dynamic": aoext.Float8DynamicActivationInt4WeightConfig(16),
    "float8 block": aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([20, 24])),
    "float8 block, dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(
        granularity=(aoext.PerBlock([1, 20]), aoext.PerBlock([20, 24]))
    ),
    "mxfp8, dynamic": aoext.MXDynamicActivationMXWeightConfig(),
    "mxfp4": aoext.MXFP4WeightOnlyConfig(),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
    "nf4": aoext.NF4WeightOnlyConfig(),
    "nf4 nested": aoext.NF4WeightOnlyConfig(block_size=16, double_quantization=True),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_quantised_model_runs_in_onnxruntime(name, bias, tmp_path, generator):
    model = nn.Sequential(nn.Linear(64, 48, bias=bias), nn.ReLU(), nn.Linear(48, 8, bias=bias)).eval()
    aoext.quantize_(model, CONFIGS[name])
    x = randn(generator, 3, 64)
    # Another rounding of an activation now and then.
    assert_runs(model, x, tmp_path, bound=1e-2 if "dynamic" in name else 1e-5)


@pytest.mark.parametrize("format", LARGEST_CODES)
def test_groups_of_every_width_run_in_onnxruntime(format, tmp_path, generator):
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)).eval()
    kind = TENSOR_TYPES[f"{format.capitalize()}Tensor"]
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(kind.from_hp(layer.weight.detach(), [1, 16]), requires_grad=False)
    assert_runs(model, randn(generator, 3, 64), tmp_path, bound=1e-5)


def assert_runs(model, x, tmp_path, bound):
    """In onnxruntime, with this error at most; both products with weights that are quantised."""
    program = torch.onnx.export(
        model, (x,), dynamo=True, opset_version=21, custom_translation_table=aoext.onnx.translations()
    )
    nodes = [node.op_type for node in program.model.graph]
    assert nodes.count("MatMul") == 2
    if not isinstance(model[0].weight, aoext.Lut4Tensor):  # whose values are gathered from their table
        assert nodes.count("DequantizeLinear") == 2
    program.save(tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = model(x).detach()
    error = (torch.from_numpy(result) - expected).norm() / expected.norm()
    assert error < bound


def test_an_export_without_the_table_names_it():
    model = nn.Sequential(nn.Linear(64, 48)).eval()
    aoext.quantize_(model, CONFIGS["int8"])
    with pytest.raises(
        torch.onnx.OnnxExporterError, match=r"weight_only_linear.*=aoext\.onnx\.translations\(\) has it"
    ):
        torch.onnx.export(model, (torch.randn(3, 64),), dynamo=True, opset_version=21)
