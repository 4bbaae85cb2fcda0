"""A checkpoint that is quantised with data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aoext.calibration import CalibrationSummary, calibrate
from aoext.configs.per_module import AnyConfig
from aoext.convert.source import Checkpoint
from aoext.models.layers import quantizable, weight_name


def convert_calibrated(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    config: AnyConfig,
    data: Sequence[Path],
    *,
    quantize_embeddings: bool = False,
    **options: Any,
) -> CalibrationSummary:
    """Calibrate a checkpoint of transformers, a folder, and write it as one of aoext's.

    config: how its linear layers but the output layer and what is tied to it are quantised
    data: text files, which the checkpoint's tokenizer reads
    options: calibrate's

    Finished blocks wait in `<target>.calibration` for another call, should this one be interrupted.

    FileExistsError for a target that is there; else as convert_checkpoint and calibrate have it.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise FileExistsError(f"convert: {target} is there already")
    checkpoint = Checkpoint(source)
    if checkpoint.foreign is not None:
        raise ValueError(f"convert: {source} is quantised by {checkpoint.method} already")
    from transformers import AutoTokenizer

    names = _names(checkpoint, config, quantize_embeddings)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = type(checkpoint.model).from_pretrained(source, dtype="auto")
    summary = calibrate(
        model,
        [Path(file) for file in data],
        config,
        lambda module, name: name in names,
        tokenizer=tokenizer,
        resume_dir=f"{target}.calibration",
        quantize_embeddings=quantize_embeddings,
        **options,
    )
    model.save_pretrained(target)
    for file, obstacle in checkpoint.others():
        if obstacle is None and not (target / file.name).exists() and ".safetensors" not in file.name:
            shutil.copy2(file, target / file.name)
    return summary


def _names(checkpoint: Checkpoint, config: AnyConfig, quantize_embeddings: bool) -> set[str]:
    """The weights that from_pretrained would quantise, by the model's names."""
    from aoext.integrations.transformers import AoextConfig, AoextQuantizer

    wanted = AoextConfig(config, quantize_embeddings=quantize_embeddings)
    quantizer = AoextQuantizer(wanted, pre_quantized=False)
    model = checkpoint.model
    quantizer._process_model_before_weight_loading(model)
    return {
        weight_name(path, leaf)
        for path, module in model.named_modules()
        for leaf in quantizable(module)
        if quantizer.config_for(model, f"{path}.{leaf}") is not None
    }
