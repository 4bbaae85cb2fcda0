"""Adapters on quantised models in transformers' Trainer, and what PEFT does before it trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aoext
from aoext.tensors import QuantizedTensor
from test_transformers import llama, same_bits

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")

CONFIGS: dict[str, Any] = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=32),
    "int8": aoext.Int8WeightOnlyConfig(),
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


class Sentences(torch.utils.data.Dataset):
    """The same few sequences again and again, which a model can learn."""

    def __init__(self) -> None:
        self.ids = torch.randint(0, 96, (4, 12))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index % len(self.ids)]
        return {"input_ids": ids, "labels": ids}


def trainer(model: Any, folder: Any, data: Sentences, steps: int) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=steps,
        save_steps=8,
        logging_steps=1,
        learning_rate=2e-2,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=data)


@pytest.mark.parametrize("scheme", CONFIGS)
def test_the_trainer_trains_saves_and_resumes(tmp_path, scheme):
    llama().float().save_pretrained(tmp_path / "plain")
    data = Sentences()

    def adapted() -> Any:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "plain", quantization_config=aoext.AoextConfig(CONFIGS[scheme]), dtype=torch.float32
        )
        config = peft.LoraConfig(r=8, target_modules="all-linear", init_lora_weights="gaussian")
        torch.manual_seed(0)
        return peft.get_peft_model(model, config)

    model = adapted()
    before = {n: p.dequantize() for n, p in model.named_parameters() if isinstance(p, QuantizedTensor)}
    training = trainer(model, tmp_path / "run", data, 16)
    training.train()
    losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.3
    for name, weight in before.items():
        assert torch.equal(model.get_parameter(name).dequantize(), weight)

    resumed = trainer(adapted(), tmp_path / "run", data, 16)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    assert resumed.state.global_step == 16
    again = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
    torch.testing.assert_close(torch.tensor(again[-8:]), torch.tensor(losses[-8:]), rtol=1e-3, atol=1e-3)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(resumed.model.get_parameter(name), parameter, rtol=1e-2, atol=1e-3)

    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(adapted().unload(), tmp_path / "adapter").eval()
    ids = data.ids[:1]
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)
    merged = model.merge_and_unload(safe_merge=True)
    merged.save_pretrained(tmp_path / "merged")
    same_bits(merged, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_preparing_for_training(tmp_path, checkpointing):
    llama().save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=aoext.AoextConfig(CONFIGS["int4"]), dtype=torch.bfloat16
    )
    wanted = {
        name: parameter.to(torch.float32).dequantize()
        for name, parameter in model.named_parameters()
        if isinstance(parameter, QuantizedTensor)
    }
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.is_gradient_checkpointing == checkpointing
    for name, weight in wanted.items():
        parameter = model.get_parameter(name)
        assert isinstance(parameter, QuantizedTensor)
        assert torch.equal(parameter.dequantize(), weight)  # for activations in float32, as PEFT has them
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    adapted.train()
    ids = torch.randint(0, 96, (2, 12))
    adapted(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for p in adapted.parameters() if p.requires_grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().sum() > 0 for gradient in gradients)
