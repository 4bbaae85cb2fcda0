"""A decoder of Llama 3 8B's shape in bfloat16 and quantised: tokens per second, prefill, whose kernels run.

    python benchmarks/llama.py --device cuda

Weights are random and made layer by layer, so that no more memory is needed than the quantised model and
one layer take. On CUDA whole steps run as replays of one CUDA graph; what stands between the linear layers
(norms, rotary embedding, attention, SwiGLU, sampling) is PyTorch's own and the same for both, so it narrows
the gap between them. --compile fuses it by torch.compile before the capture, --no-passes without aoext's own
passes; --split gives q, k, v, gate and up linears of their own, as most checkpoints have them, and --merge
makes one again of int4's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import click
import torch
import torch._inductor.config
from rich import box
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import aoext
from aoext.cli.clocks import Candidate
from aoext.cli.devices import Device
from aoext.cli.options import JSON_FILE, CountsType, DeviceType
from aoext.cli.report import console, environment, progress_line, summary_line
from aoext.cli.timing import interleaved

OURS = "aoext::cuda"  # the namespace of our kernels, as the profiler names them
LISTED = 12  # kernels in the JSON
ROPE_BASE = 500_000.0

# What is done to the linear layers, by group size; int8 and float8 quantise activations as they come.
SCHEMES: dict[str, Callable[[int], Any] | None] = {
    "bf16": None,
    "int4": lambda group_size: aoext.Int4WeightOnlyConfig(group_size=group_size),
    "int8": lambda group_size: aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": lambda group_size: aoext.Float8DynamicActivationFloat8WeightConfig(),
}


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder; those of Llama 3 8B if not given."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 128256

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Linears(nn.Module):
    """Linears of one input, their results side by side: what one linear of all their rows gives."""

    def __init__(self, inputs: int, outputs: list[int], **where: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(inputs, n, bias=False, **where) for n in outputs)

    def forward(self, x: Tensor) -> Tensor:
        results = [part(x) for part in self.parts]
        return torch.cat(results, dim=-1) if len(results) > 1 else results[0]


class Block(nn.Module):
    """One layer: attention and a gated MLP, with q, k and v fused, and gate and up, or `split`."""

    def __init__(self, c: Config, split: bool = False, **where: Any) -> None:
        super().__init__()
        self.c = c
        self.attention_norm = nn.RMSNorm(c.hidden, eps=1e-5, **where)
        heads = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        self.qkv = Linears(c.hidden, heads if split else [sum(heads)], **where)
        self.out = nn.Linear(c.hidden, c.hidden, bias=False, **where)
        self.mlp_norm = nn.RMSNorm(c.hidden, eps=1e-5, **where)
        self.gate_up = Linears(c.hidden, [c.ffn, c.ffn] if split else [2 * c.ffn], **where)
        self.down = nn.Linear(c.ffn, c.hidden, bias=False, **where)

    def forward(
        self, x: Tensor, cache: Tensor, position: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """x [B, T, hidden]; cache [2, B, kv_heads, context, head_dim]; position [T]; mask [1, context]."""
        c, (B, T, _) = self.c, x.shape
        heads = self.qkv(self.attention_norm(x)).view(B, T, -1, c.head_dim)
        qk, v = heads.split([c.heads + c.kv_heads, c.kv_heads], dim=2)
        cosine, sine = rotation
        qk = torch.addcmul(qk * cosine, qk.roll(c.head_dim // 2, -1), sine)
        q, k, v = (t.transpose(1, 2) for t in (*qk.split([c.heads, c.kv_heads], dim=2), v))
        cache[0].index_copy_(2, position, k)
        cache[1].index_copy_(2, position, v)
        if T == 1:
            y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask, enable_gqa=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, c.hidden))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """A decoder with random weights; `quantise` is applied to each layer as soon as it is made."""

    def __init__(
        self,
        c: Config,
        device: torch.device,
        dtype: torch.dtype,
        quantise: Callable[[nn.Module, bool], None],
        split: bool = False,
    ) -> None:
        super().__init__()
        self.c = c
        where = {"device": device, "dtype": dtype}

        def made(layer: nn.Module, is_head: bool) -> nn.Module:
            for parameter in layer.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            quantise(layer, is_head)
            return layer

        self.embedding = nn.Embedding(c.vocab, c.hidden, **where)
        self.blocks = nn.ModuleList(made(Block(c, split, **where), False) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.hidden, eps=1e-5, **where)
        self.head = made(nn.Linear(c.hidden, c.vocab, bias=False, **where), True)
        frequencies = ROPE_BASE ** (-torch.arange(0, c.head_dim, 2, device=device) / c.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def new_cache(self, batch: int, context: int) -> list[Tensor]:
        """Keys and values of every layer, random as if there had been a prompt."""
        c, like = self.c, self.embedding.weight
        sizes = (2, batch, c.kv_heads, context, c.head_dim)
        return [torch.randn(sizes, dtype=like.dtype, device=like.device) for _ in self.blocks]

    def forward(self, tokens: Tensor, position: Tensor, cache: list[Tensor]) -> Tensor:
        """Logits [B, vocab] of the last of the tokens [B, T] at `position` [T]; T = 1 sees all before it."""
        x = self.embedding(tokens)
        angles = position[:, None, None] * self.frequencies
        # The halves of a head are the two coordinates that turn; the other one comes by roll.
        cosine = angles.cos().repeat(1, 1, 2)
        sine = torch.cat([-angles.sin(), angles.sin()], dim=-1)
        rotation = (cosine.to(x.dtype), sine.to(x.dtype))
        mask = (torch.arange(cache[0].shape[3], device=position.device) <= position[-1])[None]
        for block, of_layer in zip(self.blocks, cache, strict=True):
            x = block(x, of_layer, position, rotation, mask)
        return self.head(self.norm(x[:, -1]))

    def weight_bytes(self) -> int:
        """What one step reads of the weights."""
        return sum(
            getattr(parameter, "stored_bytes", None) or parameter.nbytes
            for name, parameter in self.named_parameters()
            if not name.startswith("embedding")
        )


@dataclass
class Measured:
    """One batch of steps, or one prefill."""

    seconds: float
    tokens: int
    clock: str  # how it was timed
    ours: float | None  # the share of the GPU's busy time that goes to our kernels; None if not known
    busy: float | None  # the GPU's busy time as a share of `seconds`
    kernels: dict[str, float]  # those that take most of the busy time, with their shares
    launches: float | None = None  # kernels that one call starts on the GPU

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Scheme:
    """What was measured of the model in one number format."""

    name: str
    weight_bytes: int = 0
    decode: dict[int, Measured] = field(default_factory=dict)  # by batch
    prefill: Measured | None = None


def profile(run: Callable[[], Any]) -> tuple[dict[str, float], int]:
    """Seconds that the GPU spends in each kernel, by name, and how many ran; empty where none is seen."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        run()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    launches = 0
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.time_range.elapsed_us() / 1e6
            launches += 1
    return times, launches


