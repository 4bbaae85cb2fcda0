"""A GGUF file as a folder that from_pretrained loads: the model and the tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import aoext
from aoext.convert import Conversion
from aoext.tensors import QuantizedTensor


def convert_gguf(source: Path, target: Path, dtype: torch.dtype = torch.bfloat16) -> Conversion:
    """Write the model of a GGUF file as a checkpoint of aoext; dtype as for load_gguf, with its errors.

    FileExistsError for a target that is there. Where transformers cannot make the tokenizer, a note says why.
    """
    if target.exists():
        raise FileExistsError(f"convert: {target} is there already")
    model = aoext.load_gguf(source, dtype=dtype)
    from transformers import AutoTokenizer

    done = Conversion("gguf", bytes_before=source.stat().st_size)
    for name, parameter in model.named_parameters():
        (done.quantised if isinstance(parameter, QuantizedTensor) else done.others).append(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as folder:
        made = Path(folder) / target.name  # whole before it is where others find it
        model.save_pretrained(made)
        done.bytes_after = sum(file.stat().st_size for file in made.glob("*.safetensors"))
        try:
            AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(made)
        except Exception as error:  # whatever is wrong in a vocabulary
            done.notes.append(f"no tokenizer: {type(error).__name__}: {error}")
        made.rename(target)
    return done
