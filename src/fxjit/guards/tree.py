"""Builds the C guard tree of a compiled entry.

`build_tree` groups the guards of a trace by the sources they share and lowers what they compare with to what _tree.c
takes; pipeline.py calls it once an entry. The result is a `GuardTree`: `check(args, closure, globals, builtins)` says
whether all guards hold for a frame about to start, `first_failure(...)` which one does not, `num_guards`,
`num_nodes`, and `num_python`, the number of checks that C could not do.
"""

from __future__ import annotations

from typing import Any

import torch

from fxjit import config, tensor_shim
from fxjit._C import ACCESSORS, CHECKS, CONDITIONS, GuardTree, set_value_types, verify_fast_path
from fxjit.guards.constants import VALUE_TYPES
from fxjit.guards.kinds import Guard, GuardSet, Op
from fxjit.guards.parts import OfParts, TogetherSource
from fxjit.guards.source import BuiltinSource, GlobalSource, GlobalsSource, Source
from fxjit.guards.tensor_spec import TensorSpec

__all__ = ["GuardTree", "build_tree"]

set_value_types(tuple(VALUE_TYPES))
verify_fast_path(config.verify_guard_fast_path)


def _config_changed(name: str, value: Any) -> None:
    if name == "verify_guard_fast_path":
        verify_fast_path(value)


config.on_change(_config_changed)

#: The checks in the order in which a node tries them, which tree.def has.
_RANK = {name: rank for rank, (name, _) in enumerate(CHECKS)}
#: When each condition is tried: before the walk, after it, or last of all.
_WHEN = {name: when for name, _, when in CONDITIONS}
#: The order of the frame's own objects.
_ROOT_RANK = {name: rank for name, rank in ACCESSORS if rank >= 0}


class _Node:
    """An object on the way to what is guarded; see _tree.c."""

    __slots__ = ("accessor", "arg", "checks", "children", "guard", "slot")

    def __init__(self, accessor: str, arg: object, guard: int) -> None:
        self.accessor = accessor
        self.arg = arg
        self.guard = guard
        self.slot = -1
        self.children: list[_Node] = []
        self.checks: list[tuple[int, Op]] = []


def build_tree(guards: GuardSet, arg_names: tuple[str, ...], freevars: tuple[str, ...]) -> GuardTree:
    """The tree of these guards for a frame with these argument slots and free variables, in their order."""
    builder = _Builder(arg_names, freevars)
    listed = tuple(guards)
    for index, guard in enumerate(listed):
        builder.add(index, guard)
    return builder.finish(listed)


