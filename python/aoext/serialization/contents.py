"""What files say of a model: which tensors it has, how a quantised weight is put together, what is tied."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from aoext.formats.dtypes import FLOAT8_DTYPES, dtype_name
from aoext.serialization.container import Source, TensorFile, metadata_of, table_of
from aoext.tensors import TENSOR_TYPES, QuantizedTensor
from aoext.tensors.fields import ACTIVATION_DTYPES, K
from aoext.tensors.views import seen_as

FORMAT_VERSION = "2"
READABLE_VERSIONS = ("1", FORMAT_VERSION)
VERSION_KEY, WEIGHTS_KEY, TIED_KEY = "aoext_format_version", "aoext_weights", "aoext_tied"
NOT_PERSISTENT_KEY = "aoext_not_persistent"

DTYPES = {dtype_name(dtype): dtype for dtype in ACTIVATION_DTYPES}
INPUT_DTYPES = {dtype_name(dtype): dtype for dtype in (torch.int8, *FLOAT8_DTYPES)}

# What descriptions of version 1 do not say.
QDATA_DTYPE = "qdata_dtype"

# Names of weights [N, K] that a layer has as a view [K, N].
TRANSPOSED = "transposed"

Choice = TypeVar("Choice")


def describe_weight(weight: QuantizedTensor) -> dict[str, Any]:
    """What a file says of a quantised weight; all of it in JSON's types."""
    return {
        "type": type(weight).__name__,
        "dtype": dtype_name(weight.dtype),
        "shape": weight.weight_shape,
        "group_size": weight.block_size[K],
        "fields": [name for name, _ in weight.named_fields()],
        QDATA_DTYPE: dtype_name(weight.qdata.dtype),
        **{name: _in_json(v) for name, v in weight.named_attributes().items() if v is not None},
        **weight.encoding,
        **({TRANSPOSED: True} if weight.transposed else {}),
    }


def _in_json(attribute: Any) -> Any:
    return dtype_name(attribute) if isinstance(attribute, torch.dtype) else attribute


def described_attributes(
    tensor_type: type[QuantizedTensor], description: Mapping[str, Any]
) -> dict[str, Any]:
    """A weight's attributes as a description has them; None of those that it lacks."""
    values = {name: description.get(name) for name in tensor_type.attributes}
    return {name: INPUT_DTYPES.get(v, v) if isinstance(v, str) else v for name, v in values.items()}


