"""The overload `out` of every operator, as ExecuTorch looks it up and as a program calls it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torchgen.model import FunctionSchema, SchemaKind

from aoext.formats.table import Code
from aoext.reference import CALLS, Problem, moved
from conftest import compiler_for
from formats import KIND_OF, OPERATORS, call_of_any

ao = torch.ops.ao
N, K, M = 64, 64, 3
BF16 = torch.bfloat16


Call = tuple[list[Any], dict[str, Any]]


def call_of(operator: str, device: torch.device, generator: torch.Generator) -> Call:
    """Fresh arguments of an operator."""
    given, options = call_of_any(KIND_OF[operator], Problem(M, N, K, 16), generator)
    return [moved(argument, device) for argument in given], options


def results_of(result) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def named(results) -> dict[str, Tensor]:
    """Results by the names of the arguments for them."""
    if len(results) == 1:
        return {"out": results[0]}
    return {f"out{i}": result for i, result in enumerate(results)}


def out_of(operator: str):
    return getattr(ao, operator).out


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_schema_finds_its_out_variant_as_executorch_looks_it_up(operator):
    found = torch._C._jit_get_schemas_for_operator(f"ao::{operator}")
    schemas = [FunctionSchema.parse(str(schema)) for schema in found]
    kinds = {schema.kind(): schema for schema in schemas}
    assert kinds.keys() == {SchemaKind.functional, SchemaKind.out}
    ours, theirs = (dataclasses.replace(schema.signature(), returns=()) for schema in kinds.values())
    assert ours == theirs
    assert kinds[SchemaKind.out].name.overload_name == "out"
    outs = [argument.name for argument in kinds[SchemaKind.out].arguments.out]
    assert len(outs) == len(kinds[SchemaKind.functional].returns)


@pytest.mark.parametrize("layout", ["as it is", "empty", "larger", "strided"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_results_are_written_into_out(operator, layout, device, generator):
    given, options = call_of(operator, device, generator)
    expected = results_of(getattr(ao, operator)(*given, **options))
    outs = {}
    for name, result in named(expected).items():
        shape = list(result.shape)
        if layout == "strided":
            outs[name] = torch.empty(*shape, 2, dtype=result.dtype, device=device)[..., 0]
        else:
            shape[0] = {"as it is": shape[0], "empty": 0, "larger": shape[0] + 5}[layout]
            outs[name] = torch.zeros(shape, dtype=result.dtype, device=device)
    versions = [out._version for out in outs.values()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        returned = results_of(out_of(operator)(*given, **options, **outs))
    for out, back, result, version in zip(outs.values(), returned, expected, versions, strict=True):
        assert back is out
        assert out.shape == result.shape
        assert torch.equal(out.cpu().float(), result.cpu().float())
        assert out._version > version
    if layout == "larger":
        assert any("was resized" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("operator", OPERATORS)
def test_another_dtype_of_out_raises_before_anything_is_written(operator, device, generator):
    given, options = call_of(operator, device, generator)
    outs = {
        name: torch.zeros(result.shape, dtype=torch.float64, device=device)
        for name, result in named(results_of(getattr(ao, operator)(*given, **options))).items()
    }
    with pytest.raises(RuntimeError, match=rf"ao::{operator}\.out: out0? must be .* got float64 on"):
        out_of(operator)(*given, **options, **outs)
    assert not any(out.any() for out in outs.values())


@pytest.mark.parametrize("operator", OPERATORS)
def test_fake_tensors_and_bad_arguments(operator, device, generator):
    given, options = call_of(operator, device, generator)
    expected = results_of(getattr(ao, operator)(*given, **options))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in given]
        outs = {name: torch.empty(0, dtype=r.dtype, device=device) for name, r in named(expected).items()}
        for out, result in zip(results_of(out_of(operator)(*fake, **options, **outs)), expected, strict=True):
            assert (out.shape, out.dtype, out.device) == (result.shape, result.dtype, result.device)
    outs = {name: torch.empty_like(result) for name, result in named(expected).items()}
    with pytest.raises(RuntimeError, match=rf"ao::{operator}: "):
        out_of(operator)(given[0][:0, :0], *given[1:], **options, **outs)


def test_out_may_be_an_argument(device, generator):
    x, weight, scale = CALLS["weight_only_linear int8"](Problem(M, N, K, 16), generator).on(device)[:3]
    expected = ao.weight_only_linear(x, weight, scale, code=Code.INT8)
    ao.weight_only_linear.out(x, weight, scale, out=x, code=Code.INT8)
    assert torch.equal(x, expected)


def test_out_and_gradients_exclude_each_other(device, generator):
    x, weight, scale = CALLS["weight_only_linear int8"](Problem(M, N, K, 16), generator).on(device)[:3]
    out = torch.empty(M, N, dtype=BF16, device=device)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="no argument may require gradients"):
        ao.weight_only_linear.out(x, weight, scale, out=out, code=Code.INT8)
    with torch.no_grad():
        ao.weight_only_linear.out(x, weight, scale, out=out, code=Code.INT8)
    assert torch.equal(out, ao.weight_only_linear(x.detach(), weight, scale, code=Code.INT8))


def test_compiled_code_writes_into_out(device, generator):
    torch._dynamo.reset()
    x, weight, scale = CALLS["weight_only_linear int8"](Problem(M, N, K, 16), generator).on(device)[:3]
    out = torch.zeros(M, N, dtype=BF16, device=device)

    def write(x, out):
        ao.weight_only_linear.out(x, weight, scale, out=out, code=Code.INT8)
        return out + 1

    y = torch.compile(write, fullgraph=True, backend=compiler_for(device))(x, out)
    assert torch.equal(out, ao.weight_only_linear(x, weight, scale, code=Code.INT8))
    assert torch.equal(y, out + 1)
