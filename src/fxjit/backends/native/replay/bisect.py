"""Which kernel of a recorded graph differs from eager, and which statement of it: what `python -m fxjit bisect` says.

The graph runs operator by operator in eager, every value kept. Then each kernel runs by itself on right inputs, and what it
writes is compared with the reference interpreter, which runs the same loops in torch, and with eager's value of the operator.
So a difference is named where it arises: in the loops (lowering), in a kernel's code, or in none of them: then it is the
program's, which calls the kernels and shares memory among buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit import config

from .. import reference
from ..codegen.prelude import prelude
from ..codegen.scatter import render
from ..hints import Hints
from ..ir import Compute, Extern
from ..lower.table import Lowering
from ..printer import compute_text
from ..runtime import cc
from ..schedule.fuse import Group, fuse
from ..target import by_triton
from .record import Recorded
from .stages import Replayed, replay

TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-9), torch.float16: (1e-2, 1e-2),
              torch.bfloat16: (3e-2, 3e-2)}
Memory = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """A kernel that differs. `kernel` counts from 0 in the schedule's order; `statement` is the text of the loop nest; `nodes`
    are the operators it comes from; `where` says against what it differs, `how` by how much."""

    kernel: int
    statement: str
    nodes: tuple[str, ...]
    where: str
    how: str

    def __str__(self) -> str:
        return f"kernel {self.kernel} ({', '.join(self.nodes)}) {self.where}: {self.how}\n    statement: {self.statement}"


@dataclass(frozen=True, slots=True)
class Bisection:
    """`differences` in the order of the schedule, kernels that were not compared with the reason, and how the results of the
    whole compiled graph differ from eager's (empty: not at all)."""

    differences: tuple[Difference, ...]
    skipped: tuple[str, ...]
    kernels: int
    outputs: str


def bisect(recorded: Recorded, seed: int = 0) -> Bisection:
    """Runs the graph of a record on numbers of this seed, and compares."""
    inputs = recorded.example_inputs(seed)
    results, again = (Eager.of(recorded.gm, inputs, run) for run in range(2))
    replayed = replay(recorded)
    if replayed.low is None:
        return Bisection((), ("the whole graph: it runs node by node",), 0, "")
    comparison = Comparison(replayed, Eager.of(recorded.gm, inputs, 0), Eager.of(recorded.gm, inputs, 1), inputs)
    comparison.run()
    return Bisection(tuple(comparison.differences), tuple(comparison.skipped), comparison.kernels,
                     _compare_outputs(replayed, results, again, inputs))


