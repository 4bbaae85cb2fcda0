"""Quantised weights in torch.distributed: DTensor, parallelize_module, fully_shard, checkpoints, DDP."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from torch import nn

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import aoext
from aoext import flatten_state_dict
from aoext.models.layers import set_weight
from aoext.reference import assert_close, randn
from aoext.tensors import BlockwiseTensor, QuantizedTensor
from formats import (
    CLASSES,
    FORMATS,
    GROUP_SIZE,
    HIGH_PRECISION,
    SLICED,
    bits,
    product,
    quantized,
    same,
)
from ranks import BACKENDS, Ranks

BF16, FP16, FP32 = HIGH_PRECISION
SIZE = 2
N, K = 24, 2 * SIZE * GROUP_SIZE


@pytest.fixture(scope="module", params=BACKENDS)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if request.param == "cuda" and torch.cuda.device_count() < SIZE:
        pytest.skip("needs two CUDA devices")
    ranks = Ranks(request.param, SIZE)
    yield ranks
    ranks.close()


@pytest.fixture
def seed(generator: torch.Generator) -> int:
    return generator.initial_seed()


class Here:
    """What a check begins with in a rank: random numbers, the same in all of them, and the rank's device."""

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rank = mesh.get_rank()
        self.device = torch.device(mesh.device_type, 0 if mesh.device_type == "cpu" else self.rank)

    def randn(self, *shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
        return randn(self.generator, *shape, dtype=dtype).to(self.device)

    def weight(self, format: str, rows: int = N, columns: int = K, dtype: torch.dtype = FP32):
        return quantized(format, rows, columns, dtype, self.device, self.generator)

    def model(self, format: str, dtype: torch.dtype = FP32) -> nn.Sequential:
        """K -> 2K -> N."""
        layers = nn.Linear(K, 2 * K, device=self.device), nn.Linear(2 * K, N, device=self.device)
        for layer in layers:
            weight = self.weight(format, *layer.weight.shape, dtype=dtype)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            layer.bias = nn.Parameter(self.randn(*layer.bias.shape, dtype=dtype))
        return nn.Sequential(layers[0], nn.SiLU(), layers[1])


def parallelized(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, **options: object) -> nn.Sequential:
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh, **options)
    return model


# How a model's weights may lie in a process group, by the name of it.
ARRANGEMENTS = {
    "plain": lambda model, mesh: model,
    "parallel": parallelized,
    "sharded": fully_sharded,
}


def local_weights(model: nn.Sequential) -> list[QuantizedTensor]:
    """The parts of a model's quantised weights that this rank has."""
    weights = [model[i].weight.detach() for i in (0, 2)]
    return [weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights]


def assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    """What the same operations gave, which round and add up in another order."""
    assert_close(result.detach()[None], expected.detach().cpu().double()[None], slack=4)


def _distribute(mesh, seed, format, rows, dim):
    here = Here(mesh, seed)
    weight = here.weight(format, rows)
    shards = weight.chunk(SIZE, dim)
    own = weight if here.rank == 0 else here.weight(format, rows)  # rank 0 has the say
    sharded = distribute_tensor(own, mesh, [Shard(dim)])
    assert isinstance(sharded, DTensor)
    assert same(sharded.to_local(), shards[here.rank])
    assert same(
        distribute_tensor(weight, mesh, [Shard(dim)], src_data_rank=None).to_local(), shards[here.rank]
    )
    assert same(
        DTensor.from_local(shards[here.rank], mesh, [Shard(dim)], run_check=False).to_local(),
        sharded.to_local(),
    )
    assert same(distribute_tensor(own, mesh, [Replicate()]).to_local(), weight)
    if dim == 1 and format == "int4_prescaled":
        with pytest.raises(ValueError, match="cat along N needs the same act_pre_scale in all weights"):
            sharded.full_tensor()
    else:
        assert same(sharded.full_tensor(), weight)


