"""Equal blocks: a captured graph whose calls repeat, as those of a transformer's layers do, and the graph with fewer of them.

Blocks are equal where each call of one corresponds to a call of the next: the same function, the same constants, results of the
same layout, and arguments that correspond. An argument is a call of the same block or of the one before, an input that only
this block reads and that looks like the next block's, or what all blocks share. Only the last block is read from outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from .facts import changes_state, crosses_wrappers, placeholders_written

#: Where a node of a shortened graph says which block of which run of blocks it is from: `node.meta["custom"]`, which
#: AOTAutograd hands on to what it makes of the node, derivatives included.
MARK: Final = "fxjit_block"
#: Blocks that a shortened graph keeps: the first may differ in what it reads, the last in who reads it.
KEPT: Final = 3
#: The mark of calls behind the blocks; those before them have 0.
BEHIND: Final = KEPT + 1
#: Fewer calls are not worth the search of what became of them.
LEAST_CALLS, LEAST_BLOCKS = 8, KEPT + 1
#: Lengths of a block that are tried, likeliest first.
MOST_LENGTHS = 8


@dataclass(frozen=True)
class EqualBlocks:
    """The equal blocks of a captured graph, in their order: for each its calls, and the inputs that it alone reads."""

    gm: torch.fx.GraphModule
    calls: list[list[Node]]
    inputs: list[list[Node]]
    mark: str

    def shortened(self, example_inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
        """The graph with the first two blocks and the last, marked, and its example inputs."""
        kept = [0, 1, len(self.calls) - 1]
        dropped = {node for of in (self.calls, self.inputs) for place, block in enumerate(of) if place not in kept
                   for node in block}
        marks = {node: mark for mark, place in enumerate(kept, 1) for node in self.calls[place]}
        # What the last block reads of the one before it, it reads of the second.
        second = dict(zip(self.calls[-2], self.calls[1], strict=True))
        graph, mark = torch.fx.Graph(), 0
        made: dict[Node, Node] = {}
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        inputs = [example for node, example in zip(placeholders, example_inputs, strict=True) if node not in dropped]
        for node in self.gm.graph.nodes:
            if node in dropped:
                continue
            made[node] = graph.node_copy(node, lambda each: made[second.get(each, each)])
            if node.op in ("call_function", "call_method"):
                mark = marks.get(node, BEHIND if mark else 0)
                made[node].meta["custom"] = {**node.meta.get("custom", {}), self.mark: mark}
        short = torch.fx.GraphModule(self.gm, graph)
        short.meta.update(self.gm.meta)
        return short, inputs


def shortened(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[Any], list[EqualBlocks]]:
    """The graph without all but a few of its equal blocks, its example inputs, and what was shortened, in order."""
    runs: list[EqualBlocks] = []
    inputs = list(example_inputs)
    while (found := equal_blocks(gm, f"{MARK}_{len(runs)}")) is not None:
        runs.append(found)
        gm, inputs = found.shortened(inputs)
    return gm, inputs, runs


def equal_blocks(gm: torch.fx.GraphModule, mark: str) -> EqualBlocks | None:
    """The equal blocks of a graph that only calculates, which are to have this mark; None where there are too few of them."""
    calls = [node for node in gm.graph.nodes if node.op in ("call_function", "call_method")]
    if len(calls) < LEAST_BLOCKS * LEAST_CALLS or not _only_calculates(gm, len(calls)):
        return None
    kinds = _kinds(calls)
    for length in _likely_lengths(kinds):
        start, end = _longest_run(kinds, length)
        count = (end - start) // length
        if count < LEAST_BLOCKS:
            continue
        for first in range(start, end - count * length + 1):
            blocks = [calls[first + place * length: first + (place + 1) * length] for place in range(count)]
            blocks = _longest_alike(blocks)
            inputs = _Comparison(blocks).inputs() if len(blocks) >= LEAST_BLOCKS else None
            if inputs is not None:
                return EqualBlocks(gm, blocks, inputs, mark)
    return None


def _longest_alike(blocks: list[list[Node]]) -> list[list[Node]]:
    """The most blocks in a row that read inputs that look alike: parameters may be frozen in some."""
    best: list[list[Node]] = []
    row: list[list[Node]] = []
    for block in blocks:
        row = [*row, block] if row and _read_alike(row[-1], block) else [block]
        best = max(best, row, key=len)
    return best


def _read_alike(block: list[Node], other: list[Node]) -> bool:
    pairs = (pair for calls in zip(block, other, strict=True) for pair in zip(*map(_nodes_of, calls), strict=True))
    return all(_look(one.meta["example_value"]) == _look(two.meta["example_value"])
               for one, two in pairs if one.op == two.op == "placeholder")


def _only_calculates(gm: torch.fx.GraphModule, calls: int) -> bool:
    """No input is written to, no state is changed, no other graph is held, no size is a symbol; nothing has marks of others."""
    graph = gm.graph
    inputs = len(graph.find_nodes(op="placeholder"))
    if calls + inputs + 1 != len(graph.nodes) or crosses_wrappers(gm) or placeholders_written(gm):
        return False
    for node in graph.nodes:
        if "recompute" in node.meta or changes_state(node):
            return False
        if not all(key.startswith(MARK) for key in node.meta.get("custom", ())):
            return False
        if node.op != "output" and _look(node.meta.get("example_value")) is None:
            return False
    return True


def _look(value: Any) -> Hashable | None:
    """All that a trace can see of a fake value; None where that is not known or may vary."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or type(value) not in (FakeTensor, torch.Tensor, torch.nn.Parameter):
            return None
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        if not all(type(each) is int for each in numbers):
            return None
        return (len(value.shape), numbers, value.dtype, value.device, value.requires_grad, value.is_leaf, value.is_conj(),
                value.is_neg(), value.is_inference(), isinstance(value, torch.nn.Parameter), value._is_view())
    if isinstance(value, (tuple, list)):
        looks = tuple(map(_look, value))
        return None if None in looks else (type(value), looks)
    return (type(value), repr(value)) if type(value) in (int, float, bool, type(None), torch.Size) else None