def stored_tensors(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    """The plain tensors that stand for a tensor of a model, by their names in a file."""
    if not isinstance(tensor, QuantizedTensor):
        return {name: tensor}
    return {f"{name}.{part}": value for part, value in tensor.named_fields()}


class Place(NamedTuple):
    """Where a tensor lies."""

    file: TensorFile
    key: str


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of a model as it lies in files."""

    source: Source  # of the file that says what it is
    form: Tensor  # on the meta device: type, dtype, shape
    places: Mapping[str, Place]  # of each field; of a plain tensor under ""

    @property
    def size(self) -> int:
        """Its bytes in the files."""
        return sum(place.file.entries[place.key].size for place in self.places.values())

    def assembled(self, tensors: Mapping[Place, Tensor]) -> Tensor:
        """The tensor, of what was read from its places; DamagedFileError for values that cannot be."""
        form = self.form
        if not isinstance(form, QuantizedTensor):
            return tensors[self.places[""]]
        parts: dict[str, Tensor | None] = dict.fromkeys(form.fields)
        parts.update({name: tensors[place] for name, place in self.places.items()})
        with self.source.named():
            weight = form.from_fields(parts, form.dtype, **form.named_attributes())
        return seen_as(weight, form.transposed)


@dataclass
class Contents:
    """A model's state in files."""

    state: dict[str, Stored] = field(default_factory=dict)  # names that are tied have the same object
    not_persistent: dict[str, Stored] = field(default_factory=dict)


def read_contents(files: Sequence[TensorFile]) -> Contents:
    """What files say together; DamagedFileError where that cannot be, no tensor is read.

    Fields of one weight may lie in several files, as transformers distributes them.
    """
    contents = Contents()
    places: dict[str, Place] = {}
    forms: dict[str, Tensor] = {}
    for file in files:
        with file.source.named():
            _check_version(file)
            for key, form in file.forms().items():
                if key in places:
                    raise file.source.error(f"{key} is in {places[key].file.source.path} too")
                places[key], forms[key] = Place(file, key), form
    for add in (_add_weights, _add_the_rest):
        for file in files:
            with file.source.named():
                add(file, contents, places, forms)
    return contents


def _check_version(file: TensorFile) -> None:
    version = file.metadata.get(VERSION_KEY)
    if version not in READABLE_VERSIONS:
        raise file.source.error(
            f"{VERSION_KEY} must be {' or '.join(map(repr, READABLE_VERSIONS))}, as save_model writes it, "
            f"got {version!r}"
        )
    for key in (WEIGHTS_KEY, TIED_KEY):
        if key not in file.metadata:
            raise file.source.error(f"{key} is missing")


def _add_weights(
    file: TensorFile, contents: Contents, places: Mapping[str, Place], forms: dict[str, Tensor]
) -> None:
    """Add the quantised weights that a file describes; their fields leave `forms`."""
    for name, description in file.table(WEIGHTS_KEY).items():
        known = contents.state.get(name)
        if known is not None and not _differences(known.form, description):
            continue  # described in several files
        try:
            weight = assembled(name, description, forms)
        except ValueError as error:
            raise file.source.error(str(error)) from error
        fields = {part: places[f"{name}.{part}"] for part, _ in weight.named_fields()}
        contents.state[name] = Stored(file.source, weight, fields)


def _add_the_rest(
    file: TensorFile, contents: Contents, places: Mapping[str, Place], forms: dict[str, Tensor]
) -> None:
    """Add the plain tensors of a file, its ties, and what is no part of the state."""
    state, source = contents.state, file.source
    for key in file.entries:
        if key in forms:
            if key in state:
                raise source.error(f"{key} is a tensor and a name of another")
            state[key] = Stored(source, forms[key], {"": places[key]})
    for alias, name in file.table(TIED_KEY).items():
        if alias in state or not isinstance(name, str) or name not in state:
            raise source.error(f"{alias} cannot be tied to {reprlib.repr(name)}")
        state[alias] = state[name]
    for name in file.table(NOT_PERSISTENT_KEY):
        if name not in state:
            raise source.error(f"{NOT_PERSISTENT_KEY} names {name}, which is not there")
        contents.not_persistent[name] = state.pop(name)


def assembled(name: str, description: Any, stored: dict[str, Tensor]) -> QuantizedTensor:
    """A quantised weight of its description and its fields, `<name>.<field>`, which leave `stored`.

    ValueError, which begins with the name, where they do not make a weight.
    """
    if not isinstance(description, dict):
        raise ValueError(f"{name}: its description must be a JSON object, got {reprlib.repr(description)}")
    tensor_type = _choose(name, description, "type", TENSOR_TYPES)
    dtype = _choose(name, description, "dtype", DTYPES)
    fields = description.get("fields")
    if not isinstance(fields, list) or fields != [known for known in tensor_type.fields if known in fields]:
        raise ValueError(
            f"{name}: fields must be of {list(tensor_type.fields)}, in this order, got {reprlib.repr(fields)}"
        )
    for key in fields:
        if f"{name}.{key}" not in stored:
            raise ValueError(f"{name}: the file lacks {name}.{key}")

    parts: dict[str, Tensor | None] = dict.fromkeys(tensor_type.fields)
    parts.update({key: stored.pop(f"{name}.{key}") for key in fields})
    attributes = described_attributes(tensor_type, description)
    try:
        weight = tensor_type.from_fields(parts, dtype, **attributes)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    weight = seen_as(weight, description.get(TRANSPOSED) is True)
    for difference in _differences(weight, description):
        raise ValueError(f"{name}: {difference}")
    return weight


def _differences(weight: Tensor, description: Any) -> list[str]:
    """What a description says other than it would of this weight."""
    if not isinstance(description, dict) or not isinstance(weight, QuantizedTensor):
        return ["it must be a quantised weight with a description"]
    return [
        f"{key} must be {expected!r}, got {reprlib.repr(description.get(key))}"
        for key, expected in describe_weight(weight).items()
        if description.get(key) != expected and not (key == QDATA_DTYPE and key not in description)
    ]


def _choose(name: str, description: Mapping[str, Any], key: str, choices: Mapping[str, Choice]) -> Choice:
    value = description.get(key)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: {key} must be one of {', '.join(choices)}, got {reprlib.repr(value)}")
    return choices[value]


# For those who keep a model's state in files of their own.


def flattened(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A state with the fields of its quantised weights, and the metadata that describes them.

    A weight that has been seen under another name is left out.
    """
    tensors: dict[str, Tensor] = {}
    weights: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        if isinstance(tensor, QuantizedTensor):
            if tensor.qdata.data_ptr() in seen:
                continue
            seen.add(tensor.qdata.data_ptr())
            weights[name] = describe_weight(tensor)
        tensors.update(stored_tensors(name, tensor))
    return tensors, {VERSION_KEY: FORMAT_VERSION, WEIGHTS_KEY: json.dumps(weights), TIED_KEY: "{}"}


def descriptions_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of its quantised weights, by their names; ValueError where it is damaged."""
    return table_of(metadata_of(path), WEIGHTS_KEY, Source("descriptions_in", Path(path)))


def has_quantised(path: str | os.PathLike[str]) -> bool:
    """Whether a safetensors file has quantised weights of aoext; a damaged one has not."""
    try:
        return bool(descriptions_in(path))
    except ValueError:
        return False
