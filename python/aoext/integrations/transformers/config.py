"""AoextConfig, the quantization_config that users give to transformers and diffusers.

Imported through transformers.py, beside its quantiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers.quantizers.auto import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from aoext.configs import QuantizationConfig
from aoext.configs.per_module import PerModuleConfig, checked_schemes, in_json, scheme_of
from aoext.configs.schemes import Scheme, as_config


class _Method(str):
    """The name of a method; diffusers expects a member of an enumeration."""

    value = property(str.__str__)


METHOD = _Method("aoext")


@register_quantization_config(METHOD)
class AoextConfig(QuantizationConfigMixin):
    """How from_pretrained quantises a model's linear layers while it loads them.

    scheme: a config of aoext, such as Int4WeightOnlyConfig(group_size=32), or its name in configs.schemes:
        "int4", "int8", "float8_block", "nvfp4" and so on, in groups that fit each layer. None, as
        AoextConfig.keep() has it, for checkpoints that are quantised already, by aoext or another library:
        their weights come onto aoext's layouts without loss
    modules_to_not_convert: names of modules, or regular expressions for them, that stay as they are. If None,
        the output layer and what is tied to it.
    per_module: schemes of modules by their names, or by regular expressions that are searched in names; a
        name counts first, then the first expression that is found; None leaves a module as it is. A
        PerModuleConfig as `scheme`, such as aoext.search gives, has both.
    quantize_embeddings: whether to quantise nn.Embedding too. An output layer that shares the weight of one
        goes on sharing it, quantised, unless modules_to_not_convert names either.
    algorithm: that of all schemes, "rounding", "search" or "hqq" (docs/quality.md); each one's own, if it is
        not given.

    TypeError for what is no scheme, ValueError for unknown names. A warning tells of names and expressions
    that fit no module, and of linear layers that the scheme cannot serve.

    >>> AoextConfig("int4", per_module={r"down_proj$": "int8"}).config_for("model.layers.0.mlp.down_proj")
    Int8WeightOnlyConfig()
    """

    def __init__(
        self,
        scheme: Scheme | PerModuleConfig | None = "int4",
        modules_to_not_convert: Sequence[str] | None = None,
        per_module: Mapping[str, Scheme | None] | None = None,
        quantize_embeddings: bool = False,
        algorithm: str | None = None,
        **further: Any,
    ) -> None:
        self.quant_method = METHOD
        further.pop("quant_method", None)
        # What is known of the quantised weights of a state that comes without files.
        self.described: dict[str, Any] = further.pop("described", {})
        if further:
            raise TypeError(
                f"AoextConfig: unknown arguments {', '.join(sorted(further))}; those of a scheme go into its "
                "config, as in AoextConfig(Int4WeightOnlyConfig(group_size=32))"
            )
        if isinstance(modules_to_not_convert, str):
            raise TypeError(
                f"AoextConfig: modules_to_not_convert must be a list of names, got {modules_to_not_convert!r}"
            )
        if not isinstance(quantize_embeddings, bool):
            raise TypeError(f"AoextConfig: quantize_embeddings must be a bool, got {quantize_embeddings!r}")
        self.quantize_embeddings = quantize_embeddings
        if isinstance(scheme, PerModuleConfig):
            per_module = {**scheme.per_module, **(per_module or {})}
            scheme = scheme.scheme
        default = None if scheme is None else as_config("AoextConfig", scheme)
        whole = PerModuleConfig(default, checked_schemes("AoextConfig", per_module)).with_algorithm(algorithm)
        self.scheme, self.per_module = whole.scheme, whole.per_module
        self.modules_to_not_convert = None if modules_to_not_convert is None else list(modules_to_not_convert)

    @classmethod
    def keep(cls) -> AoextConfig:
        """For checkpoints that are quantised already; those of others that run: docs/models.md."""
        return cls(scheme=None)

    def config_for(self, module: str) -> QuantizationConfig | None:
        """The config of the module of this name; None if it stays as it is."""
        return scheme_of(module, self.scheme, self.per_module)

    # The quantization_config of a checkpoint that another library has quantised.
    foreign: Mapping[str, Any] | None = None

    def for_checkpoint_of(self, stored: Mapping[str, Any]) -> AoextConfig:
        """This config for a checkpoint that another library has quantised; ValueError but for keep()."""
        if self.scheme is not None:
            raise ValueError(
                f"the checkpoint is quantised by {stored['quant_method']} already; AoextConfig.keep() runs "
                "it on aoext's kernels"
            )
        kept = AoextConfig.keep()
        kept.foreign = stored
        return kept

    def to_dict(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return {
            "quant_method": METHOD,
            **in_json(self.scheme, self.per_module),
            "modules_to_not_convert": self.modules_to_not_convert,
            "quantize_embeddings": self.quantize_embeddings,
        }

    def to_diff_dict(self) -> dict[str, Any]:
        """The same, which older releases print."""
        return self.to_dict()