class _Builder:
    def __init__(self, arg_names: tuple[str, ...], freevars: tuple[str, ...]) -> None:
        self._in_c = tensor_shim.ensure()
        self._states = tensor_shim.readable_states() if self._in_c else frozenset()
        self._args = {name: index for index, name in enumerate(arg_names)}
        self._freevars = {name: index for index, name in enumerate(freevars)}
        self._roots: list[_Node] = []
        self._nodes: dict[Source | str, _Node] = {}
        self._early: list[tuple[int, tuple[int, ...], Op]] = []
        self._late: list[tuple[int, tuple[int, ...], Op]] = []
        self._num_slots = 0

    def add(self, index: int, guard: Guard) -> None:
        if any(isinstance(source.root, TogetherSource) for source in guard.sources):
            check = OfParts(guard)
            self._late.append((index, tuple(self._slot(part, index) for part in check.parts), ("python", check)))
            return
        for op in guard.ops:
            lowered = self._lower(op, guard)
            if lowered[0] in _RANK:
                self._node(guard.sources[0], index).checks.append((index, lowered))
                continue
            slots = tuple(self._slot(source, index) for source in guard.sources)
            (self._early if _WHEN[lowered[0]] == "EARLY" else self._late).append((index, slots, lowered))

    def finish(self, guards: tuple[Guard, ...]) -> GuardTree:
        self._roots.sort(key=lambda node: _ROOT_RANK[node.accessor])
        specs: list[tuple[Any, ...]] = []
        # Preorder; a node's spec is completed when its subtree is. A stack of our own: sources may be deep.
        pending: list[tuple[_Node, int, int]] = [(node, -1, -1) for node in reversed(self._roots)]
        while pending:
            node, parent, place = pending.pop()
            if place >= 0:
                specs[place] = self._spec(node, parent, len(specs))
                continue
            place = len(specs)
            specs.append(())
            pending.append((node, parent, place))
            pending.extend((child, place, -1) for child in reversed(node.children))
        self._late.sort(key=lambda condition: _WHEN[condition[2][0]] == "LAST")
        return GuardTree(
            tuple(specs), (*self._early, *self._late), len(self._early), self._num_slots, guards
        )

    def _spec(self, node: _Node, parent: int, end: int) -> tuple[Any, ...]:
        checks = node.checks
        if any(op[0] == "tensor" for _, op in checks):
            # A tensor check begins with the type.
            classes = {op[1] for _, op in checks if op[0] == "tensor"}
            checks = [check for check in checks if not (check[1][0] == "type" and check[1][1] in classes)]
        checks = sorted(checks, key=lambda check: _RANK[check[1][0]])
        return (parent, end, node.accessor, node.arg, node.slot, node.guard, tuple(checks))

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _slot(self, source: Source, guard: int) -> int:
        node = self._node(source, guard)
        if node.slot < 0:
            node.slot = self._num_slots
            self._num_slots += 1
        return node.slot

    def _node(self, source: Source, guard: int) -> _Node:
        node = self._nodes.get(source)
        if node is None:
            accessor, arg = source.accessor
            if isinstance(source, GlobalSource):
                node = self._child(self._dict_root("globals", guard), "item", arg, guard)
            elif isinstance(source, BuiltinSource):
                node = self._child(self._dict_root("builtins", guard), "item", arg, guard)
            elif isinstance(source, GlobalsSource):
                node = self._dict_root("globals", guard)
            elif source.base is not None:
                node = self._child(self._node(source.base, guard), accessor, arg, guard)
            else:
                node = _Node(accessor, self._place(accessor, arg), guard)
                self._roots.append(node)
            self._nodes[source] = node
        return node

    def _child(self, parent: _Node, accessor: str, arg: object, guard: int) -> _Node:
        node = _Node(accessor, arg, guard)
        parent.children.append(node)
        return node

    def _dict_root(self, which: str, guard: int) -> _Node:
        node = self._nodes.get(which)
        if node is None:
            node = self._nodes[which] = _Node(which, None, guard)
            self._roots.append(node)
        return node

    def _place(self, accessor: str, arg: object) -> object:
        """Names of the frame's variables become places in its slots."""
        if accessor == "arg":
            places = self._args
        elif accessor in ("deref", "cell"):
            places = self._freevars
        else:
            return arg
        if arg not in places:
            raise ValueError(f"a guard is about {arg!r}, which is no variable of the frame: {sorted(places)}")
        return places[str(arg)]

    # -- operations ------------------------------------------------------------------------------------------------

    def _lower(self, op: Op, guard: Guard) -> Op:
        """The operation as _checks.c and _conditions.c take it."""
        name = op[0]
        if name == "tensor":
            return self._lower_tensor(op[1]) or ("python", guard.holds)
        if name == "bases":
            return (name, tuple((base, False) for base in op[1]))
        if name == "found_in":
            return (name, ((op[1], True), (op[2], False)))
        if name == "state" and op[1] not in self._states:
            return op[3]  # type: ignore[no-any-return]  # an Op
        return op[:3] if name == "state" else op

    def _lower_tensor(self, spec: TensorSpec) -> Op | None:
        """The check in C; None where only Python can check: no shim, a subclass whose sizes are Python's, a dtype it has no
        code for."""
        python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python).raw_repr()
        nested = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).raw_repr()
        if not self._in_c or spec.dispatch_keys & (python | nested):
            return None
        dtype = tensor_shim.shim_code("dtype", spec.dtype)
        device_type = tensor_shim.shim_code("device_type", spec.device.type)
        layout = tensor_shim.shim_code("layout", spec.layout)
        if dtype is None or device_type is None or layout is None:
            return None
        index = -1 if spec.device.index is None else spec.device.index
        return (
            "tensor", spec.cls, spec.dispatch_keys, dtype, device_type, index, layout, spec.layout is torch.strided,
            spec.requires_grad, spec.sizes, spec.strides,
        )