class Eager(torch.fx.Interpreter):
    """Runs a graph operator by operator and keeps, by the node's name, a copy of each value as it was made, and of what an
    operator that writes to its arguments left in them."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(torch.fx.GraphModule(gm, _copy_of(gm.graph)), garbage_collect_values=False)
        self.values: dict[str, Any] = {}
        self.written: dict[tuple[str, str], Any] = {}
        self.outputs: list[Any] = []

    @classmethod
    def of(cls, gm: torch.fx.GraphModule, inputs: Iterable[Any], run: int) -> Eager:
        """After a run with random numbers of its own: values that two runs disagree in are random."""
        made = cls(gm)
        torch.manual_seed(run)
        made.outputs = pytree.tree_leaves(made.run(*_copies(inputs)))
        return made

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n.name] = pytree.tree_map_only(torch.Tensor, _copy, value)
        if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable:
            for arg in n.all_input_nodes:
                self.written[n.name, arg.name] = pytree.tree_map_only(torch.Tensor, _copy, self.env[arg])
        return value


def _copy_of(graph: torch.fx.Graph) -> torch.fx.Graph:
    """With the same names, of which the passes change the other."""
    made = torch.fx.Graph()
    names: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        names[node] = made.node_copy(node, lambda each: names[each])
        names[node].name = node.name
    return made


class Comparison:
    """Goes through the schedule with the memory that right kernels would leave."""

    def __init__(self, replayed: Replayed, eager: Eager, other: Eager, inputs: Iterable[Any]) -> None:
        assert replayed.low is not None
        self.low: Lowering = replayed.low
        self.steps, self.eager, self.other, self.hints = replayed.steps, eager, other, Hints({})
        self.memory: Memory = {
            name: torch.zeros(reference.extent(buffer), dtype=buffer.dtype) for name, buffer in self.low.buffers.items()
        }
        self.differences: list[Difference] = []
        self.skipped: list[str] = []
        self.kernels = 0
        #: The last statement that an operator's result is made by.
        self.last = {(node, member.compute.out.name): member for step in self.steps if isinstance(step, Group)
                     for member in step.members for node in member.compute.origins
                     if self.low.storage.get(node) == member.compute.out.name}
        for node, name in self.low.storage.items():
            if node.op in ("placeholder", "get_attr"):
                self._set(name, eager.values.get(node.name))

    def _set(self, name: str, value: Any) -> bool:
        """Puts a tensor where a buffer is; False where it is no tensor of that buffer's kind."""
        buffer = self.low.buffers[name]
        sizes, strides = reference.ints(buffer.size), reference.ints(buffer.stride)
        if not isinstance(value, torch.Tensor) or value.dtype is not buffer.dtype or tuple(value.shape) != sizes:
            return False
        self.memory[name] = reference.flat(torch.empty_strided(sizes, strides, dtype=buffer.dtype).copy_(value))
        return True

    def run(self) -> None:
        for step in self.steps:
            if isinstance(step, Extern):
                self._called(step)
                continue
            try:
                self._kernel(step)
            except (reference.NotInterpretable, IndexError) as why:
                self.skipped.append(f"kernel {self.kernels} ({', '.join(nodes_of(step))}): {why}")
            self.kernels += 1

    def _called(self, step: Extern) -> None:
        """ATen's results are eager's."""
        for node in (step.node, *step.node.users):
            if self.low.storage.get(node) in step.results:
                self._set(self.low.storage[node], self.eager.values.get(node.name))
        for node in step.node.all_input_nodes:
            if self.low.storage.get(node) in step.mutates:
                self._set(self.low.storage[node], self.eager.written.get((step.node.name, node.name)))

    def _kernel(self, group: Group) -> None:
        if by_triton(group.device):
            raise reference.NotInterpretable(f"it is for {group.device}")
        before = {name: each.clone() for name, each in self.memory.items()}
        for member in group.members:
            reference.execute(member.compute, self.memory)
        actual = self._launched(group, before)
        wrong = first_difference(group.writes(), actual, self.memory)
        if wrong is not None:
            self._report(*self._statement(group, before), "differs from its loops", wrong)
        self._against_eager(group)

    def _launched(self, group: Group, before: Memory) -> Memory:
        """The buffers `before`, copied, after the group's kernel ran."""
        memory = {name: each.clone() for name, each in before.items()}
        kernel = render(group, frozenset(), self.hints, config.num_threads)
        source = f'extern "C" int k0(void *const *P, const int64_t *S) {{\n{kernel.body}\n}}\n'
        library = cc.start(source, prelude(source, config.cpp.simd)).library()
        pointers = (ctypes.c_void_p * (len(kernel.buffers) + 1))(*(memory[name].data_ptr() for name in kernel.buffers))
        sizes = (ctypes.c_int64 * (len(kernel.sizes) + 1))(*(self.hints(each) for each in kernel.sizes))
        library.k0(pointers, sizes)
        return memory

    def _statement(self, group: Group, before: Memory) -> tuple[Group, Compute]:
        """The first statement of a wrong kernel that is wrong by itself; else the one with which the kernel goes wrong."""
        memory = {name: each.clone() for name, each in before.items()}
        for member in group.members:
            (alone,) = fuse([member.compute], self.hints)
            assert isinstance(alone, Group)
            actual = self._launched(alone, memory)
            reference.execute(member.compute, memory)
            if first_difference({member.compute.out.name}, actual, memory) is not None:
                return group, member.compute
        for count in range(1, len(group.members)):
            part = replace(group, members=group.members[:count])
            if first_difference(part.writes(), self._launched(part, before), self.memory) is not None:
                return group, group.members[count - 1].compute
        return group, group.members[-1].compute

    def _against_eager(self, group: Group) -> None:
        """The loops themselves may be wrong: then the reference interpreter differs from the operator. Goes on with eager's."""
        for member in group.members:
            name = member.compute.out.name
            for node in member.compute.origins:
                if self.last.get((node, name)) is not member or self._is_random(node):
                    continue
                loops = self.memory[name]
                if self._set(name, self.eager.values.get(node.name)):
                    wrong = _difference(loops, self.memory[name])
                    if wrong is not None:
                        self._report(group, member.compute, "has loops that differ from eager", f"{name} {wrong}")

    def _is_random(self, node: torch.fx.Node) -> bool:
        one, other = self.eager.values.get(node.name), self.other.values.get(node.name)
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and _difference(one, other) is not None

    def _report(self, group: Group, statement: Compute, where: str, how: str) -> None:
        names = tuple(sorted(node.name for node in statement.origins)) or nodes_of(group)
        self.differences.append(Difference(self.kernels, compute_text(statement), names, where, how))


def nodes_of(group: Group) -> tuple[str, ...]:
    return tuple(sorted({node.name for member in group.members for node in member.compute.origins}))


def first_difference(names: Iterable[str], actual: Memory, expected: Memory) -> str | None:
    """The first of these buffers that differs, and by how much."""
    for name in sorted(names):
        told = _difference(actual[name], expected[name])
        if told is not None:
            return f"{name} {told}"
    return None


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    if actual.shape != expected.shape or actual.dtype is not expected.dtype:
        return f"is {actual.dtype}{[*actual.shape]}, not {expected.dtype}{[*expected.shape]}"
    rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
    same = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if bool(same.all()):
        return None
    at = int((~same).flatten().nonzero()[0])
    return (f"differs in {int((~same).sum())} of {same.numel()} elements, first at {at}: "
            f"{actual.flatten()[at].item()}, not {expected.flatten()[at].item()}")


def _compare_outputs(replayed: Replayed, eager: Eager, other: Eager, inputs: Iterable[Any]) -> str:
    """How the compiled graph as a whole differs from eager, but for results that are random."""
    actual = pytree.tree_leaves(tuple(replayed.compiled(_copies(inputs))))
    told = []
    for place, (mine, theirs, again) in enumerate(zip(actual, eager.outputs, other.outputs, strict=True)):
        if isinstance(theirs, torch.Tensor) and _difference(theirs, again) is None:
            difference = _difference(mine, theirs)
            if difference is not None:
                told.append(f"output {place} {difference}")
    return "; ".join(told)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _copies(values: Iterable[Any]) -> list[Any]:
    return [_copy(each) if isinstance(each, torch.Tensor) else each for each in values]
