"""What all quantised weights share.

A QuantizedTensor stands for a weight [N, K], or for those of experts [E, N, K], and keeps it as a few plain
tensors, its fields, which a subclass declares in a table (fields.py). From the table follow the checks of the
constructor and the protocol of torch.compile (here), views (views.py), copies (copies.py), torch.save
(pickles.py) and collectives (fully_shard.py, distributed.py). A subclass names its codes (formats/table.py),
from which the operators' arguments follow, and quantises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

from aoext.formats.checks import describe
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.formats.table import FORMATS, Code
from aoext.tensors import computing
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import Field, as_stored, check_fields
from aoext.tensors.outer import QuantizedTensorType, counted_versions, is_copy, make_outer, mode_of_views
from aoext.tensors.recording import check_torchscript, exports, recorded

if TYPE_CHECKING:
    from typing_extensions import Self

Operation = Callable[..., Any]


# What follows from the fields and attributes, kept so that a product finds it at once.
_DERIVED = ("activation_dtype", "code", "input_dtype")


class QuantizedTensor(torch.Tensor, metaclass=QuantizedTensorType):
    """Base of the quantised weights.

    Outwardly a tensor [N, K] or [E, N, K] in `dtype`, the dtype of the activations that it is made for. It
    takes no gradient itself, unless its class `trains`; gradients flow to activations and biases, and
    optimizers and averages that walk over all parameters of a model pass over it. Operations of PyTorch that
    nobody has implemented for it (see `implements`) raise NotImplementedError.
    """

    # What its bits may be; qdata's dtype says which of them they are.
    codes: ClassVar[tuple[Code, ...]]
    fields: ClassVar[dict[str, Field]]
    # Attributes that are no tensors, beside shape and dtype.
    attributes: ClassVar[tuple[str, ...]] = ("block_size",)
    # Whether a block is always a whole row.
    blocks_are_rows: ClassVar[bool] = False
    # Whether blocks may be of several rows, and the last ones partial.
    any_blocks: ClassVar[bool] = False
    # Whether it may take a gradient.
    trains: ClassVar[bool] = False
    # What the stored bits mean, in words that a file keeps and its reader checks.
    encoding: ClassVar[dict[str, str]]
    # What to do, by the function of PyTorch that is called.
    operations: ClassVar[dict[Any, Operation]] = {}
    _code_of: ClassVar[dict[torch.dtype, int]]

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    table: Tensor | None = None
    global_scale: Tensor | None = None
    k_order: Tensor | None = None
    # Float32 [1] each, for activations in static ranges (ranges.py); None where they stay.
    input_scale: Tensor | None = None
    output_scale: Tensor | None = None
    block_size: list[int]
    # How activations share scales where products quantise them; None for rows.
    input_block: list[int] | None = None
    # The value of a Code.
    code: int
    # Whether this is the view [K, N] that t() or mT gives; its fields are those of the weight [N, K].
    transposed: bool
    # The dtype of activations that the operators take as they are, this tensor's; None of float64, which
    # goes to them as float32. Unlike `dtype` it costs no call of __torch_function__.
    activation_dtype: torch.dtype | None
    # The dtype of 8 bits to which products quantise their activations; None where these stay.
    input_dtype: torch.dtype | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "codes" in cls.__dict__:
            cls._code_of = {FORMATS[code].storage: int(code) for code in cls.codes}
        torch.serialization.add_safe_globals([cls])  # for torch.load(weights_only=True)

    # What a subclass brings

    def _check(self) -> None:
        """Raise TypeError or ValueError where parts fit the table of fields but not each other."""

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        """The value of `input_dtype` of a weight whose qdata is `stored`."""
        return None

    # What the operators make of it, by methods that a subclass may replace

    _dequantize = computing.dequantized
    _rows = computing.dequantized_rows
    _linear = computing.linear
    _linear_backward = computing.linear_backward

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """The fields of a high-precision weight [N, K] in this one's scheme; those that are left out stay."""
        raise NotImplementedError(f"{type(self).__name__} does not define _quantized")

    def _divisible(self, dim: int, *at: int) -> QuantizedTensor:
        """This weight as one whose fields can be cut along `dim` at these places; -1 is behind its end."""
        return self

    # Construction

    @classmethod
    def from_fields(cls, tensors: Mapping[str, Tensor | None], dtype: torch.dtype, **attributes: Any) -> Self:
        """Make a tensor of its fields by name, its dtype, its block_size and further attributes, else None.

        TypeError for wrong types and dtypes, ValueError for shapes and values that do not fit.
        """
        attributes = {**dict.fromkeys(cls.attributes), **attributes}
        block_size = attributes["block_size"]
        shape = check_fields(cls.__name__, cls.fields, tensors, block_size, dtype, cls.any_blocks)
        attributes["block_size"] = list(block_size)
        self = cls._make(tensors, attributes, shape, dtype)
        self._check()
        return self

    @classmethod
    def _make(
        cls,
        tensors: Mapping[str, Tensor | None],
        attributes: Mapping[str, Any],
        shape: Sequence[int],
        dtype: torch.dtype,
        transposed: bool = False,
    ) -> Self:
        """Make a tensor for a weight of `shape` [N, K] or [E, N, K] of parts that are known to fit."""
        *experts, rows, columns = shape
        strides = [rows * columns] * len(experts)
        self = make_outer(
            cls,
            (*experts, columns, rows) if transposed else (*experts, rows, columns),
            (*strides, 1, columns) if transposed else (*strides, columns, 1),
            dtype,
            cast(Tensor, tensors["qdata"]).device,
        )
        for name in cls.fields:
            setattr(self, name, tensors.get(name))
        for name in cls.attributes:
            setattr(self, name, attributes[name])
        self.transposed = transposed
        self.activation_dtype = None if dtype is torch.float64 else dtype
        stored = cast(Tensor, tensors["qdata"]).dtype
        # Operators refuse −1: parts of a damaged file come here before they are checked.
        self.code, self.input_dtype = cls._code_of.get(stored, -1), self._quantized_input(stored)
        return self

    def remade(
        self,
        tensors: Mapping[str, Tensor],
        *,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        transposed: bool | None = None,
        **attributes: Any,
    ) -> Self:
        """This tensor with other fields, and with what else is given. Nothing is checked."""
        return self._make(
            tensors,
            {**self.named_attributes(), **attributes},
            self.weight_shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.transposed if transposed is None else transposed,
        )

    def mapped(self, change: Callable[[Tensor], Tensor], **other: Any) -> Self:
        """This tensor with `change` applied to every field; `other` as for remade."""
        with counted_versions():
            tensors = {name: change(tensor) for name, tensor in self.named_fields()}
        return self.remade(tensors, **other)

    # What it is made of

    def named_fields(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the fields, without optional ones that are None."""
        for name in self.fields:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def named_attributes(self) -> dict[str, Any]:
        """The attributes that are no tensors, by name."""
        return {name: getattr(self, name) for name in self.attributes}

    def become(self, other: QuantizedTensor) -> None:
        """Take over the fields and attributes of `other`, which this tensor then shares with it."""
        self.__dict__.update({name: other.__dict__.get(name) for name in self.own_names()})

    def remarks(self) -> dict[str, Any]:
        """What others have set on this tensor, by name."""
        return {name: value for name, value in self.__dict__.items() if name not in self.own_names()}

    @classmethod
    def own_names(cls) -> tuple[str, ...]:
        """The names under which a tensor keeps its parts."""
        return (*cls.fields, *cls.attributes, "transposed", *_DERIVED, "_flat")

    @property
    def weight_shape(self) -> list[int]:
        """[N, K] or [E, N, K], also for the transposed view."""
        return as_stored(self.shape, self.transposed)

    @property
    def operator_dtype(self) -> torch.dtype:
        """The dtype in which the operators work: this tensor's, or float32 for float64."""
        return self.activation_dtype or torch.float32

    @property
    def stored_bytes(self) -> int:
        """Bytes of all fields together."""
        return sum(tensor.nbytes for _, tensor in self.named_fields())

    @property
    def quantizes_input_to(self) -> torch.dtype | None:
        """The dtype of 8 bits to which products quantise their activations; None where these stay."""
        return self.input_dtype

    # Use

    def dequantize(self) -> Tensor:
        """The plain tensor that this one stands for: same shape, dtype and device."""
        weight = self._dequantize().to(self.dtype)
        return weight.mT if self.transposed else weight

    def requantized(self, weight: Tensor) -> Self:
        """Another weight, of this one's shape, in its scheme, dtype and view. NaN or Inf raises ValueError.

        weight: bfloat16, float16 or float32, as dequantize() gives it; float32 loses nothing.
        """
        if weight.shape != self.shape:
            raise ValueError(
                f"{type(self).__name__}: requantized needs a weight {list(self.shape)}, "
                f"got {describe(weight)}"
            )
        return by_expert(type(self)._requantized, self, weight)

    def _requantized(self, weight: Tensor) -> Self:
        plain = weight.t() if self.transposed else weight
        if plain.dtype not in FLOAT_DTYPES:
            plain = plain.float()
        return self.remade({**dict(self.named_fields()), **self._quantized(plain)})

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Self:
        """This tensor if all of its fields are contiguous, else a copy whose fields are."""
        if all(tensor.is_contiguous() for _, tensor in self.named_fields()):
            return self
        return cast(Any, self.clone())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        bits = 8 * self.stored_bytes / max(1, self.numel())
        parts = [f"shape={list(self.shape)}", f"dtype={dtype_name(self.dtype)}"]
        for name, value in self.named_attributes().items():
            if value is not None:
                parts.append(f"{name}={dtype_name(value) if isinstance(value, torch.dtype) else value}")
        parts += [f"device={self.device}", f"{bits:.4g} bits per weight"]
        return f"{type(self).__name__}({', '.join(parts)})"

    # Protocols of PyTorch

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch._C._get_tracing_state() is not None:
            check_torchscript()
        operation = QuantizedTensor.operations.get(func, func)
        # Not super().__torch_function__: it wraps results anew, which breaks torch.export.
        with torch._C.DisableTorchFunctionSubclass():
            if exports():
                return recorded(operation, args, kwargs or {})
            return operation(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        operation = QuantizedTensor.operations.get(func)
        if operation is not None:
            with mode_of_views(args[0]):
                result = operation(*args, **kwargs)
            # No view: a weight that was written into, and what is a copy, also where PyTorch calls it a view.
            if result is args[0] or is_copy(result, cls):
                return result
            return return_and_correct_aliasing(func, args, kwargs, result)
        # In inference mode composite operations, such as narrow, come whole and not in their parts.
        result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise NotImplementedError(
                f"{cls.__name__}: {func} is not implemented; dequantize() gives a plain tensor"
            )
        return result

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        # Made once, for compiled code asks at every call.
        flat = self.__dict__.get("_flat")
        if flat is None:
            context = {
                "attributes": self.named_attributes(),
                "dtype": self.dtype,
                "transposed": self.transposed,
            }
            flat = self._flat = [name for name, _ in self.named_fields()], context
        return flat

    @classmethod
    def __metadata_guard__(cls, compiled: dict[str, Any], given: dict[str, Any]) -> bool:
        """Whether code that was compiled for one context serves another."""
        return compiled == given

    @classmethod
    def __tensor_unflatten__(
        cls,
        tensors: Mapping[str, Tensor],
        context: Mapping[str, Any],
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> Self:
        return cls._make(tensors, shape=as_stored(outer_size, context["transposed"]), **context)


def implements(*functions: Any) -> Callable[[Operation], Operation]:
    """Answer calls of `functions` on quantised weights with the decorated function.

    Functions such as torch.mm are caught above autograd, aten overloads below it.
    """

    def register(operation: Operation) -> Operation:
        QuantizedTensor.operations.update(dict.fromkeys(functions, operation))
        return operation

    return register
