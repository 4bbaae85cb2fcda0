"""Language models of transformers and texts for them, as commands take them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from aoext.quality.text import token_windows

_DTYPES = ("auto", "bfloat16", "float16", "float32")


def of_text(default_windows: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a command that gives text to models: data, length, windows, device and dtype."""
    options = (
        click.option(
            "--data",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            multiple=True,
            required=True,
            help="A text file in UTF-8; may be given several times.",
        ),
        click.option(
            "--length", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens of a window."
        ),
        click.option(
            "--windows",
            type=click.IntRange(min=1),
            default=default_windows,
            show_default=True,
            help="The most windows, evenly spread over the text.",
        ),
        click.option("--device", default="cpu", show_default=True, help="Where models run, such as cuda."),
        click.option(
            "--dtype",
            type=click.Choice(_DTYPES),
            default="auto",
            show_default=True,
            help="The dtype of plain weights and activations; auto is the checkpoint's own.",
        ),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def load(folder: Path, device: str, dtype: str) -> nn.Module:
    """The model of a checkpoint, plain or quantised. ClickException for what transformers cannot load."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype if dtype == "auto" else getattr(torch, dtype)
        )
        moved: nn.Module = model.to(device).eval()
        return moved
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise click.ClickException(f"{folder}: {error}") from error


def windows_of(folder: Path, data: tuple[Path, ...], length: int, windows: int) -> list[Tensor]:
    """The texts in tokens of a checkpoint's tokenizer. ClickException for too short a text."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        return token_windows(data, lambda text: tokenizer(text, verbose=False), length, windows)
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error
