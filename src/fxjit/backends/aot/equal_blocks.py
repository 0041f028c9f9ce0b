"""AOTAutograd's graph of many equal blocks, from its graph of three.

A captured graph with many equal blocks (graph/blocks.py) goes through AOTAutograd with the first two and the last. In the graph
that it makes, forward, backward or both, the calls of the second block and of the last have to correspond as those of the
captured graph did; then what stands for the second block is repeated for each block that was left out, and AOTAutograd's
metadata gets the inputs that they read. Where they do not correspond the whole graph is traced (NotEqual).

Copies share the fake values of the second block: of an AOTAutograd graph's values nobody asks more than their layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch.fx import Node

from ..graph.blocks import KEPT, EqualBlocks, template
from ..graph.edit import outputs_of

_OF_INPUTS = (OutputType.alias_of_input, OutputType.is_input)


class NotEqual(Exception):
    """AOTAutograd made different things of equal blocks."""


class Lengthening:
    """The graphs and the metadata of one run of AOTAutograd, with all blocks of the captured graph."""

    def __init__(self, blocks: EqualBlocks) -> None:
        self.count, self.mark = len(blocks.calls), blocks.mark
        placeholders = blocks.gm.graph.find_nodes(op="placeholder")
        dropped = {node for block in blocks.inputs[2:-1] for node in block}
        places = {node: place for place, node in enumerate(placeholders)}
        #: Of each input of the shortened graph: its place in the whole one.
        self.places = [place for node, place in places.items() if node not in dropped]
        short = {place: index for index, place in enumerate(self.places)}
        #: For each block its own inputs, as places in the whole graph; and of the second and last, in the shortened one.
        self.inputs = [[places[node] for node in block] for block in blocks.inputs]
        self.second, self.last = ([short[place] for place in self.inputs[number]] for number in (1, -1))
        #: For each input of the whole graph: the input of the shortened one that looks like it.
        self.like = [short.get(place, -1) for place in range(len(placeholders))]
        for block in self.inputs[2:-1]:
            for place, second in zip(block, self.second, strict=True):
                self.like[place] = second

    def graph(self, module: torch.fx.GraphModule, gradients: bool) -> None:
        """Lengthens a graph in place; with `gradients`, its outputs end in one for each input. Raises NotEqual."""
        module.graph = _Lengthened(self, module.graph, gradients).made

    def metadata(self, meta: ViewAndMutationMeta) -> None:
        """Gives AOTAutograd's metadata the inputs of the whole graph."""
        meta.input_info[:] = [meta.input_info[index] for index in self.like]
        meta.output_info[:] = [
            dataclasses.replace(info, base_idx=self.places[info.base_idx])
            if info.output_type in _OF_INPUTS and info.base_idx is not None else info for info in meta.output_info]
        static = set(meta.static_input_indices)
        meta.static_input_indices[:] = [place for place, index in enumerate(self.like) if index in static]
        plain = [each for each in meta.subclass_inp_meta if isinstance(each, PlainTensorMeta)]
        if not len(plain) == len(meta.subclass_inp_meta) == len(self.places):
            raise NotEqual("inputs that are not plain tensors")
        meta.subclass_inp_meta[:] = [dataclasses.replace(plain[index], unwrapped_idx=place)
                                     for place, index in enumerate(self.like)]


