"""What from_pretrained is to do before it reads a model's weights. Imported with PreTrainedModel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from transformers.modeling_utils import PreTrainedModel

from aoext.integrations.transformers import AoextQuantizer, has_quantised


def _check_files(files: Sequence[str] | None) -> None:
    """ValueError for files with quantised weights of which a config.json says nothing."""
    for file in files or ():
        if has_quantised(file):
            raise ValueError(
                f"{file} has weights that aoext has quantised, of which its config.json says nothing: load "
                "it with quantization_config=aoext.AoextConfig.keep()"
            )


def _install() -> None:
    model_type: Any = PreTrainedModel
    load = model_type._load_pretrained_model  # bound to the class in older releases
    bound = isinstance(vars(model_type)["_load_pretrained_model"], classmethod)

    @functools.wraps(load)
    def loaded(model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *others: Any) -> Any:
        quantizer = load_config.hf_quantizer
        if quantizer is None:
            _check_files(checkpoint_files)
        elif isinstance(quantizer, AoextQuantizer) and torch.distributed.is_available():
            from aoext.integrations.tensor_parallel import take_whole

            take_whole(model, quantizer)
        return load(model, state_dict, checkpoint_files, load_config, *others)

    def of_class(cls: Any, *arguments: Any) -> Any:
        return loaded(*arguments)

    model_type._load_pretrained_model = classmethod(of_class) if bound else staticmethod(loaded)


_install()
