"""What files say of a model: which tensors it has, how a quantised weight is put together, what is tied."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from aoext.packing import FLOAT_DTYPES, dtype_name
from aoext.serialization.container import Source, TensorFile
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor, QuantizedTensor
from aoext.tensors.fields import K

FORMAT_VERSION = "2"
READABLE_VERSIONS = ("1", FORMAT_VERSION)
VERSION_KEY, WEIGHTS_KEY, TIED_KEY = "aoext_format_version", "aoext_weights", "aoext_tied"
NOT_PERSISTENT_KEY = "aoext_not_persistent"

TENSOR_TYPES: dict[str, type[QuantizedTensor]] = {
    tensor_type.__name__: tensor_type for tensor_type in (Int4Tensor, Int8Tensor, Float8Tensor)
}
DTYPES = {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}

# What a description says since version 2 alone.
QDATA_DTYPE = "qdata_dtype"

Choice = TypeVar("Choice")


def describe_weight(weight: QuantizedTensor) -> dict[str, Any]:
    """What a file says of a quantised weight; all of it in JSON's types."""
    return {
        "type": type(weight).__name__,
        "dtype": dtype_name(weight.dtype),
        "shape": list(weight.shape),
        "group_size": weight.block_size[K],
        "fields": [name for name, _ in weight.named_fields()],
        QDATA_DTYPE: dtype_name(weight.qdata.dtype),
        **weight.named_attributes(),
        **weight.encoding,
    }


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of a model as it lies in a file."""

    file: TensorFile
    form: Tensor  # on the meta device: type, dtype, shape
    keys: Mapping[str, str]  # the file's name of each field; that of a plain tensor under ""

    def assembled(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensor, of what was read by the file's names."""
        if not isinstance(self.form, QuantizedTensor):
            return tensors[self.keys[""]]
        return self.form.remade({name: tensors[key] for name, key in self.keys.items()})


@dataclass
class Contents:
    """A model's state in files."""

    state: dict[str, Stored] = field(default_factory=dict)  # names that are tied have the same object
    not_persistent: dict[str, Stored] = field(default_factory=dict)


def read_contents(files: Iterable[TensorFile]) -> Contents:
    """What files say together; DamagedFileError where that cannot be, no tensor is read."""
    contents = Contents()
    for file in files:
        with file.source.named():
            _add(file, contents)
    return contents


def _add(file: TensorFile, contents: Contents) -> None:
    source = file.source
    version = file.metadata.get(VERSION_KEY)
    if version not in READABLE_VERSIONS:
        raise source.error(
            f"{VERSION_KEY} must be {' or '.join(map(repr, READABLE_VERSIONS))}, as save_model writes it, "
            f"got {version!r}"
        )
    for key in (WEIGHTS_KEY, TIED_KEY):
        if key not in file.metadata:
            raise source.error(f"{key} is missing")
    forms = file.forms()
    here = {
        name: _weight(file, name, description, forms) for name, description in file.table(WEIGHTS_KEY).items()
    }
    here.update({key: Stored(file, form, {"": key}) for key, form in forms.items()})
    for alias, name in file.table(TIED_KEY).items():
        if alias in here or not isinstance(name, str) or name not in here:
            raise source.error(f"{alias} cannot be tied to {reprlib.repr(name)}")
        here[alias] = here[name]
    for name in file.table(NOT_PERSISTENT_KEY):
        if name not in here:
            raise source.error(f"{NOT_PERSISTENT_KEY} names {name}, which is not there")
        contents.not_persistent[name] = here.pop(name)
    for name in here:
        if name in contents.state:
            raise source.error(f"{name} is in {contents.state[name].file.source.path} too")
    contents.state.update(here)


def _weight(file: TensorFile, name: str, description: Any, forms: dict[str, Tensor]) -> Stored:
    """A quantised weight, by its description; its fields leave `forms`."""
    source = file.source
    if not isinstance(description, dict):
        raise source.error(f"{name}: its description must be a JSON object, got {reprlib.repr(description)}")
    tensor_type = _choose(source, name, description, "type", TENSOR_TYPES)
    dtype = _choose(source, name, description, "dtype", DTYPES)
    fields = description.get("fields")
    if not isinstance(fields, list) or fields != [known for known in tensor_type.fields if known in fields]:
        raise source.error(
            f"{name}: fields must be of {list(tensor_type.fields)}, in this order, got {reprlib.repr(fields)}"
        )
    keys = {field: f"{name}.{field}" for field in fields}
    for key in keys.values():
        if key not in forms:
            raise source.error(f"{name}: the file lacks {key}")

    parts: dict[str, Tensor | None] = dict.fromkeys(tensor_type.fields)
    parts.update({field: forms.pop(key) for field, key in keys.items()})
    attributes = {key: description.get(key) for key in tensor_type.attributes}
    try:
        weight = tensor_type.from_fields(parts, dtype, **attributes)
    except (TypeError, ValueError) as error:
        raise source.error(f"{name}: {error}") from error
    tagged = file.metadata[VERSION_KEY] != "1"
    for key, expected in describe_weight(weight).items():
        if description.get(key) != expected and (tagged or key != QDATA_DTYPE):
            raise source.error(
                f"{name}: {key} must be {expected!r}, got {reprlib.repr(description.get(key))}"
            )
    return Stored(file, weight, keys)


def _choose(
    source: Source, name: str, description: Mapping[str, Any], key: str, choices: Mapping[str, Choice]
) -> Choice:
    value = description.get(key)
    if not isinstance(value, str) or value not in choices:
        raise source.error(f"{name}: {key} must be one of {', '.join(choices)}, got {reprlib.repr(value)}")
    return choices[value]