def measure(device: Device, call: Callable[[], Any], tokens: int, seconds: float) -> Measured:
    """The typical time of a call that gives so many tokens; on CUDA from replays of a graph of it."""
    call()  # compiles
    timing = interleaved({"": Candidate(lambda: call)}, device, seconds)[""]
    ours, busy, kernels, launches = None, None, {}, None
    if device.device.type == "cuda":
        counted: list[float] = []
        # The first replay of a burst is no sample, but it is profiled.
        found, events = profile(lambda: counted.extend(timing.clock.samples()))
        total = sum(found.values())
        if total and counted:
            replays = (len(counted) + 1) * timing.clock.calls
            ours = sum(seconds for name, seconds in found.items() if OURS in name) / total
            busy = total / replays / timing.seconds
            launches = events / replays
            most = sorted(found, key=found.__getitem__, reverse=True)[:LISTED]
            kernels = {name: found[name] / total for name in most}
    return Measured(timing.seconds, tokens, timing.clock.way, ours, busy, kernels, launches)


def decode(model: Decoder, device: Device, batch: int, context: int, seconds: float, fused: bool) -> Measured:
    """Steps of one token for each sequence: forward, the likeliest token, on to the next position."""
    where = device.device
    tokens = torch.randint(model.c.vocab, (batch, 1), device=where)
    position = torch.full((1,), context // 2, device=where)
    cache = model.new_cache(batch, context)

    def step() -> None:
        tokens.copy_(model(tokens, position, cache).argmax(-1, keepdim=True))
        position.add_(1).remainder_(context)

    return measure(device, torch.compile(step) if fused else step, batch, seconds)


def prefill(model: Decoder, device: Device, length: int, seconds: float, fused: bool) -> Measured:
    """One prompt at once, up to its last token's logits."""
    tokens = torch.randint(model.c.vocab, (1, length), device=device.device)
    position = torch.arange(length, device=device.device)
    cache = model.new_cache(1, length)

    def step() -> Tensor:
        return model(tokens, position, cache)

    return measure(device, torch.compile(step) if fused else step, length, seconds)


def quantiser(scheme: str, group_size: int, with_head: bool) -> Callable[[nn.Module, bool], None]:
    """What a scheme does to a layer."""
    config = SCHEMES[scheme]

    def quantise(layer: nn.Module, is_head: bool) -> None:
        if config is not None and (with_head or not is_head):
            summary = aoext.quantize_(layer, config(group_size))
            if summary.skipped:
                raise click.UsageError(f"{scheme}: {next(iter(summary.skipped.values()))}")

    return quantise


def run(
    schemes: Iterator[str] | tuple[str, ...],
    device: Device,
    config: Config,
    batches: tuple[int, ...],
    context: int,
    prompt: int,
    options: dict[str, Any],
) -> list[Scheme]:
    """All measurements, one model after the other."""
    results = []
    seconds, fused = options["seconds"], options["compile"]
    for name in schemes:
        torch.manual_seed(options["seed"])
        progress_line(f"{name}: making {config.layers} layers")
        model = Decoder(
            config,
            device.device,
            torch.bfloat16,
            quantiser(name, options["group_size"], options["quantise_head"]),
            options["split"],
        )
        scheme = Scheme(name, model.weight_bytes())
        for batch in batches:
            progress_line(f"{name}: decode, batch {batch}")
            scheme.decode[batch] = decode(model, device, batch, context, seconds, fused)
            device.release_memory()
        if prompt:
            progress_line(f"{name}: prefill of {prompt}")
            scheme.prefill = prefill(model, device, prompt, seconds, fused)
        results.append(scheme)
        del model
        device.release_memory()
    return results


def table(results: list[Scheme], prompt: int) -> Table:
    """A line for each scheme."""
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    view.add_column("weights")
    view.add_column("GB", justify="right")
    for batch in results[0].decode:
        view.add_column(f"batch {batch}\ntokens/s", justify="right")
        view.add_column("\nours", justify="right")
        view.add_column("\nkernels", justify="right")
    if prompt:
        view.add_column(f"prefill of {prompt}\nms", justify="right")
        view.add_column("\ntokens/s", justify="right")
        view.add_column("\nours", justify="right")
    first = results[0]
    for scheme in results:
        cells = [scheme.name, f"{scheme.weight_bytes / 1e9:.2f}"]
        for batch, measured in scheme.decode.items():
            cells += [_against(measured, first.decode[batch], scheme is first), _share(measured)]
            cells.append("–" if measured.launches is None else f"{measured.launches:.0f}")
        if scheme.prefill and first.prefill:
            against = _against(scheme.prefill, first.prefill, scheme is first)
            cells += [f"{scheme.prefill.seconds * 1e3:.2f}", against, _share(scheme.prefill)]
        view.add_row(*cells)
    return view


def _against(measured: Measured, first: Measured, is_first: bool) -> str:
    ratio = "" if is_first else f" ({first.seconds / measured.seconds:.2f}×)"
    return f"{measured.tokens_per_s:,.0f}{ratio}"


def _share(measured: Measured) -> str:
    return "–" if measured.ours is None else f"{measured.ours:.0%}"


def as_json(
    results: list[Scheme], config: Config, options: dict[str, Any], where: dict[str, Any]
) -> dict[str, Any]:
    """schema "aoext.llama/1"; environment; config; settings; results, each with its times in seconds."""

    def measured(m: Measured | None) -> dict[str, Any] | None:
        return m and {**asdict(m), "tokens_per_s": m.tokens_per_s}

    return {
        "schema": "aoext.llama/1",
        "environment": where,
        "config": asdict(config),
        "settings": options,
        "results": [
            {
                "name": scheme.name,
                "weight_bytes": scheme.weight_bytes,
                "decode": {batch: measured(m) for batch, m in scheme.decode.items()},
                "prefill": measured(scheme.prefill),
            }
            for scheme in results
        ],
    }


def _sizes(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each size of the model."""
    for size in reversed(fields(Config)):
        name = f"--{size.name.replace('_', '-')}"
        option = click.option(name, type=click.IntRange(min=1), default=size.default, show_default=True)
        command = option(command)
    return command


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--device", type=DeviceType(), default="cpu", show_default=True)
@click.option(
    "--scheme",
    "schemes",
    type=click.Choice(list(SCHEMES)),
    multiple=True,
    default=tuple(SCHEMES),
    show_default=True,
)
@click.option("--batch", "batches", type=CountsType(), default="1,8,32", show_default=True)
@click.option(
    "--context",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Positions of the static cache, all of which a decoding step reads.",
)
@click.option("--prompt", type=click.IntRange(min=0), default=2048, show_default=True, help="0: no prefill.")
@click.option("--group-size", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--quantise-head", is_flag=True, help="The last layer, over the vocabulary, too.")
@click.option("--compile", is_flag=True, help="Fuse what stands between the linear layers.")
@click.option("--passes/--no-passes", default=True, help="With --compile: aoext's own passes.")
@click.option("--merge", is_flag=True, help="With --compile: merge int4 linears of one input.")
@click.option("--split", is_flag=True, help="q, k, v, gate and up each in a linear of its own.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_path", type=JSON_FILE, default="out/llama.json", show_default=True)
@_sizes
def main(
    device: Device,
    schemes: tuple[str, ...],
    batches: tuple[int, ...],
    context: int,
    prompt: int,
    json_path: Path,
    **options: Any,
) -> None:
    config = Config(**{size.name: options.pop(size.name) for size in fields(Config)})
    if config.hidden % config.heads or config.heads % config.kv_heads or config.head_dim % 2:
        raise click.UsageError("heads must divide hidden into even sizes, and kv-heads must divide heads")
    out, where = console(), environment(device)
    out.print(summary_line(where))
    passes = "with" if options["passes"] else "without"
    compiled = f"compiled {passes} aoext's passes"
    between = compiled if options["compile"] else "PyTorch's eager kernels, the same for all"
    out.print(f"{config}\nbetween the linear layers: {between}; a cache of {context} positions")
    with (
        torch.inference_mode(),
        aoext.inductor.patch(enabled=options["passes"], merge_linears=options["merge"]),
        torch._inductor.config.patch(freezing=options["merge"]),
    ):
        results = run(schemes, device, config, batches, context, prompt, options)
    out.print(table(results, prompt))
    clocks = {m.clock for scheme in results for m in scheme.decode.values()}
    out.print(f"timed by {', '.join(sorted(clocks))}; ours: share of the GPU's busy time in {OURS}")
    content = as_json(results, config, {**options, "context": context, "prompt": prompt}, where)
    json_path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    out.print(f"JSON   {json_path}")


if __name__ == "__main__":
    main()
