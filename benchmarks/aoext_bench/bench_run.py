"""The measurements of `aoext bench`.

For each subject, group size, shape, M and number of CPU threads, up to four candidates compute the same
problem in turns:

    aoext     the operator, with the kernel that this device would choose
    linear    F.linear in high precision, with a weight [N, K] of the input's dtype; F.grouped_mm by expert
    generic   aoext's own generic kernel, made of ATen operators
    torch     torch's quantised operator for the same weights, where it has one (tinygemm for int4 on CUDA),
              or what stands for it (peers.py)

Plans that are to be forced come beside these, each by its own text, and F.linear may have several dtypes, of
which the fastest counts.

Every candidate walks through its own pool of weights, so that none is in a cache when it is read.

Back to back with itself a kernel may start while the one before it ends, and finds its activations where it
left them. A model calls it behind other work. So on CUDA each candidate is timed both ways: back to back, and
in graphs where PyTorch writes the activations before each call (x * 1.0, a kernel that is none of ours), of
which the time of the same graph without the calls is taken off. The latter counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import aoext
from aoext.cli.shapes import named
from aoext.formats.dtypes import dtype_name
from aoext.ops import with_plan
from aoext.reference import Problem, Sample, Subject, Tensors, bound, randn
from aoext_bench.bench_points import Point, Settings, problems
from aoext_bench.clocks import Candidate
from aoext_bench.devices import cpu_threads
from aoext_bench.peers import PEERS, Peer
from aoext_bench.pool import Pool
from aoext_bench.timing import Timing, interleaved

# torch's operators round more often than the contract allows; beyond this they compute something else.
PEER_BOUND = 5e-2


class WrongResultError(Exception):
    """A kernel's result differs from float64 by more than it may."""


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


LINEAR = "linear "  # begins the names of F.linear in each dtype


def forced(kernel: Callable[..., Any], plan: str) -> Callable[..., Any]:
    """An operator by a plan: its kernel and any fields of that, as `aoext.explain` prints them."""
    name, *fields = plan.split()
    config = {key: int(value) for key, _, value in (field.partition("=") for field in fields)}

    def call(*args: Any, **kwargs: Any) -> Any:
        with with_plan(name, **config):
            return kernel(*args, **kwargs)

    return call


def keep_fastest_linear(point: Point) -> None:
    """The fastest F.linear becomes the candidate "linear"."""
    names = [name for name in point.seconds if name.startswith(LINEAR)]
    if not names:
        return
    fastest = min(names, key=point.seconds.__getitem__)
    for values in (point.seconds, point.behind, point.back_to_back, point.calls, point.clocks):
        own: dict[str, Any] = {"linear": values[fastest]} if fastest in values else {}
        for name in names:
            values.pop(name, None)
        values.update(own)


# Times of kernels that write activations, by the activations' shape and dtype.
Producers = dict[tuple[torch.Size, torch.dtype], Timing]


