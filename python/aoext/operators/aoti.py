"""Models compiled ahead of time by AOTInductor: options with which its code calls aoext's kernels directly.

Left to itself the code that AOTInductor generates calls an operator that it does not know through a proxy,
which looks the operator up in PyTorch's dispatcher and boxes every argument. libaoext.so has a C function for
each operator and device instead, `aoti_torch_{cpu,cuda,xpu}_<operator>`: csrc/aoti.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch

from aoext.library.loading import find_library
from aoext.operators.calls import ao, operators

_DEVICES = ("cpu", "cuda", "xpu")

# How an argument of a schema's type arrives in C; one that may be None is a pointer to that.
_C_TYPES = {
    "Tensor": "AtenTensorHandle",
    "int": "int64_t",
    "bool": "int32_t",
    "List[int]": "const int64_t*, int64_t",
    "ScalarType": "int32_t",
}


def library_path() -> Path:
    """The file libaoext.so: what a C++ program opens before it loads a package.

    >>> aoext.library_path().name
    'libaoext.so'
    """
    import aoext

    return find_library(aoext.__path__).resolve()


def aoti_options() -> dict[str, Any]:
    """Inductor's options for packages that call aoext's kernels directly, on CPU, CUDA and XPU alike.

    The package then needs libaoext.so where it runs, loaded before it: by `import aoext`, or by dlopen in
    C++. They go together with other options in one dict.

    >>> torch._inductor.aoti_compile_and_package(
    ...     torch.export.export(model, inputs), inductor_configs=aoext.aoti_options()
    ... )  # doctest: +SKIP
    """
    library = library_path()
    return {
        "aot_inductor.custom_ops_to_c_shims": {
            getattr(ao, operator).default: [_declaration(operator, device) for device in _DEVICES]
            for operator in operators()
        },
        # Inductor writes -l before each entry and has no option for directories, so that one rides along.
        "aot_inductor.custom_op_libs": [
            f"{shlex.quote(f':{library.name}')} -L{shlex.quote(str(library.parent))}"
        ],
    }


def _declaration(operator: str, device: str) -> str:
    """The C function of an operator on a device, as csrc/aoti/shim.h derives it from the C++ kernel."""
    schema = getattr(ao, operator).default._schema
    parameters = [_c_type(argument.real_type) for argument in schema.arguments]
    parameters += ["AtenTensorHandle*"] * len(schema.returns)
    return f"AOTITorchError aoti_torch_{device}_{operator}({', '.join(parameters)})"


def _c_type(jit_type: Any) -> str:
    if isinstance(jit_type, torch.OptionalType):
        first, *length = _c_type(jit_type.getElementType()).split(", ")  # a list has its length beside it
        return ", ".join([f"{first}*", *length])
    return _C_TYPES[str(jit_type)]