class _Lengthened:
    """One lengthened graph."""

    def __init__(self, blocks: Lengthening, graph: torch.fx.Graph, gradients: bool) -> None:
        self.blocks, self.graph = blocks, graph
        self.made = torch.fx.Graph()
        self.env: dict[Node, Node] = {}
        placeholders = graph.find_nodes(op="placeholder")
        if len(placeholders) < len(blocks.places) or any(node.op == "get_attr" for node in graph.nodes):
            raise NotEqual("other inputs")
        self.inputs, self.tangents = placeholders[:len(blocks.places)], placeholders[len(blocks.places):]
        self.members = _members(graph, blocks.mark)
        if not self.members[2] or len(self.members[2]) != len(self.members[3]):
            raise NotEqual(f"{len(self.members[2])} calls and {len(self.members[3])}")
        self.block = {node: number for number, nodes in self.members.items() for node in nodes}
        #: A node of the second block, or an input of its own -> that of the last, and back.
        self.following = dict(zip(self.members[2], self.members[3], strict=True))
        own = [(self.inputs[index], self.inputs[last]) for index, last in zip(blocks.second, blocks.last, strict=True)]
        self.own = {second: slot for slot, (second, _) in enumerate(own)}
        self.following.update(own)
        self.preceding = {last: second for second, last in self.following.items()}
        #: What the second block reads of the first -> what the last reads of the second in its place; what the second reads of
        #: the last -> what the last reads, which has none behind it.
        self.counterparts: dict[Node, Node] = {}
        for second, last in zip(self.members[2], self.members[3], strict=True):
            self._compare(second, last)
        values = outputs_of(graph)
        self.first_gradient = len(values) - len(self.inputs) if gradients else len(values)
        self._check_readers(values)
        #: (node of the second block or input of its own, number of the block from 1) -> its copy for that block.
        self.copies: dict[tuple[Node, int], Node] = {}
        self._emit(values)

    # Do the second block and the last correspond?

    def _compare(self, second: Node, last: Node) -> None:
        of_second: list[Node] = []
        of_last: list[Node] = []
        same = (second.op == last.op == "call_function" and second.target is last.target
                and template((second.args, second.kwargs), of_second) == template((last.args, last.kwargs), of_last)
                and _looks_like(second.meta.get("val"), last.meta.get("val")))
        if not same or not all(self._corresponds(*pair) for pair in zip(of_second, of_last, strict=True)):
            raise NotEqual(f"{second.format_node()} and {last.format_node()}")

    def _corresponds(self, read: Node, by_last: Node) -> bool:
        number = self.block.get(read)
        if number == 2 or read in self.own:
            return self.following[read] is by_last
        if number == 1:  # what the block before made
            return self.block.get(by_last) == 2 and self.counterparts.setdefault(read, by_last) is by_last
        if number == 3:  # what the block behind made: derivatives
            return (by_last not in self.block and by_last not in self.preceding
                    and self.counterparts.setdefault(read, by_last) is by_last)
        return read is by_last and by_last not in self.preceding

    def _check_readers(self, values: Sequence[Any]) -> None:
        """The second block is read by its neighbours alone, but for the gradients of its own inputs."""
        for node in self.members[2]:
            if any(user.op != "output" and user not in self.block for user in node.users):
                raise NotEqual(f"{node.format_node()} is read from outside")
        for node in self.members[3]:
            if any(self.block.get(user) == 1 for user in node.users):
                raise NotEqual(f"{node.format_node()} is read by the first block")
        if any(self.block.get(value) == 2 for value in values[:self.first_gradient] if isinstance(value, Node)):
            raise NotEqual("a result of the second block")
        gradients = values[self.first_gradient:]
        for index, value in enumerate(gradients):
            slot = self.own.get(self.inputs[index])
            if slot is None:
                same = not isinstance(value, Node) or self.block.get(value) != 2
            else:
                other = gradients[self.blocks.last[slot]]
                same = value is other is None or (self.block.get(value) == 2 and self.following[value] is other)
            if not same:
                raise NotEqual(f"the gradient of input {index}")

    # The lengthened graph

    def _emit(self, values: Sequence[Any]) -> None:
        """In AOTAutograd's order: other blocks come between the second and the last, in derivatives the other way round."""
        order, last = list(self.graph.nodes), self.members[3][0]
        split, numbers = order.index(last), range(3, self.blocks.count)
        forward, backward = ([node for node in part if self.block.get(node) == 2] for part in (order[:split], order[split:]))
        self._placeholders()
        for node in order:
            if node is last:
                for number in numbers:
                    self._repeat(forward, number)
            elif backward and node is backward[0]:
                for number in reversed(numbers):
                    self._repeat(backward, number)
            if node.op == "output":
                self._output(node, values)
            elif node.op != "placeholder":
                self.env[node] = self.made.node_copy(node, self._reads(node))

    def _placeholders(self) -> None:
        slots = {place: (slot, number) for number, block in enumerate(self.blocks.inputs, 1)
                 for slot, place in enumerate(block)}
        short = {place: index for index, place in enumerate(self.blocks.places)}
        second = {slot: node for node, slot in self.own.items()}
        prefix = self.inputs[0].name.rstrip("0123456789_")
        for place, index in enumerate(self.blocks.like):
            node = self.inputs[index]
            made = self.made.placeholder(f"{prefix}_{place + 1}")
            made.meta.update(node.meta)
            if place in short:
                self.env[node] = made
            else:
                slot, number = slots[place]
                self.copies[second[slot], number] = made
            _redescribe(made, self.blocks.places, place)
        for node in self.tangents:
            self.env[node] = self.made.node_copy(node, self._read)

    def _repeat(self, nodes: list[Node], number: int) -> None:
        for node in nodes:
            self.copies[node, number] = self.made.node_copy(node, lambda read: self._copy(read, number))

    def _copy(self, read: Node, number: int) -> Node:
        """What stands in the place of an argument of the second block in another one."""
        block = self.block.get(read)
        if block == 2 or read in self.own:
            return self._of(read, number)
        if block == 1:
            return self._of(self.counterparts[read], number - 1)
        if block == 3:
            return self._of(self.preceding[read], number + 1)
        return self._read(read)

    def _of(self, node: Node, number: int) -> Node:
        """What corresponds to a node of the second block in the block of this number."""
        if number == 2:
            return self._read(node)
        if number == self.blocks.count:
            return self._read(self.following[node])
        found = self.copies.get((node, number))
        if found is None:
            raise NotEqual(f"{node.format_node()} is read before it is there")
        return found

    def _reads(self, node: Node) -> Callable[[Node], Node]:
        """The arguments of a node that is there already."""
        block = self.block.get(node)
        if block == 3:  # what it reads of the block before it
            return lambda read: self._of(read, self.blocks.count - 1) if self.block.get(read) == 2 else self._read(read)
        if block == 2:
            return lambda read: self._of(self.preceding[read], 3) if self.block.get(read) == 3 else self._read(read)
        return self._read

    def _read(self, node: Node) -> Node:
        found = self.env.get(node)
        if found is None:
            raise NotEqual(f"{node.format_node()} is read before it is there")
        return found

    def _output(self, node: Node, values: Sequence[Any]) -> None:
        def there(value: Any) -> Any:
            return self._read(value) if isinstance(value, Node) else value

        results, gradients = values[:self.first_gradient], values[self.first_gradient:]
        whole = [there(value) for value in results]
        numbers = {place: number for number, block in enumerate(self.blocks.inputs, 1) for place in block}
        kept = set(self.blocks.places)
        for place, index in enumerate(self.blocks.like if gradients else ()):
            value = gradients[index]
            whole.append(there(value) if place in kept or value is None else self._of(value, numbers[place]))
        made = self.made.output(tuple(whole) if isinstance(node.args[0], tuple) else whole)
        made.meta.update(node.meta)
        described = node.meta.get("desc")
        if isinstance(described, (list, tuple)) and len(described) == len(values):
            first = self.first_gradient
            made.meta["desc"] = [_moved(each, self.blocks.places.__getitem__) for each in described[:first]] + [
                _moved(described[first + index], lambda _, place=place: place)  # type: ignore[misc]  # a lambda's default
                for place, index in enumerate(self.blocks.like if gradients else ())]


