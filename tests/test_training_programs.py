"""Other libraries' programs train adapters on quantised models as they do on plain ones: TRL, Lightning.

transformers' Trainer is in test_training.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import aoext
from aoext.models.experts import expert_weights
from aoext.tensors import QuantizedTensor
from moe_models import build
from test_peft import CONFIGS
from test_transformers import llama

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

STEPS = 24
# How much of the fall of float's loss a quantised model's must be, and may be.
BAND = (0.8, 1.25)


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def lora(model: Any, **options: Any) -> Any:
    """Adapters on all that is linear, experts included."""
    targets: dict[str, Any] = {"target_modules": "all-linear"}
    if any(expert_weights(module) for module in model.modules()):
        targets = {
            "target_modules": ["q_proj", "v_proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        }
    return peft.LoraConfig(r=8, task_type="CAUSAL_LM", **targets, **options)


def plain_model(kind: str, generator: torch.Generator) -> Any:
    return llama().float() if kind == "llama" else build(kind, generator)


def quantised(plain: Any, scheme: str) -> Any:
    model = copy.deepcopy(plain)
    aoext.quantize_(model, CONFIGS[scheme])
    return model


def fell_alike(losses: list[float], plain: list[float]) -> None:
    ours, theirs = (each[0] - sum(each[-4:]) / 4 for each in (losses, plain))
    assert theirs > 0.5
    assert BAND[0] * theirs < ours < BAND[1] * theirs


def resumed_alike(again: list[float], losses: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(again), torch.tensor(losses[-len(again) :]), rtol=1e-2, atol=1e-2)


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 96)}}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>")


@pytest.mark.parametrize(("kind", "scheme"), [("llama", "nf4"), ("llama", "int4"), ("qwen3", "int4")])
def test_trls_trainer(kind, scheme, tmp_path, generator):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    sentences = torch.randint(2, 96, (4, 12), generator=generator).tolist()
    data = datasets.Dataset.from_dict({"text": [" ".join(f"w{i}" for i in s) for s in sentences] * 16})
    plain = plain_model(kind, generator)

    def trainer(model: Any) -> Any:
        options = trl.SFTConfig(
            output_dir=str(tmp_path / "run"),
            per_device_train_batch_size=4,
            max_steps=STEPS,
            save_steps=STEPS // 2,
            logging_steps=1,
            learning_rate=2e-2,
            lr_scheduler_type="constant",
            gradient_checkpointing=True,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            max_length=32,
        )
        torch.manual_seed(0)
        return trl.SFTTrainer(
            model=model,
            args=options,
            train_dataset=data,
            processing_class=tokenizer(),
            peft_config=lora(model),
        )

    def losses(training: Any) -> list[float]:
        return [entry["loss"] for entry in training.state.log_history if "loss" in entry]

    float_training = trainer(copy.deepcopy(plain))
    float_training.train()
    training = trainer(quantised(plain, scheme))
    before = {
        n: p.dequantize() for n, p in training.model.named_parameters() if isinstance(p, QuantizedTensor)
    }
    assert before
    training.train()
    fell_alike(losses(training), losses(float_training))
    for name, weight in before.items():
        assert torch.equal(training.model.get_parameter(name).dequantize(), weight)
    again = trainer(quantised(plain, scheme))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{STEPS // 2}"))
    resumed_alike(losses(again)[-STEPS // 2 :], losses(training))


def lightning_trainer(steps: int, folder: Any, **options: Any) -> Any:
    """Lightning's for so many steps, which writes what it is told to write alone."""
    return pytest.importorskip("lightning").Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


@pytest.mark.parametrize(("kind", "scheme"), [("llama", "int8"), ("mixtral", "nvfp4")])
def test_lightning(kind, scheme, tmp_path, generator):
    lightning = pytest.importorskip("lightning")
    ids = torch.randint(0, 96, (64, 12), generator=generator)[torch.arange(64) % 4]
    plain = plain_model(kind, generator)

    class Module(lightning.LightningModule):
        def __init__(self, model: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = peft.get_peft_model(model, lora(model))
            self.losses: list[float] = []

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss = self.model(input_ids=batch, labels=batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=2e-2)

    def fit(model: Any, steps: int = STEPS, start: Any = None) -> Any:
        module = Module(model)
        trainer = lightning_trainer(steps, tmp_path)
        loader = torch.utils.data.DataLoader(ids, batch_size=4, shuffle=False)
        trainer.fit(module, loader, ckpt_path=start, **({"weights_only": False} if start else {}))
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return module

    theirs, ours = fit(copy.deepcopy(plain)), fit(quantised(plain, scheme))
    fell_alike(ours.losses, theirs.losses)
    half = fit(quantised(plain, scheme), STEPS // 2)
    assert half.losses == ours.losses[: STEPS // 2]
    again = fit(quantised(plain, scheme), STEPS, tmp_path / f"{STEPS // 2}.ckpt")
    resumed_alike(again.losses, ours.losses)
    merged = again.model.merge_and_unload()
    assert merged(ids[:1]).logits.isfinite().all()