@pytest.mark.parametrize(
    ("format", "rows", "dim"),
    [
        *((format, *place) for format in SLICED for place in ((N, 0), (N + 1, 0), (N, 1))),
        ("nf4_nested", 256, 0),  # 64 rows of 4 groups are a block of nested scales
    ],
)
def test_weights_are_sharded_and_put_together(format, rows, dim, ranks, seed):
    ranks(_distribute, seed, format, rows, dim)


def _parallelize(mesh, seed, format, dtype):
    here = Here(mesh, seed)
    model = here.model(format, dtype)
    parallel = parallelized(copy.deepcopy(model), mesh)
    weights = [model[0].weight.detach(), model[2].weight.detach()]
    for i in (0, 2):
        parallel[i].weight.requires_grad_(False)  # older versions of PyTorch give all shards gradients
    assert same(parallel[0].weight.to_local(), weights[0].chunk(SIZE, 0)[here.rank])
    assert same(parallel[2].weight.to_local(), weights[1].chunk(SIZE, 1)[here.rank])
    for shape in ((K,), (3, K), (2, 3, K)):
        x = here.randn(*shape, dtype=dtype).requires_grad_()
        y = parallel(x)
        upstream = here.randn(*y.shape, dtype=dtype)
        y.backward(upstream)

        # Each rank quantises and rounds its own part. Sums in another order could change a code of its input.
        pairs = zip(weights[0].chunk(SIZE, 0), model[0].bias.chunk(SIZE), strict=True)
        hidden = [nn.functional.linear(x, w, b).detach() for w, b in pairs]
        assert_close(torch.cat(hidden, -1), product(x, weights[0], model[0].bias))
        parts = zip(map(nn.functional.silu, hidden), weights[1].chunk(SIZE, 1), strict=True)
        expected = sum(product(a, w) for a, w in parts) + model[2].bias.detach().cpu().double()
        assert_close(y.detach(), expected, slack=SIZE if dtype is not FP32 else 1)

        twin = x.detach().clone().requires_grad_()
        model(twin).backward(upstream)
        assert_near(x.grad, twin.grad)
        for i in (0, 2):
            assert_near(parallel[i].bias.grad.full_tensor(), model[i].bias.grad)
            assert parallel[i].weight.grad is None


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("format", SLICED)
def test_parallelize_module_multiplies_shards(format, dtype, ranks, seed):
    ranks(_parallelize, seed, format, dtype)


def _embed(mesh, seed, format):
    here = Here(mesh, seed)
    layer = nn.Embedding(N, K, device=here.device)
    set_weight(layer, nn.Parameter(here.weight(format), requires_grad=False))
    tokens = torch.randint(0, N, (3, 5), generator=here.generator).to(here.device)
    expected = layer(tokens)
    styles = (RowwiseParallel(input_layouts=Replicate()), ColwiseParallel(output_layouts=Replicate()))
    for style, dim in zip(styles, (0, 1), strict=True):
        parallel = parallelize_module(copy.deepcopy(layer), mesh, style)
        assert same(parallel.weight.to_local(), layer.weight.detach().chunk(SIZE, dim)[here.rank])
        assert torch.equal(parallel(tokens), expected)
    fully_shard(layer, mesh=mesh)
    assert torch.equal(layer(tokens), expected)


@pytest.mark.parametrize("format", [f for f in SLICED if f != "int4_prescaled"])
def test_embeddings_are_looked_up_in_shards(format, ranks, seed):
    ranks(_embed, seed, format)


