"""Triton for the simulated device: Inductor writes kernels as for Intel GPUs, an interpreter runs them.

PyPI's Triton has no part for Intel GPUs. Inductor asks for three things of such a part: that it is registered
as the backend "intel", a driver that names the target, and the functions of libdevice. Kernels are not
compiled: with TRITON_INTERPRET=1 Inductor takes the first of a kernel's configurations, and Triton runs the
kernel's Python on a copy of its arguments on the host.

The interpreter (3.7.1) truncates where a GPU rounds to bfloat16, loses the carry where it rounds to float8,
and takes bfloat16's subnormal numbers for others; torch's conversions stand in for its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch

# Functions of libdevice, and those of torch that compute them where the names differ.
SAME = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor "
    "fmod hypot isinf isnan lgamma log log10 log1p log2 nextafter pow rsqrt signbit sin sinh sqrt tan tanh "
    "trunc"
)
OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
    "llrint": lambda x: torch.round(x).to(torch.int64),
    "nearbyint": torch.round,
    "rint": torch.round,
    "sqrt_rn": torch.sqrt,
    "div_rn": torch.true_divide,
}


def install() -> None:
    """Lets torch.compile's Inductor work on the simulated device. A second call does nothing.

    Call it before anything imports Triton, which reads TRITON_INTERPRET then.

    Raises:
        ImportError: there is no Triton.
        RuntimeError: Triton was imported before, and compiles.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        if "triton" in sys.modules:
            raise RuntimeError("xpu_sim: Triton was imported before install_triton, to compile")
        os.environ["TRITON_INTERPRET"] = "1"
    # Inductor's own processes would have nothing to compile.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    backends = importlib.import_module("triton.backends")
    if "intel" in backends.backends:
        return
    compiler, driver = _backend(), _driver()
    backends.backends["intel"] = backends.Backend(compiler=compiler, driver=driver)
    importlib.import_module("triton.runtime").driver.set_active(driver())
    _fill_libdevice()
    _round_as_gpus_do()


def _backend() -> type:
    """A compiler that is only asked what it is called."""
    base = importlib.import_module("triton.backends.compiler").BaseBackend

    class Interpreted(base):  # type: ignore[misc,valid-type]
        binary_ext = "spv"

        @staticmethod
        def supports_target(target: Any) -> bool:
            return target.backend == "xpu"

        def hash(self) -> str:
            return "xpu_sim"

        def parse_options(self, options: dict[str, Any]) -> Any:
            return type("Options", (), options)()

        def add_stages(self, *_: Any) -> None:
            raise NotImplementedError("xpu_sim: kernels are interpreted, not compiled")

        def load_dialects(self, context: Any) -> None:
            pass

        def get_module_map(self) -> dict[str, Any]:
            return {}

    return Interpreted


def _driver() -> type:
    base = importlib.import_module("triton.backends.driver").DriverBase
    target = importlib.import_module("triton.backends.compiler").GPUTarget

    class Simulated(base):  # type: ignore[misc,valid-type]
        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError("xpu_sim: kernels are interpreted, not launched")

        def get_current_target(self) -> Any:
            return target("xpu", {"name": "xpu_sim"}, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("xpu")

        def get_current_device(self) -> int:
            return torch.xpu.current_device()

        def get_current_stream(self, device: int) -> int:
            return torch.xpu.current_stream(device).sycl_queue

        def get_device_interface(self) -> Any:
            return torch.xpu

        def get_benchmarker(self) -> Any:
            return None  # kernels of others ask for it when they are defined, to tune them

    return Simulated


def _round_as_gpus_do() -> None:
    """Conversions from and to types that numpy lacks, which the interpreter keeps as unsigned integers."""
    tl = importlib.import_module("triton.language")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    narrow = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    wide = {tl.float16: torch.float16, tl.float32: torch.float32, tl.float64: torch.float64}
    theirs, cast = interpreter._convert_float, interpreter.InterpreterBuilder.cast_impl

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        """The bits of `target`, as unsigned integers of its width."""
        types = narrow | wide
        truncated = rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
        if truncated or source not in types or target not in types:
            return theirs(data, source, target, rounding_mode)
        # Blocks of one element may have no dimension, and broadcast ones strides of 0.
        values = torch.from_numpy(numpy.array(data)).reshape(-1).view(types[source])
        bits = getattr(torch, f"uint{target.primitive_bitwidth}")
        return values.to(types[target]).view(bits).numpy().reshape(data.shape)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        types = narrow | wide
        if source in types and target in types and {source, target} & narrow.keys():
            data = convert(src.data, source, target, None).view(interpreter._get_np_dtype(dst_type))
            return interpreter.TensorHandle(data, target)
        return cast(self, src, dst_type)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.cast_impl = cast_impl


def _fill_libdevice() -> None:
    """The functions that a backend's libdevice has and the interpreter has not."""
    libdevice = importlib.import_module("triton.language.extra.libdevice")
    for name in SAME.split():
        setattr(libdevice, name, _interpreted(getattr(torch, name)))
    for name, function in OTHERS.items():
        setattr(libdevice, name, _interpreted(function))


def _interpreted(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of tensors as one of the interpreter's blocks, which are arrays of numpy."""
    tl = importlib.import_module("triton.language")
    handle = importlib.import_module("triton.runtime.interpreter").TensorHandle
    types = {torch.bool: tl.int1, torch.int64: tl.int64, torch.float32: tl.float32, torch.float64: tl.float64}

    def call(*arguments: Any, **_: Any) -> Any:
        like = next(a for a in arguments if isinstance(a, tl.tensor))
        # One number for a whole block, such as the exponent of pow, comes as a number.
        dtype = next(t for t, name in types.items() if name == like.dtype)
        values = [
            torch.from_numpy(a.handle.data) if isinstance(a, tl.tensor) else torch.tensor(a, dtype=dtype)
            for a in arguments
        ]
        result = function(*values)
        element = types[result.dtype]
        shape = like.type.get_block_shapes() if like.type.is_block() else ()
        block = tl.block_type(element, shape) if shape else element
        return tl.tensor(handle(result.numpy(), element), block)

    return call