def template(value: Any, nodes: list[Node]) -> Hashable:
    """Arguments without their nodes, which are appended in order: equal for equal constants of equal types."""
    if isinstance(value, Node):
        nodes.append(value)
        return Node
    if isinstance(value, (tuple, list)):
        return type(value), tuple(template(each, nodes) for each in value)
    if isinstance(value, dict):
        return dict, tuple((key, template(each, nodes)) for key, each in value.items())
    if isinstance(value, slice):
        return slice, tuple(template(each, nodes) for each in (value.start, value.stop, value.step))
    if type(value) in (float, complex):
        return type(value), repr(value)  # 0.0 and -0.0 are equal
    try:
        hash(value)
    except TypeError:
        return object()  # equal to nothing
    return type(value), value


def _kinds(calls: list[Node]) -> list[int]:
    """A number for each call; the same for calls that may correspond."""
    numbers: dict[Hashable, int] = {}
    kinds = []
    for node in calls:
        key = (node.op, node.target, template((node.args, node.kwargs), []), _look(node.meta.get("example_value")))
        kinds.append(numbers.setdefault(key, len(numbers)))
    return kinds


def _likely_lengths(kinds: list[int]) -> list[int]:
    """Distances at which calls of a kind come again and again, those that cover most first."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, kind in enumerate(kinds):
        places[kind].append(place)
    covered: Counter[int] = Counter()
    for found in places.values():
        for step in (1, 2, 3, 4, 6):
            gaps = Counter(later - place for place, later in zip(found, found[step:], strict=False))
            for gap, times in gaps.items():
                if times >= LEAST_BLOCKS - 1 and gap >= LEAST_CALLS:
                    covered[gap] = max(covered[gap], times * gap // step)
    return [length for length, _ in sorted(covered.items(), key=lambda each: (-each[1], each[0]))[:MOST_LENGTHS]]


def _longest_run(kinds: list[int], length: int) -> tuple[int, int]:
    """The longest stretch in which each call is of the kind of the one `length` later, up to the last of these."""
    best, start = (0, 0), 0
    for place in range(len(kinds) - length + 1):
        if place + length == len(kinds) or kinds[place] != kinds[place + length]:
            if place > start and place - start > best[1] - best[0] - length:
                best = start, place + length
            start = place + 1
    return best


class _Comparison:
    """Whether blocks whose calls are of the same kinds have corresponding arguments, and the inputs of each."""

    def __init__(self, blocks: list[list[Node]]) -> None:
        self.blocks = blocks
        self.place = {node: (number, slot) for number, block in enumerate(blocks) for slot, node in enumerate(block)}
        #: What only one block reads: the input of the second block -> those of all, in order.
        self.own: dict[Node, list[Node]] = {}

    def inputs(self) -> list[list[Node]] | None:
        """For each block the inputs that it alone reads; None where the blocks differ."""
        if not all(self._is_read_as(number, node) for node, (number, _) in self.place.items()):
            return None
        if not all(self._corresponding(calls) for calls in zip(*self.blocks, strict=True)):
            return None
        found = list(self.own.values())
        if len({node for nodes in found for node in nodes}) != len(found) * len(self.blocks):
            return None
        if not all(self._is_read_by(number, node) for nodes in found for number, node in enumerate(nodes)):
            return None
        return [list(each) for each in zip(*found, strict=True)] if found else [[] for _ in self.blocks]

    def _is_read_as(self, number: int, node: Node) -> bool:
        """Who reads a call: its block and the next one; of the last block, anyone behind."""
        readers = {self.place.get(user, (-1, 0))[0] for user in node.users}
        return number == len(self.blocks) - 1 or readers <= {number, number + 1}

    def _is_read_by(self, number: int, node: Node) -> bool:
        return all(self.place.get(user, (-1, 0))[0] == number for user in node.users)

    def _corresponding(self, calls: tuple[Node, ...]) -> bool:
        arguments = [list(_nodes_of(call)) for call in calls]
        return all(self._correspond(list(nodes)) for nodes in zip(*arguments, strict=True))

    def _correspond(self, nodes: list[Node]) -> bool:
        """The same argument of each block."""
        second = nodes[1]
        if second in self.place:
            number, slot = self.place[second]
            before = 1 - number
            if before not in (0, 1):
                return False
            if any(self.place.get(node) != (place - before, slot) for place, node in enumerate(nodes[1:], 1)):
                return False
            return before == 1 or self.place.get(nodes[0]) == (0, slot)
        if all(node is second for node in nodes):
            return True
        if any(node.op != "placeholder" for node in nodes):
            return False
        known = self.own.setdefault(second, nodes)
        looks = {_look(node.meta["example_value"]) for node in nodes}
        return known == nodes and len(looks) == 1


def _nodes_of(call: Node) -> Iterator[Node]:
    nodes: list[Node] = []
    template((call.args, call.kwargs), nodes)
    yield from nodes
