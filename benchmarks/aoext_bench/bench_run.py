"""The measurements of `aoext bench`.

For each subject, group size, shape, M and number of CPU threads, up to four candidates compute the same
problem in turns:

    aoext     the operator, with the kernel that this device would choose
    linear    F.linear in high precision, with a weight [N, K] of the input's dtype
    generic   aoext's own generic kernel, made of ATen operators
    torch     torch's quantised operator for the same weights, where it has one (tinygemm for int4 on CUDA),
              or what stands for it (peers.py)

Every candidate walks through its own pool of weights, so that none is in a cache when it is read.

Back to back with itself a kernel may start while the one before it ends, and finds its activations where it
left them. A model calls it behind other work. So on CUDA each candidate is timed both ways: back to back, and
in graphs where PyTorch writes the activations before each call (x * 1.0, a kernel that is none of ours), of
which the time of the same graph without the calls is taken off. The latter counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aoext
from aoext.cli.shapes import Shape, named
from aoext.reference import Problem, Sample, Subject, Tensors, bound, full_name, randn
from aoext_bench.ceilings import Ceilings
from aoext_bench.clocks import Candidate
from aoext_bench.devices import Device, cpu_threads
from aoext_bench.peers import PEERS, Peer
from aoext_bench.pool import Pool
from aoext_bench.timing import Timing, interleaved

CANDIDATES = ("aoext", "linear", "generic", "torch")

# torch's operators round more often than the contract allows; beyond this they compute something else.
PEER_BOUND = 5e-2


class WrongResultError(Exception):
    """A kernel's result differs from float64 by more than it may."""


@dataclass(frozen=True)
class Settings:
    """What to measure and how."""

    device: Device
    subjects: Sequence[Subject]
    shapes: Sequence[Shape]
    rows: Sequence[int]  # the M of each shape
    dtype: torch.dtype
    group_sizes: Sequence[int]
    threads: Sequence[int]  # of the CPU
    seed: int
    seconds: float  # for each candidate of a point
    pool_bytes: int
    check: bool
    generic: bool = True  # whether the generic twin is a candidate
    bias: bool = False  # whether operators that take one or none get one


class Kind(NamedTuple):
    """What the points of a table have in common."""

    operator: str
    format: str
    group_size: int | None
    threads: int

    def __str__(self) -> str:
        """Without the threads."""
        group = "" if self.group_size is None else f", group size {self.group_size}"
        return f"{full_name(self.operator, self.format)}{group}"


@dataclass
class Point:
    """What was measured for one subject and one problem; times in seconds."""

    operator: str
    format: str
    M: int | None  # None where the operator does not depend on it
    N: int | None
    K: int
    group_size: int | None
    threads: int
    layer: str
    plan: str  # what aoext.explain says
    peer: str | None  # torch's operator
    peer_is_floor: bool  # whether the peer only moves the bytes
    bytes: int  # read and written at least once by aoext's kernel
    bytes_from_memory: int  # of what rotates: the weight with its scales, or what is quantised
    flop: int
    floor_flop: int  # those that the ceiling for products in bfloat16 binds
    floor_flop8: int  # those that the one for products of 8-bit operands does
    seconds: dict[str, float] = field(default_factory=dict)  # by candidate: behind, else back to back
    behind: dict[str, float] = field(default_factory=dict)  # a kernel of PyTorch's, where that was timed
    back_to_back: dict[str, float] = field(default_factory=dict)
    cpu_share: float | None = None  # of all timed calls: how long the calling thread had a core
    calls: dict[str, int] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)  # how each was timed
    missing: dict[str, str] = field(default_factory=dict)  # candidate -> why it was not timed
    errors: dict[str, float] = field(default_factory=dict)  # relative, against float64

    @property
    def kind(self) -> Kind:
        return Kind(self.operator, self.format, self.group_size, self.threads)

    def speedup(self, over: str) -> float | None:
        """How many times as fast as another candidate aoext is."""
        return self.seconds[over] / self.seconds["aoext"] if over in self.seconds else None

    def floor(self, ceilings: Mapping[int, Ceilings]) -> float:
        """Seconds that no kernel can do without: to read the bytes, or to multiply."""
        return ceilings[self.threads].floor(self.bytes, self.floor_flop, self.floor_flop8)

    def times_read_floor(self, ceilings: Mapping[int, Ceilings]) -> float:
        """aoext's time over that to read what no cache holds, with as many threads."""
        return self.seconds["aoext"] / ceilings[self.threads].reading(self.bytes_from_memory)

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds["aoext"] / 1e9

    @property
    def gflop_per_s(self) -> float:
        return self.flop / self.seconds["aoext"] / 1e9


