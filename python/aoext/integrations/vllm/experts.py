"""Experts of vLLM's layers of mixtures, RoutedExperts of release 0.33."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.utils import set_weight_attrs

from aoext.integrations.vllm.fields import GLOBAL_SCALE, Fields, kind_of
from aoext.models.routing import routed
from aoext.tensors.fields import K, N
from aoext.tensors.products import linear

__all__ = ["AoextMoEMethod", "RoutedExperts", "method_of"]

# What vLLM calls the weights of all experts: gate and up, or up alone, and down.
UP, DOWN = "w13_weight", "w2_weight"

_gelu_tanh: Callable[[Tensor], Tensor] = partial(gelu, approximate="tanh")
_ACTIVATIONS: dict[MoEActivation, Callable[[Tensor], Tensor]] = {
    MoEActivation.SILU: silu,
    MoEActivation.GELU: gelu,
    MoEActivation.GELU_TANH: _gelu_tanh,
    MoEActivation.SILU_NO_MUL: silu,
    MoEActivation.GELU_NO_MUL: gelu,
    MoEActivation.GELU_TANH_NO_MUL: _gelu_tanh,
    MoEActivation.RELU2_NO_MUL: lambda rows: relu(rows).square(),
}


def method_of(layer: RoutedExperts, prefix: str, described: Mapping[str, Any]) -> AoextMoEMethod:
    """How a layer's experts run.

    described: what the checkpoint says of their quantised weights, by their names below the layer's. It has
        a weight for each expert, or the 3-D weights of all that transformers keeps
    """
    stacked = {name: weight for name, weight in _stacked_names(layer).items() if name in described}
    if stacked:
        names = {weight: [name] for name, weight in stacked.items()}
        missing = ["w13" if weight == UP else "w2" for weight in (UP, DOWN) if weight not in names]
    else:
        experts = range(layer.moe_config.num_logical_experts)
        up = [name for name in (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name) if name]
        names = {
            UP: [f"{e}.{name}.weight" for e in experts for name in up],
            DOWN: [f"{e}.{layer.ckpt_down_proj_name}.weight" for e in experts],
        }
        missing = [name for each in names.values() for name in each if name not in described]
    if missing:
        raise ValueError(
            f"aoext: {prefix}: vLLM runs experts that are all quantised, or all plain, and the checkpoint "
            f"has no quantised {missing[0]}" + (f" nor {len(missing) - 1} more" if missing[1:] else "")
        )
    unknown = described.keys() - {name for each in names.values() for name in each}
    if unknown:
        raise ValueError(f"aoext: {prefix}: vLLM's experts have no weight {min(unknown)}")
    for weight, each in names.items():
        kinds = [kind_of(prefix, described[name]) for name in each]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(
                f"aoext: {prefix}: vLLM merges all experts to {weight}, so they must be quantised alike"
            )
    descriptions = {weight: described[each[0]] for weight, each in names.items()}
    return AoextMoEMethod(layer.moe_config, prefix, descriptions, bool(stacked), _activation(layer, prefix))


def _stacked_names(layer: RoutedExperts) -> dict[str, str]:
    """Which weight a 3-D weight of all experts is, by what files, and vLLM's mappings of names, call it."""
    up = (
        ("gate_up_proj", "w13") if layer.moe_config.is_act_and_mul else ("up_proj", layer.ckpt_gate_proj_name)
    )
    return {**dict.fromkeys(up, UP), **dict.fromkeys(("down_proj", layer.ckpt_down_proj_name), DOWN)}


def _activation(layer: RoutedExperts, prefix: str) -> Callable[[Tensor], Tensor]:
    """What a layer does between its two products; ValueError for what this package does not know."""
    kind, limit = layer.activation, layer.swiglu_limit
    is_clamped = kind is MoEActivation.SILU and limit is not None
    if is_clamped or kind is MoEActivation.SWIGLUOAI_UNINTERLEAVE:
        alpha, beta = (1.0, 0.0) if is_clamped else (layer.swiglu_alpha or 1.0, layer.swiglu_beta or 0.0)
        return partial(_clamped_swiglu, limit=limit, alpha=alpha, beta=beta)
    function = _ACTIVATIONS.get(kind)
    if function is None:
        raise ValueError(f"aoext: {prefix}: experts with the activation {kind.value} do not run in vLLM yet")
    return partial(_gated, function=function) if kind.is_gated else function


