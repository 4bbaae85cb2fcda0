"""What transformers asks while it loads and saves a model whose quantisation is aoext's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module

from aoext import checkpoints, serialization
from aoext.checkpoints.experts import Experts
from aoext.configs import QuantizationConfig
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.integrations.transformers.config import METHOD, AoextConfig
from aoext.integrations.transformers.experts import known_of
from aoext.integrations.transformers.models import (
    Conversions,
    candidates,
    conversions_of,
    expect_stored,
    has_quantised,
    leave_aside,
    let_cast,
    run_experts,
)
from aoext.integrations.transformers.weights import (
    Assemble,
    Converter,
    ExpertsConverter,
    Operation,
    OwnConverter,
    Quantize,
    Read,
)
from aoext.models.choice import refusal_of_own_forward
from aoext.models.layers import (
    as_rows,
    as_weight,
    give_classes,
    quantizable,
    quantized_weights,
    set_plain_weight,
    weight_name,
    why_never_quantized,
)
from aoext.models.summary import grouped, what_stays
from aoext.tensors import QuantizedTensor

logger = logging.getLogger(__name__)


@register_quantizer(METHOD)
class AoextQuantizer(HfQuantizer):
    """The quantiser that from_pretrained makes of an AoextConfig."""

    quantization_config: AoextConfig
    requires_calibration = False

    def __init__(self, quantization_config: AoextConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        # Names of modules that stay as they are, and what the checkpoint says of its quantised weights.
        self.left_alone: list[str] = []
        self.descriptions: dict[str, Any] = dict(quantization_config.described)
        self.stored: dict[str, Tensor] = {}  # without values, by the model's names
        self.dtypes: dict[str, torch.dtype] = {}
        foreign = quantization_config.foreign
        self.reader = None if foreign is None else checkpoints.reader_for(foreign)
        # The tensors of the checkpoint's layers, and which of these make a weight of experts.
        self.parts: dict[str, dict[str, str]] = {}
        self.experts: dict[str, Experts] = {}
        self.places: set[str] = set()  # names of the model's parameters, with and without its prefix
        self.tied: Mapping[str, str] = {}  # names of weights that are those of other names
        self.metadata: dict[str, str] = {}  # of the files that are being saved
        # How ranks share the weights that they quantise, by tensor parallel plans.
        self.distributions: dict[str, Any] = {}

    is_trainable = True  # adapters beside the weights
    is_compileable = True

    def is_serializable(self, **_: Any) -> bool:
        return True

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is not None and dtype not in FLOAT_DTYPES:
            raise ValueError(f"AoextConfig: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype_name(dtype)}")
        return dtype

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_: Any) -> bool:
        return self.config_for(model, param_name) is not None

    def config_for(self, model: nn.Module, param_name: str) -> QuantizationConfig | None:
        """The config of a parameter that is to be quantised; None for others."""
        path, _, leaf = param_name.rpartition(".")
        module = model.get_submodule(path)
        config = self.asked_for(path, module, leaf)
        return config if config is not None and self._obstacle(module, leaf, config) is None else None

    def asked_for(self, path: str, module: nn.Module, leaf: str) -> QuantizationConfig | None:
        """The config that is given for a module's parameter; None for one that is to stay as it is."""
        if leaf not in quantizable(module):
            return None
        if isinstance(module, nn.Embedding) and not self.quantization_config.quantize_embeddings:
            return None
        name = weight_name(path, leaf)
        if not all(should_convert_module(each, self.left_alone) for each in {path, name}):
            return None
        return self.quantization_config.config_for(name)

    def _obstacle(self, module: nn.Module, leaf: str, config: QuantizationConfig) -> str | None:
        """Why a module's parameter cannot be quantised so; None if it can."""
        return (
            why_never_quantized(module)
            or config.obstacle(as_rows(module, getattr(module, leaf)))
            or refusal_of_own_forward(module, config)
        )

    def param_element_size(self, model: nn.Module, param_name: str, param: Tensor) -> float:
        """Bytes that a parameter takes for each element, by which device_map="auto" divides a model."""
        form = self.form_of(model, param_name)
        return param.element_size() if form is None else form.stored_bytes / param.numel()

    def form_of(self, model: nn.Module, param_name: str) -> QuantizedTensor | None:
        """The quantised weight that a parameter becomes, on the meta device; None for others."""
        if self.pre_quantized:
            name = next((name for name in candidates(model, param_name) if name in self.descriptions), "")
            description = self.descriptions.get(name)
            if description is None or f"{name}.qdata" not in self.stored:
                return None
            keys = [f"{name}.{field}" for field in description["fields"]]
            fields = {key: self.stored[key] for key in keys if key in self.stored}
            return serialization.assembled(name, description, fields)
        config = self.config_for(model, param_name)
        if config is None:
            return None
        module, leaf = get_module_from_name(model, param_name)
        return as_weight(module, config.form(as_rows(module, getattr(module, leaf))))

    # Loading

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, **_: Any
    ) -> None:
        self.left_alone = self._modules_to_leave_alone(model)
        self.tied = getattr(model, "all_tied_weights_keys", None) or {}
        if not self.pre_quantized:
            self._tell_apart(model, any(map(has_quantised, checkpoint_files or ())))
        if not self.pre_quantized:
            self.warn(model)
        if self.pre_quantized:
            in_model = conversions_of(model).renamed
            for file in checkpoint_files or ():
                if self.reader is None:
                    described = serialization.descriptions_in(file)
                    self.descriptions |= described | {in_model(name): d for name, d in described.items()}
                    forms = serialization.forms_in(file).items()
                    self.stored.update({in_model(name): form for name, form in forms})
                else:
                    self.reader.read_metadata(serialization.metadata_of(file))
                    self.dtypes |= expect_stored(model, serialization.forms_in(file))
        if self.reader is not None:
            files = checkpoint_files or ()
            self.experts = checkpoints.check_files(self.reader, files, model.dtype, known_of(model))
            self.parts = self.reader.layers(key for file in files for key in serialization.names_in(file))
            names = (name for name, _ in model.named_parameters(remove_duplicate=False))
            self.places = {each for name in names for each in candidates(model, name)}
            leave_aside(model, self.reader.left_aside)
            for note in self.reader.notes:
                logger.warning("AoextConfig: %s", note)

    def _modules_to_leave_alone(self, model: Any) -> list[str]:
        named = self.quantization_config.modules_to_not_convert
        left = self.get_modules_to_not_convert(model, named, model._keep_in_fp32_modules)
        if not self.quantization_config.quantize_embeddings:
            return left
        modules = dict(model.named_modules())
        if named is None:
            return [name for name in left if not isinstance(modules.get(name), nn.Embedding)]
        input, output = model.get_input_embeddings(), model.get_output_embeddings()
        names = {id(module): name for name, module in modules.items()}
        tied = model.config.get_text_config().tie_word_embeddings and id(output) in names
        if tied and not should_convert_module(names[id(output)], left):
            left.append(names[id(input)])  # whose weight the output layer has
        return left

    def _tell_apart(self, model: Any, quantised: bool) -> None:
        """Whether the files beside a config that says nothing of it are quantised by aoext."""
        config = self.quantization_config
        keep = config.scheme is None and not any(config.per_module.values())
        # Where transformers itself does not look.
        foreign = checkpoints.settings_in(
            {"compression_config": getattr(model.config, "compression_config", None)}
        )
        if keep and foreign is not None:
            self.reader, quantised = checkpoints.reader_for(foreign), True
        if keep and not quantised:
            raise ValueError(
                "AoextConfig.keep() is for checkpoints that are quantised already; this one is not, or "
                'by a method that transformers does not know. AoextConfig("int4") quantises it'
            )
        if quantised and not keep:
            raise ValueError("the checkpoint is quantised by aoext already; AoextConfig.keep() loads it")
        self.pre_quantized = quantised

    def warn(self, model: nn.Module) -> None:
        """Warn of names that fit no module, of layers that cannot be quantised as they are to be, and of what
        stays if it is much.
        """
        modules = dict(model.named_modules())
        weights = [(path, module, leaf) for path, module in modules.items() for leaf in quantizable(module)]
        names = [*modules, *(weight_name(path, leaf) for path, _, leaf in weights if leaf != "weight")]
        config = self.quantization_config
        for what, patterns, fits in (
            ("modules_to_not_convert", config.modules_to_not_convert or (), _is_left_alone),
            ("per_module", config.per_module, re.search),
        ):
            for pattern in patterns:
                if not any(fits(pattern, name) for name in names):
                    logger.warning("AoextConfig: %s has %r, which fits no module", what, pattern)
        refused: dict[str, str] = {}
        chosen: list[str] = []
        for path, module, leaf in weights:
            name, asked = weight_name(path, leaf), self.asked_for(path, module, leaf)
            if asked is not None and (reason := self._obstacle(module, leaf, asked)) is not None:
                refused[name] = reason
            elif asked is not None:
                chosen.append(name)
        for layers, reason in grouped(refused):
            logger.warning("AoextConfig: %s: not quantised: %s", layers, reason)
        if not chosen:
            logger.warning("AoextConfig: %s has no layer that is quantised", type(model).__name__)
        for line in what_stays(model, chosen, refused, self.tied):
            logger.warning("AoextConfig: %s", line)

    def dtype_of(self, model: Any, name: str) -> torch.dtype:
        """The dtype that a parameter has in the model, whatever the file has."""
        return self.dtypes.get(name) or model.get_parameter(name).dtype

    def get_quantize_ops(self) -> ConversionOps:
        return Quantize(self)

    def get_weight_conversions(self) -> list[WeightConverter]:
        if not self.pre_quantized:
            return []
        if self.reader is not None:
            # The longest first: older releases take the first pattern that begins a name.
            names = sorted(self.reader.names, key=len, reverse=True)
            return [OwnConverter(names, "weight", operations=[Read(self)])]
        fields = sorted({name for kind in serialization.TENSOR_TYPES.values() for name in kind.fields})
        leaves = {"weight", *(name.rpartition(".")[2] for name in self.descriptions)}
        return [
            Converter([f"{leaf}.{name}" for name in fields], leaf, operations=[Assemble(self)])
            for leaf in sorted(leaves, key=len, reverse=True)  # the first that fits the end of a name counts
        ]

    def update_weight_conversions(self, weight_conversions: Any, model: Any = None) -> Any:
        """What transformers does to a model's tensors comes last, for it would take fields for experts."""
        own: list[WeightConverter] = self.get_weight_conversions()
        if self.experts:
            own.insert(0, ExpertsConverter(self, Conversions(weight_conversions)))
        return [*own, *weight_conversions]

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        give_classes(model)
        run_experts(model)
        let_cast(model)
        # save_pretrained would undo what was done to load; get_state_dict_and_metadata does that.
        model._weight_conversions = [
            conversion
            for conversion in getattr(model, "_weight_conversions", None) or []
            if not any(isinstance(op, Operation) for op in getattr(conversion, "operations", ()))
        ]
        return model

    def describes(self, model: Any, stored_as: str, name: str) -> Any:
        """What the checkpoint says of a weight, by its name there or, as transformers saves, the model's."""
        for candidate in (stored_as, *candidates(model, name)):
            if candidate in self.descriptions:
                return self.descriptions[candidate]
        raise ValueError(f"{name}: the checkpoint's metadata does not say how it is quantised")

    # Saving, and the way back

    def get_state_dict_and_metadata(self, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
        state = model.state_dict()
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        for name, tensor in list(state.items()):
            if tensor.is_meta and tied.get(name) in state:
                del state[name]  # which from_pretrained ties again
            elif tensor.is_meta:
                state[name] = self._offloaded(model, name, tensor)
            elif name in self.distributions:
                state[name] = self.distributions[name].whole(tensor)
        fields, self.metadata = serialization.flattened(state)
        return fields, self.metadata

    def _offloaded(self, model: nn.Module, name: str, tensor: Tensor) -> Tensor:
        """A tensor that accelerate keeps for a model; plain ones stay there where transformers gets them."""
        from aoext.integrations.accelerate import offloaded

        stored = offloaded(model, name)
        places = getattr(model, "hf_device_map", {}).values()
        gets_plain = "cpu" in places or "disk" in places
        return tensor if gets_plain and not isinstance(stored, QuantizedTensor) else stored

    def _dequantize(self, model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        for module in model.modules():
            for name, weight in list(quantized_weights(module)):
                plain = weight.dequantize() if dtype is None else weight.dequantize().to(dtype)
                set_plain_weight(module, nn.Parameter(plain, requires_grad=False), name)
        return model


def _is_left_alone(pattern: str, name: str) -> bool:
    return not should_convert_module(name, [pattern])


def adopt(model: nn.Module) -> None:
    """Have save_pretrained know models, or parts of `model`, whose weights were quantised in place."""
    from transformers.modeling_utils import PreTrainedModel

    inside: set[int] = set()
    for part in model.modules():
        if not isinstance(part, PreTrainedModel) or id(part) in inside:
            continue
        inside.update(map(id, part.modules()))
        known = getattr(part, "hf_quantizer", None) is not None
        if not known and any(isinstance(p, QuantizedTensor) for p in part.parameters()):
            kept = AoextConfig.keep()
            part.hf_quantizer = AoextQuantizer(kept, pre_quantized=True)
            part.config.quantization_config = kept
            part.quantization_method, part.is_quantized = METHOD, True
            run_experts(part)
            let_cast(part)
