"""Checkpoints of AutoRound whose integers are packed as GPTQ's or AWQ's are; layers may have own settings."""

from __future__ import annotations

from aoext.checkpoints.base import Reader
from aoext.checkpoints.gptq import AwqReader, GptqReader
from aoext.checkpoints.settings import Settings

# What packing_format says; older files have it in `backend`, with the kernels that were to run it behind.
_ZEROS_MINUS_ONE = ("auto", "gptq", "auto_gptq", "auto_round:gptq", "auto_round:auto_gptq")
_ZEROS_AS_THEY_ARE = ("auto_round", "auto_round:gptqmodel", "gptqmodel")
_AWQ = ("awq", "auto_awq", "auto_round:awq", "auto_round:auto_awq")
# What AutoRound packs as GPTQ's are.
_BITS = (2, 3, 4, 8)
_KERNELS = {"exllama", "exllamav2", "triton", "tritonv2", "cuda", "marlin", "gemm"}

_ACTIVATIONS_AS_THEY_ARE = (16, 32, None)


def auto_round_reader(settings: Settings) -> Reader:
    """The reader for a checkpoint's packing; ValueError, which names the setting, for others."""
    settings.choice("data_type", ("int",), "int")
    settings.choice("act_bits", _ACTIVATIONS_AS_THEY_ARE)
    key = "packing_format" if "packing_format" in settings else "backend"
    first, *others = settings.text(key, "auto").split(":")
    packing = ":".join((first, *(part for part in others if part not in _KERNELS)))
    own = settings.objects("extra_config")
    if packing in _AWQ:
        return AwqReader(settings, own)
    if packing in (*_ZEROS_MINUS_ONE, *_ZEROS_AS_THEY_ARE):
        return GptqReader(settings, own, packing in _ZEROS_MINUS_ONE, _BITS)
    allowed = (*_ZEROS_MINUS_ONE, *_ZEROS_AS_THEY_ARE, *_AWQ)
    settings.refuse(key, f"one of {', '.join(map(repr, allowed))} to run on aoext")