def rows_of(subject: Subject, settings: Settings) -> Sequence[int]:
    """The M to measure for a subject; any single one where M does not matter."""
    return settings.rows if "M" in subject.result else settings.rows[:1]


def shapes_of(subject: Subject, settings: Settings) -> Sequence[Shape]:
    """The shapes to measure for a subject; one of each K where N does not matter."""
    if subject.depends_on_rows_of_the_weight:
        return settings.shapes
    return list({shape.K: Shape(shape.N, shape.K) for shape in reversed(settings.shapes)}.values())[::-1]


def problems(subject: Subject, settings: Settings) -> list[list[Problem]]:
    """The problems to measure for a subject, those with the same weight together."""
    group_sizes = settings.group_sizes if subject.grouped else settings.group_sizes[:1]
    return [
        [
            Problem(M, shape.N, shape.K, group_size, settings.dtype, None, bias=settings.bias)
            for M in rows_of(subject, settings)
        ]
        for group_size in group_sizes
        for shape in shapes_of(subject, settings)
    ]


def sections(points: Iterable[Point]) -> list[list[Point]]:
    """The points of each kind together, in the order in which the kinds first come."""
    found: dict[Kind, list[Point]] = {}
    for point in points:
        found.setdefault(point.kind, []).append(point)
    return list(found.values())


def count_candidates(settings: Settings) -> int:
    """Of a point, at most."""
    return len(CANDIDATES) - (not settings.generic)


def count_points(settings: Settings) -> int:
    count = sum(len(same) for subject in settings.subjects for same in problems(subject, settings))
    return count * len(settings.threads)


def produced(x: Tensors) -> Tensors:
    """Activations as a layer of a model gets them: just written, by a kernel of PyTorch's."""
    first = x[0]
    if first.element_size() == 1:  # float8 has no product
        return ((first.view(torch.int8) * 1).view(first.dtype), *x[1:])
    return (first * 1.0, *x[1:])


@dataclass(frozen=True)
class Way:
    """How a candidate computes a problem."""

    call: Callable[[Tensors, Tensors], Any]  # (activations, weights)
    x: Tensors
    pool: Pool

    def back_to_back(self) -> Candidate:
        return Candidate(lambda: partial(self.call, self.x, self.pool.next()), self.pool.copies)

    def behind(self) -> Candidate:
        """Each call behind a kernel that writes the activations."""

        def prepare() -> Callable[[], Any]:
            weights = self.pool.next()
            return lambda: self.call(produced(self.x), weights)

        return Candidate(prepare, self.pool.copies)

    def producers(self) -> Candidate:
        """What `behind` has besides the calls."""
        return Candidate(lambda: lambda: produced(self.x), self.pool.copies)


# Of kernels that write activations, by their shape and dtype.
Producers = dict[tuple[torch.Size, torch.dtype], Timing]