class Bench:
    """Measures subjects one after the other, in the same memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pools: dict[str, Pool] = defaultdict(lambda: Pool(settings.pool_bytes))
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
        pools: Mapping[str, Pool],
        producers: Producers,
    ) -> None:
        self.subject, self.settings, self.pools, self.producers = subject, settings, pools, producers
        self.filled: set[str] = set()
        # A generator for each weight: a point's numbers do not depend on what else is measured.
        self.generator = settings.device.generator(settings.seed)

    def points(self, same: Sequence[Problem]) -> Iterator[Point]:
        """Measure problems that share the weight."""
        for p in same:
            if self.subject.result == ("M", "K") or self.subject.by_expert:
                self.filled.clear()  # what rotates is the input, or has the offsets: another for each M
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
        operator = getattr(torch.ops.ao, subject.operator)
        # They share a pool, and yet no copy: each takes the next one.
        ways = {"aoext": self.kernel(operator, p, inputs, own)}
        for plan in self.settings.plans:
            try:
                way = self.kernel(forced(operator, plan), p, inputs, own)
                way.back_to_back().prepare()()
                ways[plan] = way
            except RuntimeError as error:
                point.missing[plan] = str(error).splitlines()[0]
        if self.settings.generic:
            ways["generic"] = self.kernel(aoext.ops.generic(subject.operator), p, inputs, own)
        else:
            point.missing["generic"] = "not asked for"
        if subject.is_linear:
            dtypes = self.settings.linear or (p.dtype,)
            twin = self.grouped if subject.by_expert else self.linear
            ways |= {f"{LINEAR}{dtype_name(dtype)}": twin(p, dtype) for dtype in dtypes}
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
        keep_fastest_linear(point)

    def producer(self, way: Way) -> Timing:
        """The time of a kernel that writes these activations, measured once."""
        key = (way.x[0].shape, way.x[0].dtype)
        if key not in self.producers:
            candidates = {"": way.producers()}
            self.producers[key] = interleaved(candidates, self.settings.device, self.settings.seconds)[""]
        return self.producers[key]

    def described(self, p: Problem, inputs: Tensors, rotated: Tensors) -> Point:
        """The point without measurements."""
        subject = self.subject
        arguments, options = subject.arguments(p, inputs, rotated)
        result = subject.call(getattr(torch.ops.ao, subject.operator), p, inputs, rotated)
        results = result if isinstance(result, tuple) else (result,)
        peer, flop = self.known_peer(), 2 * p.M * p.N * p.K
        weights = sum(tensor.nbytes for tensor in rotated)
        if p.offsets is not None:  # those of experts that have rows
            weights = weights * len({0, *p.offsets} - {0}) // p.experts
        return Point(
            operator=subject.operator,
            format=subject.format,
            M=p.M if {"M", "T"} & set(subject.result) else None,
            N=p.N if subject.depends_on_rows_of_the_weight else None,
            K=p.K,
            group_size=p.group_size if subject.grouped else None,
            threads=torch.get_num_threads(),
            layer=named(p.N, p.K).layer if subject.depends_on_rows_of_the_weight else "",
            plan=str(aoext.explain(subject.operator, *arguments, **options)),
            peer=peer.name if peer else None,
            peer_is_floor=bool(peer and peer.is_floor),
            bytes=sum(tensor.nbytes for tensor in (*inputs, *results)) + weights,
            bytes_from_memory=weights,
            flop=flop if subject.is_linear else 0,
            floor_flop=flop if subject.multiplies_in_high_precision else 0,
            floor_flop8=flop if subject.multiplies_in_8_bit else 0,
            missing={} if subject.is_linear else {"linear": "not a matrix product"},
        )

    def kernel(self, kernel: Callable[..., Any], p: Problem, x: Tensors, own: Pool) -> Way:
        return Way(partial(self.subject.call, kernel, p), x, own)

    def linear(self, p: Problem, dtype: torch.dtype) -> Way:
        """F.linear in high precision; with a bias if the subject has one."""

        def weights() -> Tensors:
            weight = randn(self.generator, p.N, p.K, dtype=dtype)
            bias = randn(self.generator, p.N, dtype=dtype)
            return (weight, bias) if self.subject.adds_bias(p) else (weight,)

        x = randn(self.generator, p.M, p.K, dtype=dtype).to(self.settings.device.device)
        pool = self.pool(f"{LINEAR}{dtype_name(dtype)}", weights)
        return Way(lambda x, w: torch.nn.functional.linear(*x, *w), (x,), pool)

    def grouped(self, p: Problem, dtype: torch.dtype) -> Way:
        """torch's grouped product in high precision, of weights [E, N, K] as transformers keeps them."""
        assert p.offsets is not None
        device = self.settings.device.device
        x = randn(self.generator, p.M, p.K, dtype=dtype).to(device)
        ends = torch.tensor(p.offsets, dtype=torch.int32, device=device)
        pool = self.pool(
            f"{LINEAR}{dtype_name(dtype)}",
            lambda: (randn(self.generator, p.experts, p.N, p.K, dtype=dtype),),
        )
        return Way(lambda x, w: torch.nn.functional.grouped_mm(x[0], w[0].mT, offs=ends), (x,), pool)

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
        for name in [name for name in ways if not name.startswith(LINEAR)]:
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
