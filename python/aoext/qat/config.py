"""QATConfig, with torchao's name and steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aoext.configs.base import check_bool
from aoext.configs.per_module import AnyConfig, PerModuleConfig
from aoext.configs.schemes import as_config

STEPS = ("prepare", "convert")


@dataclass(frozen=True)
class QATConfig:
    """A step of quantisation-aware training, for quantize_, as torchao's class of this name.

    base_config: the scheme to train for, any of aoext's, by its config or name. In the step "convert" it may
        be left out: layers become plain ones then, with the weights that were trained
    step: "prepare" before training, "convert" after it
    learn_scales: in the step "prepare", whether scales train too, and zero points where the scheme has them:
        as parameters `weight_scale` and `weight_offset` beside `weight`, which begin at what rounding takes.
        Else they follow from the weight at every step

    A base_config that searches for scales does so in every forward, but where scales train.
    activation_config and weight_config, torchao's for schemes of one's own, are not taken.

    >>> QATConfig("int4", step="prepare").step
    'prepare'
    """

    base_config: AnyConfig | Any = None
    activation_config: None = field(default=None, repr=False)
    weight_config: None = field(default=None, repr=False)
    step: Literal["prepare", "convert"] = "prepare"
    learn_scales: bool = False

    def with_algorithm(self, algorithm: str | None) -> QATConfig:
        """This step with another algorithm of its scheme, where one is given."""
        if algorithm is None or self.base_config is None:
            return self
        return replace(self, base_config=self.base_config.with_algorithm(algorithm))

    def __post_init__(self) -> None:
        for name in ("activation_config", "weight_config"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"QATConfig: {name} is not taken: base_config says how weights and activations are "
                    "quantised, such as Int8DynamicActivationInt4WeightConfig(group_size=32)"
                )
        step = str(getattr(self.step, "value", self.step)).lower()
        if step not in STEPS:
            raise ValueError(f"QATConfig: step must be one of {', '.join(STEPS)}, got {self.step!r}")
        object.__setattr__(self, "step", step)
        check_bool("QATConfig", "learn_scales", self.learn_scales)
        if self.base_config is None and step == "prepare":
            raise ValueError('QATConfig: base_config must be given for step="prepare"')
        if self.learn_scales and step == "convert":
            raise ValueError('QATConfig: learn_scales is for step="prepare"')
        if self.base_config is not None and not isinstance(self.base_config, PerModuleConfig):
            object.__setattr__(self, "base_config", as_config("QATConfig", self.base_config))