def _members(graph: torch.fx.Graph, mark: str) -> dict[int, list[Node]]:
    """The calls of each block. Sums of gradients, which autograd makes by itself, belong to what was made before them."""
    members: dict[int, list[Node]] = {number: [] for number in range(1, KEPT + 1)}
    number: int | None = None
    for node in graph.nodes:
        if node.op == "call_function":
            number = (node.meta.get("custom") or {}).get(mark, number)
            if number in members:
                members[number].append(node)
    return members


def _looks_like(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and _facts(value) == _facts(other)
    if isinstance(value, (tuple, list)):
        return type(value) is type(other) and len(value) == len(other) and all(map(_looks_like, value, other))
    return bool(value == other)


def _facts(value: torch.Tensor) -> tuple[Any, ...]:
    return (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, value.layout, value.requires_grad,
            value.is_conj(), value.is_neg())


def _redescribe(made: Node, places: list[int], place: int) -> None:
    if "desc" in made.meta:
        made.meta["desc"] = _moved(made.meta["desc"], lambda _: place)


def _moved(description: Any, place: Callable[[int], int]) -> Any:
    """AOTAutograd's description of an input or output, of another input."""
    if not dataclasses.is_dataclass(description) or isinstance(description, type):
        return description
    changed: dict[str, Any] = {}
    for each in dataclasses.fields(description):
        value = getattr(description, each.name)
        if dataclasses.is_dataclass(value):
            changed[each.name] = _moved(value, place)
        elif each.name == "idx" and type(description).__name__ == "PlainAOTInput":
            changed[each.name] = place(value)
    return dataclasses.replace(description, **changed) if changed else description
