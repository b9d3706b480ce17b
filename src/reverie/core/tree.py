"""Nested tuples, lists, dictionaries and dataclasses of tensors, such as the state of a policy; shapes of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from torch import Tensor

from reverie.core.errors import RunError

T = TypeVar("T")


def flatten_named(tree: object, above: str = "") -> dict[str, Tensor]:
    """Return the tensors in ``tree`` by their paths, such as "obs.image"; other leaves are skipped."""
    if isinstance(tree, Tensor):
        return {above: tree}
    branches = {f"{above}.{name}" if above else str(name): branch for name, branch in _branches(tree).items()}
    return {path: leaf for name, branch in branches.items() for path, leaf in flatten_named(branch, name).items()}


def tensors_in(tree: object) -> list[Tensor]:
    """Return the tensors in ``tree``, of tuples and dictionaries alone; faster than ``flatten_named``."""
    if isinstance(tree, Tensor):
        return [tree]
    branches = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else ()
    return [x for branch in branches for x in tensors_in(branch)]


def rebuilder(template: object) -> Callable[[Iterator[Tensor]], Any]:
    """Return a function that makes a tree like ``template`` of other tensors, in the order of ``tensors_in``."""
    if isinstance(template, Tensor):
        return next
    if isinstance(template, dict):
        named = {name: rebuilder(branch) for name, branch in template.items()}
        return lambda tensors: {name: build(tensors) for name, build in named.items()}
    if isinstance(template, tuple):
        builders = [rebuilder(branch) for branch in template]
        make: Any = getattr(template, "_make", tuple)
        return lambda tensors: make([build(tensors) for build in builders])
    return lambda tensors: template


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of named tensors."""
    return {path: tuple(tensor.shape) for path, tensor in tensors.items()}


def unflatten_named(template: T, tensors: Mapping[str, Tensor]) -> T:
    """Return ``template`` with its tensors replaced by ``tensors``, by their paths, on the same devices and dtypes."""
    expected = flatten_named(template)
    if (shapes := shapes_of(tensors)) != (expected_shapes := shapes_of(expected)):
        raise RunError(f"the tensors have shapes {shapes}: expected {expected_shapes}.")
    return cast(T, _unflatten(template, (tensors[path].to(old.device, old.dtype) for path, old in expected.items())))


def _unflatten(template: object, tensors: Iterator[Tensor]) -> Any:
    if isinstance(template, Tensor):
        return next(tensors)
    branches = {name: _unflatten(branch, tensors) for name, branch in _branches(template).items()}
    if isinstance(template, Mapping):
        return branches
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        return dataclasses.replace(template, **branches)
    if isinstance(template, tuple):
        return template._replace(**branches) if hasattr(template, "_replace") else tuple(branches.values())
    return list(branches.values()) if isinstance(template, list) else template


def _branches(tree: object) -> dict[Any, Any]:
    """Return the children of a node by name or number."""
    if isinstance(tree, Mapping):
        return dict(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return {name: getattr(tree, name) for name in tree._fields}
    return dict(enumerate(tree)) if isinstance(tree, list | tuple) else {}


def check_tensor_shapes(shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Raise ValueError unless all given ``tensors`` have this shape: compiled functions get their addresses only."""
    for name, x in tensors.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {tuple(shape)}.")