def _gated(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = rows.chunk(2, dim=-1)
    return function(gate) * up


def _clamped_swiglu(rows: Tensor, limit: float, alpha: float, beta: float) -> Tensor:
    gate, up = rows.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up.clamp(-limit, limit) + beta)


class AoextMoEMethod(FusedMoEMethodBase):
    """Experts whose weights have the fields of aoext's tensors.

    While the checkpoint loads, these are parameters `w13_weight.qdata` and the like; then they become two
    quantised weights [E, N, K]. A rank has some of the experts, or a share of what lies between the two.
    """

    def __init__(
        self,
        moe: FusedMoEConfig,
        prefix: str,
        descriptions: Mapping[str, Mapping[str, Any]],
        stacked: bool,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(moe)
        self.prefix = prefix
        self.descriptions = descriptions
        self.stacked = stacked  # whether the checkpoint has 3-D weights of all experts
        self.activation = activation

    def maybe_roundup_sizes(self, hidden_size: int, intermediate_size: int, *_: Any) -> tuple[int, int]:
        """No kernel here wants columns that the checkpoint lacks."""
        return hidden_size, intermediate_size

    # Loading

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        moe = layer.moe_config
        if layer.apply_router_weight_on_input and moe.experts_per_token != 1:
            raise ValueError(
                f"aoext: {self.prefix}: the router's weights can go to the input where a token has one "
                f"expert, not {moe.experts_per_token}"
            )
        self.dtype = params_dtype
        inner, alone = intermediate_size_per_partition, moe.tp_size == 1
        up_rows = [inner] * (2 if moe.is_act_and_mul else 1)
        if self.stacked and alone:
            up_rows = [sum(up_rows)]  # blocks may go over from gate to up
        self.fields = {
            UP: self._fields(UP, up_rows, hidden_size, (alone and len(up_rows) == 1, True), num_experts),
            DOWN: self._fields(DOWN, [hidden_size], inner, (True, alone), num_experts),
        }
        for weight, fields in self.fields.items():
            attributes = {}
            for name in self.descriptions[weight]["fields"]:
                loader = partial(self._load_expert, layer, fields, name)
                attributes[name] = {**extra_weight_attrs, "weight_loader": loader}
            module = fields.parameters(attributes)
            layer.register_module(weight, module)
            # vLLM asks the layer for them by these names.
            vars(layer).update({f"{weight}.{name}": each for name, each in module.named_parameters()})
        if moe.has_bias:
            for name, size in (("w13_bias", sum(up_rows)), ("w2_bias", hidden_size)):
                empty = torch.zeros(num_experts, size, dtype=params_dtype)
                layer.register_parameter(name, nn.Parameter(empty, requires_grad=False))
                set_weight_attrs(getattr(layer, name), extra_weight_attrs)
        if self.stacked:
            layer.load_weights = partial(self._load_stacked, layer)

    def _fields(
        self, weight: str, rows: Sequence[int], columns: int, whole: tuple[bool, bool], experts: int
    ) -> Fields:
        return Fields(self.prefix, self.descriptions[weight], rows, columns, whole, [experts])

    def _load_expert(
        self,
        layer: RoutedExperts,
        fields: Fields,
        name: str,
        param: nn.Parameter,
        loaded_weight: Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        """vLLM's call for a field of one expert's gate ("w1"), up ("w3") or down ("w2")."""
        local = layer._map_global_expert_id_to_local_expert_id(expert_id)
        if local == -1:  # another rank's
            return False if return_success else None
        if fields.is_shared(name):
            fields.load_shared(param, loaded_weight)
        else:
            slot = fields.of_part(name, param.data[local], 1 if shard_id == "w3" else 0)
            dim = K if shard_id == "w2" else N
            self._copy(name, slot, self._of_rank(layer, fields, name, loaded_weight, dim))
        return True if return_success else None

    def _load_stacked(self, layer: RoutedExperts, weights: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
        """Loads fields of all experts; vLLM would halve them for gate and up along what may not be N.

        weights: by their names below the layer's
        """
        known = _stacked_names(layer)
        for key, tensor in weights:
            stem, _, name = key.partition(".")
            weight = known.get(stem.removesuffix("_bias"))
            if weight is None or (not name and not stem.endswith("_bias")):
                yield from RoutedExperts.load_weights(layer, [(key, tensor)])
            elif stem.endswith("_bias") or name == "bias":
                self._load_stacked_bias(layer, weight.replace("weight", "bias"), tensor)
                yield weight.replace("weight", "bias")
            else:
                self._load_stacked_field(layer, weight, name, tensor)
                yield f"{weight}.{name}"

    def _load_stacked_field(self, layer: RoutedExperts, weight: str, name: str, tensor: Tensor) -> None:
        fields = self.fields[weight]
        parameter = layer.get_submodule(weight).get_parameter(name)
        if fields.is_shared(name):
            fields.load_shared(parameter, tensor)
        elif name == GLOBAL_SCALE and tensor.numel() == 1:
            parameter.data.copy_(tensor)
        elif name == GLOBAL_SCALE:
            for expert, of_all_parts in enumerate(tensor.unbind()):
                local = layer._map_global_expert_id_to_local_expert_id(expert)
                if local != -1:
                    parameter.data[local].copy_(of_all_parts)
        else:
            at = fields.position(name, N)
            parts = [tensor] if at is None else tensor.chunk(len(fields.rows), at)
            for part, of_all in enumerate(parts):
                of_rank = self._of_rank(layer, fields, name, of_all, K if weight == DOWN else N)
                for expert, of_expert in enumerate(of_rank.unbind()):
                    local = layer._map_global_expert_id_to_local_expert_id(expert)
                    if local != -1:
                        self._copy(name, fields.of_part(name, parameter.data[local], part), of_expert)

    def _load_stacked_bias(self, layer: RoutedExperts, name: str, tensor: Tensor) -> None:
        if not layer.moe_config.has_bias:
            raise ValueError(
                f"aoext: {self.prefix}: the checkpoint has {name}, and vLLM's layer has no biases"
            )
        parameter = getattr(layer, name)
        for expert, bias in enumerate(tensor.unbind()):
            shards = {"w2" if name == "w2_bias" else "w1": bias}
            if name == "w13_bias" and layer.moe_config.is_act_and_mul:
                shards = dict(zip(("w1", "w3"), bias.chunk(2), strict=True))
            for shard, part in shards.items():
                RoutedExperts.weight_loader(layer, parameter, part, name, shard, expert, return_success=True)

    def _of_rank(self, layer: RoutedExperts, fields: Fields, name: str, tensor: Tensor, dim: int) -> Tensor:
        """The entries of a field that this rank has, of which ranks share the weight along `dim`."""
        ranks, at = layer.moe_config.tp_size, fields.position(name, dim)
        if ranks == 1 or at is None or name == GLOBAL_SCALE:
            return tensor
        size = tensor.shape[at] // ranks
        return tensor.narrow(at, size * layer.moe_config.tp_rank, size)

    def _copy(self, name: str, slot: Tensor, tensor: Tensor) -> None:
        if slot.shape != tensor.shape:
            raise ValueError(
                f"aoext: {self.prefix}: {name} of an expert must be {list(slot.shape)} on this rank, got "
                f"{list(tensor.shape)}"
            )
        slot.copy_(tensor)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Makes two weights of their fields."""
        for weight, fields in self.fields.items():
            made = fields.weight(layer.get_submodule(weight), self.dtype)
            for name in self.descriptions[weight]["fields"]:
                vars(layer).pop(f"{weight}.{name}")
            delattr(layer, weight)
            layer.register_parameter(weight, nn.Parameter(made, requires_grad=False))
        if self.stacked:
            del layer.load_weights
        if layer.moe_config.has_bias and layer.moe_config.tp_rank:
            layer.w2_bias.data.zero_()  # ranks' outputs are summed, and the first one's has it

    # Running

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> None:
        """None: vLLM's own kernels, which it would be for, do not run."""
        return None

    def apply(
        self,
        layer: RoutedExperts,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        """The sum of a token's experts on this rank; vLLM itself runs shared experts, and sums over ranks."""
        index = topk_ids if layer.expert_map is None else layer.expert_map[topk_ids]  # -1: another rank's
        if layer.apply_router_weight_on_input:
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        biases = (layer.w13_bias, layer.w2_bias) if layer.moe_config.has_bias else (None, None)

        def run(rows: Tensor, offsets: Tensor) -> Tensor:
            rows = linear(rows, layer.w13_weight, biases[0], offsets=offsets)
            return linear(self.activation(rows), layer.w2_weight, biases[1], offsets=offsets)

        return routed(x, index, topk_weights, layer.local_num_experts, run)