class Bench:
    """Measures subjects one after the other, in the same memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pools = {name: Pool(settings.pool_bytes) for name in CANDIDATES}
        self.producers: Producers = {}

    def points(self, subject: Subject) -> Iterator[Point]:
        """Measure all problems of a subject; WrongResultError where a result is wrong."""
        for same in problems(subject, self.settings):
            self.settings.device.release_memory()
            yield from _WeightBench(subject, self.settings, self.pools, self.producers).points(same)


class _WeightBench:
    """One subject with one weight; it is drawn once and used for all M and numbers of threads."""

    def __init__(
        self,
        subject: Subject,
        settings: Settings,
        pools: dict[str, Pool],
        producers: Producers,
    ) -> None:
        self.subject, self.settings, self.pools, self.producers = subject, settings, pools, producers
        self.filled: set[str] = set()
        # A generator for each weight: a point's numbers do not depend on what else is measured.
        self.generator = settings.device.generator(settings.seed)

    def points(self, same: Sequence[Problem]) -> Iterator[Point]:
        """Measure problems that share the weight."""
        for p in same:
            if self.subject.result == ("M", "K"):
                self.filled.clear()  # what rotates is the input, another one for each M
            for threads in self.settings.threads:
                with cpu_threads(threads):
                    point = self.point(p)
                yield point

    def to_device(self, tensors: Tensors) -> Tensors:
        return tuple(tensor.to(self.settings.device.device) for tensor in tensors)

    def pool(self, name: str, make: Callable[[], Tensors]) -> Pool:
        """The pool of a candidate, filled when it is first asked for."""
        if name not in self.filled:
            self.pools[name].fill(self.to_device(make()))
            self.filled.add(name)
        return self.pools[name]

    def point(self, p: Problem) -> Point:
        """Check and time all candidates for one problem."""
        subject = self.subject
        inputs = self.to_device(subject.inputs(p, self.generator))
        own = self.pool("aoext", lambda: subject.rotated(p, self.generator))
        point = self.described(p, inputs, own.original)
        ways: dict[str, Way] = {
            # They share a pool, and yet no copy: each takes the next one.
            "aoext": self.kernel(getattr(torch.ops.ao, subject.operator), p, inputs, own),
        }
        if self.settings.generic:
            ways["generic"] = self.kernel(aoext.ops.generic(subject.operator), p, inputs, own)
        else:
            point.missing["generic"] = "not asked for"
        if subject.is_linear:
            ways["linear"] = self.linear(p)
        try:
            ways["torch"] = self.peer(p, inputs, own)
            ways["torch"].back_to_back().prepare()()  # what it refuses, it refuses here
        except (RuntimeError, NotImplementedError) as error:
            ways.pop("torch", None)
            point.missing["torch"] = str(error).splitlines()[0]
        if self.settings.check:
            sample = Sample.draw(subject, p, inputs, own.original, self.generator)
            self.check(sample, p, ways, point, lambda result: self.completed(p, inputs, result))

        for name, way in ways.items():
            if name not in point.errors:  # nothing has warmed it up
                way.back_to_back().prepare()()
        watch = self.settings.device.watch
        mark = watch.mark() if watch else (0.0, 0.0)
        self.time(point, ways)
        point.cpu_share = watch.share(mark) if watch else None
        return point

    def time(self, point: Point, ways: dict[str, Way]) -> None:
        """All candidates in turns, back to back and, where the device is timed so, behind others' work."""
        candidates = {(name, "back to back"): way.back_to_back() for name, way in ways.items()}
        producers: dict[str, Timing] = {}
        if self.settings.device.BEHIND and self.subject.is_linear:
            producers = {name: self.producer(way) for name, way in ways.items()}
            candidates |= {(name, "behind"): way.behind() for name, way in ways.items()}
        timings = interleaved(candidates, self.settings.device, self.settings.seconds)
        for name in ways:
            timing = timings[name, "back to back"]
            point.back_to_back[name] = point.seconds[name] = timing.seconds
            point.calls[name], point.clocks[name] = timing.calls, timing.clock.way
        for name, producer in producers.items():
            timing = timings[name, "behind"]
            behind = timing.seconds - producer.seconds
            # Calls that no graph can hold are timed with what they cost the host: a difference says nothing.
            if timing.clock.way == producer.clock.way and behind > 0:
                point.behind[name] = point.seconds[name] = behind
                point.calls[name] = timing.calls
                point.clocks[name] = f"{timing.clock.way} behind a kernel of PyTorch's"

    def producer(self, way: Way) -> Timing:
        """Of one kernel that writes these activations, timed once."""
        key = (way.x[0].shape, way.x[0].dtype)
        if key not in self.producers:
            candidates = {"": way.producers()}
            self.producers[key] = interleaved(candidates, self.settings.device, self.settings.seconds)[""]
        return self.producers[key]

    def described(self, p: Problem, inputs: Tensors, rotated: Tensors) -> Point:
        """The point without measurements."""
        subject = self.subject
        arguments = subject.arguments(p, inputs, rotated)
        result = subject.call(getattr(torch.ops.ao, subject.operator), p, inputs, rotated)
        results = result if isinstance(result, tuple) else (result,)
        peer, flop = self.known_peer(), 2 * p.M * p.N * p.K
        return Point(
            operator=subject.operator,
            format=subject.format,
            M=p.M if "M" in subject.result else None,
            N=p.N if subject.depends_on_rows_of_the_weight else None,
            K=p.K,
            group_size=p.group_size if subject.grouped else None,
            threads=torch.get_num_threads(),
            layer=named(p.N, p.K).layer if subject.depends_on_rows_of_the_weight else "",
            plan=str(aoext.explain(subject.operator, *arguments)),
            peer=peer.name if peer else None,
            peer_is_floor=bool(peer and peer.is_floor),
            bytes=sum(tensor.nbytes for tensor in (*inputs, *rotated, *results)),
            bytes_from_memory=sum(tensor.nbytes for tensor in rotated),
            flop=flop if subject.is_linear else 0,
            floor_flop=flop if subject.multiplies_in_high_precision else 0,
            floor_flop8=flop if subject.multiplies_in_8_bit else 0,
            missing={} if subject.is_linear else {"linear": "not a matrix product"},
        )

    def kernel(self, kernel: Callable[..., Any], p: Problem, x: Tensors, own: Pool) -> Way:
        return Way(partial(self.subject.call, kernel, p), x, own)

    def linear(self, p: Problem) -> Way:
        """F.linear in high precision; with a bias if the subject has one."""

        def weights() -> Tensors:
            weight = randn(self.generator, p.N, p.K, dtype=p.dtype)
            bias = randn(self.generator, p.N, dtype=p.dtype)
            return (weight, bias) if self.subject.adds_bias(p) else (weight,)

        x = randn(self.generator, p.M, p.K, dtype=p.dtype).to(self.settings.device.device)
        pool = self.pool("linear", weights)
        return Way(lambda x, w: torch.nn.functional.linear(*x, *w), (x,), pool)

    def known_peer(self) -> Peer | None:
        peers = PEERS.get(self.settings.device.device.type, {})
        return peers.get((self.subject.operator, self.subject.format))

    def peer(self, p: Problem, x: Tensors, own: Pool) -> Way:
        """torch's operator; NotImplementedError or what it raises itself if it cannot pack the weight."""
        peer = self.known_peer()
        if peer is None:
            raise NotImplementedError("torch has no such operator")
        pool = self.pool("torch", lambda: peer.pack(p, own.original))
        return Way(partial(peer.call, p), x, pool)

    def completed(self, p: Problem, x: Tensors, result: Tensor) -> Any:
        """The result of torch's operator with what it leaves undone."""
        peer = self.known_peer()
        assert peer is not None
        return peer.complete(p, x, self.pools["torch"].original, result)

    def check(
        self,
        sample: Sample,
        p: Problem,
        ways: dict[str, Way],
        point: Point,
        complete_peer: Callable[[Tensor], Any],
    ) -> None:
        """Note the errors; raise if aoext is wrong, and leave out torch's operator if it is."""
        for name in [name for name in ways if name != "linear"]:
            result = ways[name].back_to_back().prepare()()
            if name == "torch":
                result = complete_peer(result)
            error = sample.error(self.subject.dense(p, result))
            allowed = PEER_BOUND if name == "torch" else bound(result)
            if error <= allowed:
                point.errors[name] = error
            elif name == "torch":
                del ways[name]
                point.missing[name] = f"its result differs from float64 by {error:.1e}"
            else:
                raise WrongResultError(
                    f"{self.subject.name}, {name}, M={point.M} N={point.N} K={point.K}: the result "
                    f"differs from float64 by {error:.1e}, allowed is {allowed:.1e}"
                )