def _compile(mesh, seed, format):
    here = Here(mesh, seed)
    torch._dynamo.reset()
    parallel = parallelized(here.model(format), mesh)
    compiled = torch.compile(parallel, backend="aot_eager", fullgraph=True)
    x = here.randn(3, K)
    torch.testing.assert_close(compiled(x), parallel(x).detach().requires_grad_(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format", CLASSES)
def test_parallel_modules_compile(format, ranks, seed):
    ranks(_compile, seed, format)


def _checkpoint(mesh, seed, format, path):
    here = Here(mesh, seed)

    def parallel():
        return parallelized(here.model(format), mesh)

    def load(model, name):
        state = model.state_dict()
        dcp.load(state, checkpoint_id=path / name)
        model.load_state_dict(state)
        return model

    first, plain = parallel(), here.model(format)
    dcp.save(first.state_dict(), checkpoint_id=path / "parallel")
    dcp.save(plain.state_dict(), checkpoint_id=path / "plain")
    again = load(parallel(), "parallel")
    assert all(same(again[i].weight.to_local(), first[i].weight.to_local()) for i in (0, 2))
    again = load(here.model(format), "plain")
    assert all(same(again[i].weight, plain[i].weight) for i in (0, 2))
    x = here.randn(3, K)
    own = first[0].weight.to_local()
    if own.global_scale is not None:
        with pytest.raises(BaseException, match="into a part of a weight cannot change its global_scale"):
            load(here.model(format), "parallel")
    elif not own.blocks_are_rows:  # but groups, which lie within each shard
        whole = load(here.model(format), "parallel")
        # Rows of activations are quantised by the part that a rank has.
        if getattr(plain[0].weight, "activation", None) is None:
            torch.testing.assert_close(whole(x), first(x), rtol=1e-4, atol=1e-4)
        assert same(whole[2].weight.chunk(SIZE, 1)[here.rank], first[2].weight.to_local())
    else:
        with pytest.raises(BaseException, match="copy_ into a slice along K cannot change its scale"):
            load(here.model(format), "parallel")
    again = load(parallel(), "plain")
    assert all(
        same(again[i].weight.to_local(), plain[i].weight.chunk(SIZE, i // 2)[here.rank]) for i in (0, 2)
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", [f for f in SLICED if f != "int4_prescaled"])
def test_distributed_checkpoints_hold_shards(format, ranks, seed, tmp_path):
    ranks(_checkpoint, seed, format, tmp_path)


def _async_save(mesh, seed, format, path):
    here = Here(mesh, seed)
    for name, arrange in ARRANGEMENTS.items():
        model = arrange(here.model(format), mesh)
        expected = copy.deepcopy(local_weights(model))
        saving = dcp.async_save(model.state_dict(), checkpoint_id=path / name)
        for weight in local_weights(model):  # what trains meanwhile changes nothing in what was staged
            weight.qdata.zero_()
        saving.result()
        again = arrange(here.model(format), mesh)
        state = again.state_dict()
        dcp.load(state, checkpoint_id=path / name)
        again.load_state_dict(state)
        assert all(same(*pair) for pair in zip(local_weights(again), expected, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", SLICED)
def test_checkpoints_are_saved_beside_the_training(format, ranks, seed, tmp_path):
    ranks(_async_save, seed, format, tmp_path)


def _resharded_fields(mesh, seed, format, path, save, load):
    here = Here(mesh, seed)
    model = here.model(format)
    if save == "one rank":
        if here.rank == 0:
            dcp.save(flatten_state_dict(model.state_dict()), checkpoint_id=path / "torch", no_dist=True)
        torch.distributed.barrier()
    else:
        state = flatten_state_dict(ARRANGEMENTS[save](copy.deepcopy(model), mesh).state_dict())
        dcp.save(state, checkpoint_id=path / "torch")
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))
        if here.rank == 0:
            dcp_to_torch_save(path / "torch", path / "state.pt")
            plain = flatten_state_dict(model.state_dict())
            stored = torch.load(path / "state.pt", weights_only=True)
            assert stored.keys() == plain.keys()
            assert all(torch.equal(bits(stored[name]), bits(plain[name].cpu())) for name in plain)
    if load == "one rank":
        if here.rank == 0:
            again = here.model(format)
            reader = HuggingFaceStorageReader(path)
            dcp.load(flatten_state_dict(again.state_dict()), storage_reader=reader, no_dist=True)
            assert all(same(again[i].weight, model[i].weight) for i in (0, 2))
        torch.distributed.barrier()
        return
    again = ARRANGEMENTS[load](here.model(format), mesh)
    dcp.load(flatten_state_dict(again.state_dict()), checkpoint_id=path / "torch")
    expected = ARRANGEMENTS[load](model, mesh)
    assert all(same(*pair) for pair in zip(local_weights(again), local_weights(expected), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("save", "load"),
    [
        ("one rank", "parallel"),
        ("one rank", "sharded"),
        ("parallel", "one rank"),
        ("sharded", "one rank"),
        ("parallel", "sharded"),
        ("sharded", "parallel"),
    ],
)
@pytest.mark.parametrize("format", [*CLASSES, "int4_prescaled"])
def test_checkpoints_of_fields_load_into_any_number_of_ranks(format, save, load, ranks, seed, tmp_path):
    pytest.importorskip("safetensors")
    ranks(_resharded_fields, seed, format, tmp_path, save, load)


def _fully_shard(mesh, seed, format, param_dtype):
    here = Here(mesh, seed)
    model = here.model(format)
    policy = MixedPrecisionPolicy(param_dtype=param_dtype)
    sharded = fully_sharded(copy.deepcopy(model), mesh, mp_policy=policy)
    for i in (0, 2):
        assert same(sharded[i].weight.to_local(), model[i].weight.chunk(SIZE)[here.rank])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, sharded)]
    for _ in range(3):
        x = here.randn(4, K)
        twin = copy.deepcopy(model).to(param_dtype)  # fully_shard keeps what it trains in float32
        expected, y = twin(x.to(param_dtype)), sharded(x)
        assert y.dtype is expected.dtype
        assert_near(y, expected)
        for result, optimizer in ((expected, optimizers[0]), (y, optimizers[1])):
            optimizer.zero_grad()
            result.square().mean().backward()
        for i in (0, 2):
            model[i].bias.grad = twin[i].bias.grad.to(FP32)
            assert_near(sharded[i].bias.grad.full_tensor().to(param_dtype), twin[i].bias.grad)
            assert sharded[i].weight.grad is None
        for optimizer in optimizers:
            optimizer.step()
    for i in (0, 2):
        assert same(sharded[i].weight.full_tensor(), model[i].weight)


@pytest.mark.parametrize("param_dtype", [FP32, BF16])
@pytest.mark.parametrize("format", SLICED)
def test_fully_shard_trains_what_is_beside_frozen_weights(format, param_dtype, ranks, seed):
    ranks(_fully_shard, seed, format, param_dtype)


def _fully_shard_meta(mesh, seed, format):
    here = Here(mesh, seed)
    model = here.model(format)
    x = here.randn(3, K)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    for policy in (OffloadPolicy(), CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")):
        sharded = fully_sharded(copy.deepcopy(model).to("meta"), mesh, offload_policy=policy)
        sharded.to_empty(device="cpu" if isinstance(policy, CPUOffloadPolicy) else here.device)
        set_model_state_dict(sharded, model.state_dict(), options=StateDictOptions(full_state_dict=True))
        assert_near(sharded(x), model(x))
        state = get_model_state_dict(sharded, options=whole)
        if here.rank == 0:
            assert all(same(state[f"{i}.weight"], model[i].weight.cpu()) for i in (0, 2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", SLICED)
def test_meta_models_are_sharded_and_loaded(format, ranks, seed):
    ranks(_fully_shard_meta, seed, format)


def _broadcast_state(mesh, seed, format):
    here = Here(mesh, seed)
    model = here.model(format)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    for arrange in ARRANGEMENTS.values():
        other = arrange(here.model(format), mesh)
        set_model_state_dict(other, model.state_dict() if here.rank == 0 else {}, options=options)
        expected = arrange(copy.deepcopy(model), mesh)
        assert all(same(*pair) for pair in zip(local_weights(other), local_weights(expected), strict=True))
        x = here.randn(3, K)
        assert torch.equal(other(x), expected(x))
    sharded = fully_sharded(copy.deepcopy(model).to("meta"), mesh)
    set_model_state_dict(sharded, model.state_dict() if here.rank == 0 else {}, options=options)
    assert torch.equal(sharded(x), fully_sharded(copy.deepcopy(model), mesh)(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", SLICED)
def test_rank_0_has_the_state_of_all(format, ranks, seed):
    ranks(_broadcast_state, seed, format)


def _accelerate_in_rank_0(mesh, seed, format):
    from accelerate.utils import fsdp_utils

    here = Here(mesh, seed)
    model, others = here.model(format), here.model(format)
    sharded = fully_sharded(copy.deepcopy(model).to("meta"), mesh)
    own = model if here.rank == 0 else others
    accelerator = SimpleNamespace(is_main_process=here.rank == 0, device=here.device)
    fsdp_utils.fsdp2_load_full_state_dict(accelerator, sharded, own.state_dict())
    x = here.randn(3, K)
    assert torch.equal(sharded(x), fully_sharded(copy.deepcopy(model), mesh)(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", CLASSES)
def test_accelerate_loads_in_rank_0_alone(format, ranks, seed):
    pytest.importorskip("accelerate")
    ranks(_accelerate_in_rank_0, seed, format)


def _fully_shard_uneven(mesh, seed, format):
    here = Here(mesh, seed)
    layer = nn.Linear(K, N + 1, device=here.device)
    layer.weight = nn.Parameter(here.weight(format, N + 1), requires_grad=False)
    fully_shard(layer, mesh=mesh)
    with pytest.raises(
        ValueError, match=re.escape(f"as many whole rows of each weight on every rank, got [{N + 1}, {K}]")
    ):
        layer(here.randn(3, K))


@pytest.fixture(scope="module")
def ranks_apart() -> Iterator[Ranks]:
    """For what raises within FSDP, which leaves state unfinished that no other test is to meet."""
    ranks = Ranks("cpu", SIZE)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("format", CLASSES)
def test_fully_shard_names_rows_that_ranks_cannot_share(format, ranks_apart, seed):
    ranks_apart(_fully_shard_uneven, seed, format)


CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=GROUP_SIZE),
    "int8_dynamic": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8WeightOnlyConfig(),
    "block_float8_dynamic": aoext.Float8DynamicActivationFloat8WeightConfig(
        granularity=(aoext.PerBlock([1, 16]), aoext.PerBlock([8, 16]))
    ),
    "nvfp4": aoext.NVFP4WeightOnlyConfig(),
}
ALONG_K = ("int4", "block_float8_dynamic")  # what has scales of its own there


def _quantize_shards(mesh, seed, format):
    here = Here(mesh, seed)
    model = nn.Sequential(nn.Linear(K, 2 * K), nn.SiLU(), nn.Linear(2 * K, N)).to(here.device)
    for parameter in model.parameters():
        parameter.data = here.randn(*parameter.shape)
    parallel = parallelized(copy.deepcopy(model), mesh)
    expected = parallelized(copy.deepcopy(model), mesh)
    summary = aoext.quantize_(parallel, CONFIGS[format])
    if format == "nvfp4":
        one = (
            "ranks have parts of a weight that needs one global scale: quantise before the weight is sharded"
        )
        assert summary.skipped == {"0": one, "2": one}
        return
    along_k = "ranks have parts of rows, which need one scale: quantise before the weight is sharded"
    assert summary.skipped == ({} if format in ALONG_K else {"2": along_k})
    rows, columns = 2 * K // SIZE, K
    assert summary.layers[0].shape == (rows, columns)
    assert summary.layers[0].bytes_before == 4 * rows * columns
    for i in (0, 2) if format in ALONG_K else (0,):
        part = expected[i].weight.to_local().detach()
        assert same(parallel[i].weight.to_local().detach(), CONFIGS[format].quantize(part))
        assert not parallel[i].weight.requires_grad
        whole = CONFIGS[format].quantize(model[i].weight.detach())
        assert same(parallel[i].weight.full_tensor(), whole)
        expected[i].weight = nn.Parameter(
            distribute_tensor(whole, mesh, expected[i].weight.placements), False
        )
    x = here.randn(3, K)
    assert torch.equal(
        parallel(x).full_tensor() if isinstance(parallel(x), DTensor) else parallel(x), expected(x)
    )

    cut = aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([K // 2 + 1, K]))
    blocks = parallelize_module(nn.Linear(K, 2 * K, device=here.device), mesh, ColwiseParallel())
    assert "ranks have parts of blocks" in aoext.quantize_(blocks, cut).skipped[""]
    uneven = parallelize_module(nn.Linear(K, N + 1, device=here.device), mesh, ColwiseParallel())
    assert "unlike parts on 2 ranks" in aoext.quantize_(uneven, CONFIGS[format]).skipped[""]
    for run in (False, True):  # whole weights are in their places behind a forward pass
        sharded = fully_shard(nn.Linear(K, N, device=here.device), mesh=mesh)
        if run:
            sharded(x)
        assert "FSDP has sharded its weight" in aoext.quantize_(sharded, CONFIGS[format]).skipped[""]
        sharded(x)


@pytest.mark.parametrize("format", CLASSES)
def test_quantize_takes_shards_or_tells_why_not(format, ranks, seed):
    ranks(_quantize_shards, seed, format)


def _blocks_of_rows(mesh, seed):
    here = Here(mesh, seed)
    weight = BlockwiseTensor.from_hp(here.randn(32, K), [8, 16], input_block=[1, 16])
    for dim in (0, 1):
        sharded = distribute_tensor(weight, mesh, [Shard(dim)])
        assert same(sharded.to_local(), weight.chunk(SIZE, dim)[here.rank])
        assert same(sharded.full_tensor(), weight)
    with pytest.raises(ValueError, match="must begin and end on group boundaries"):
        distribute_tensor(weight[:24], mesh, [Shard(0)], src_data_rank=None)
    layer = nn.Linear(K, 32, bias=False, device=here.device)
    set_weight(layer, nn.Parameter(BlockwiseTensor.from_hp(here.randn(32, K), [8, 16]), requires_grad=False))
    x = here.randn(3, K)
    expected = layer(x)
    fully_shard(layer, mesh=mesh)
    assert_near(layer(x), expected)


def test_blocks_of_several_rows_are_sharded_on_their_borders(ranks, seed):
    ranks(_blocks_of_rows, seed)


def _fully_sharded_data_parallel(mesh, seed, format):
    here = Here(mesh, seed)

    def wrapped(model, **options):
        options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
        return FullyShardedDataParallel(model, **options)

    with pytest.raises(NotImplementedError, match="among its ignored_states; fully_shard shards them"):
        wrapped(here.model(format))
    model = here.model(format)
    frozen = [model[i].weight for i in (0, 2)]
    twin = copy.deepcopy(model)
    sharded = wrapped(model, ignored_states=frozen)
    x = here.randn(3, K)
    y = sharded(x)
    assert_near(y, twin(x))
    y.square().mean().backward()


@pytest.mark.filterwarnings("ignore")
def test_the_older_fsdp_says_what_to_do(ranks_apart, seed):
    ranks_apart(_fully_sharded_data_parallel, seed, "int4")


def _data_parallel(mesh, seed, format, options):
    here = Here(mesh, seed)
    model = here.model(format)
    others = here.model(format)  # of which rank 0 has the say where DistributedDataParallel synchronises
    own = others if here.rank and options.get("init_sync", True) else model
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(own), **options)
    for result, expected in zip(parallel.module.parameters(), model.parameters(), strict=True):
        if isinstance(expected, QuantizedTensor):
            assert same(result, expected)
        else:
            assert torch.equal(result, expected)
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, lr=0.0)
    for _ in range(2):
        batches = [here.randn(3, K) for _ in range(SIZE)]
        parallel(batches[here.rank]).square().mean().backward()
        for batch in batches:  # alone, so that its rows are quantised to the very codes of its rank
            (model(batch).square().mean() / SIZE).backward()
        optimizer.step()
        for i in (0, 2):
            assert_near(parallel.module[i].bias.grad, model[i].bias.grad)
            assert same(parallel.module[i].weight.detach(), model[i].weight.detach())


@pytest.mark.parametrize("options", [{}, {"init_sync": False}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("format", FORMATS)
def test_data_parallel_trains_what_is_beside_frozen_weights(format, options, ranks, seed):
    ranks(_data_parallel, seed, format, options)


def _flat(mesh, seed, format):
    here = Here(mesh, seed)
    weight, other = here.weight(format), here.weight(format)
    flat = torch._C._nn.flatten_dense_tensors([weight, other])
    assert same(flat[N * K :].view(N, K), other)
    before = copy.deepcopy(weight)
    weight.qdata.zero_()
    assert same(flat[: N * K].view(N, K), before)
    for whole in (
        weight,
        here.model(format)[0].weight.detach()[:N],
    ):  # the second shares memory with other rows
        alone = torch._C._nn.flatten_dense_tensors([whole if here.rank == 0 else torch.zeros_like(whole)])
        torch.distributed.broadcast(alone, 0)
        assert same(alone.view(whole.shape), whole)
    bias = here.randn(5).requires_grad_()
    vector = torch.nn.utils.parameters_to_vector([nn.Parameter(before, False), bias])
    assert same(vector[: N * K].view(N, K).detach(), before)
    assert torch.equal(vector[N * K :], bias)
    for refused in (lambda: flat[1:], lambda: flat.view(2 * N, K), lambda: flat + 1, weight.flatten().sum):
        with pytest.raises(NotImplementedError, match=r"view\(-1\) of a quantised weight"):
            refused()
    with pytest.raises(NotImplementedError, match="another dtype"):
        torch.cat([weight.view(-1), here.randn(3, dtype=BF16)])


@pytest.mark.parametrize("format", CLASSES)
def test_weights_that_are_flat_can_be_broadcast_alone(format, ranks, seed):
    ranks(_flat, seed, format)


ACCELERATED = """
import accelerate, aoext, torch

accelerator = accelerate.Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)  # rank 0 has the say
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Linear(64, 32))
aoext.quantize_(model, aoext.Int4WeightOnlyConfig(group_size=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(torch.randn(16, 64), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    accelerator.backward(model(x).square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
plain = accelerator.unwrap_model(model)
trained = plain[0].bias.detach().clone()
accelerator.save_state("state", safe_serialization=False)
accelerator.wait_for_everyone()
with torch.no_grad():
    plain[0].bias.zero_()
    plain[0].weight.qdata.zero_()
accelerator.load_state("state")
assert torch.equal(plain[0].bias, trained)
assert plain[0].weight.qdata.any()
ours = torch.cat([plain[0].weight.dequantize().flatten(), plain[0].bias.detach()])
of_ranks = accelerator.gather(ours[None])
print(torch.equal(*of_ranks), flush=True)
accelerator.end_training()
"""


def test_accelerate_prepares_models_on_two_ranks(tmp_path):
    pytest.importorskip("accelerate")
    _run_ranks(ACCELERATED, tmp_path)


def test_the_example_of_the_page_runs(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "distributed.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    _run_ranks(code, tmp_path)


# A rank whose peer is gone aborts, and one whose interpreter is gone: Gloo's threads need it to let go of
# tensors, and live as long as anything has the process group, destroyed or not.
LEAVING = """
import os, torch.distributed
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
os._exit(0)
"""


def _run_ranks(code: str, folder: Path) -> None:
    """Run a program in all ranks, each of which prints True."""
    (folder / "program.py").write_text(code + LEAVING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
    command = [*command, folder / "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    # Ranks write without buffers, so a line may stand within another.
    assert (done.returncode, done.stdout.count("True")) == (0, SIZE), done.stdout + done.stderr
