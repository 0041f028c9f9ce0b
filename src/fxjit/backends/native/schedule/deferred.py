"""Calls of a backward graph whose results only the caller reads run last, where the most memory that is held at once is less
for it.

The gradient of a weight is the result of such a call. Where a layer has few rows, it is larger than the two matrices that it is
the product of, and made where it stands it lies beside all that the layers before it keep for gradients of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from fxjit.backends.graph.facts import is_ordered, may_raise

from ..hints import Hints
from ..ir import Extern
from ..lower.table import Lowering
from .fuse import Step, readers_of, reads_of, writers_of, writes_of

#: The share of the peak that calls have to save. Where each layer's memory goes as its gradients come, what is freed has room
#: for what is made next, and in another order the process holds more. Growth of the process in a training step, MB, with the
#: calls where they stand, with those of this rule last, and with all last: BERT-base of 4 x 128 160, 160 (as it was), 270;
#: Swin-tiny of one image 75, 50, 44; ConvNeXt-tiny of two 137, 96, 96.
LEAST_SAVED: Final = 1 / 16


def defer_results(steps: Sequence[Step], low: Lowering, returned: Collection[str], hints: Hints) -> list[Step]:
    """The same steps in an order of a lower peak. `returned` are the buffers that the graph returns."""
    able = able_to_wait(steps, returned)
    late: frozenset[int] = frozenset()
    if able:
        memory = Memory(steps, low, returned, hints)
        at, peak = memory.peak(late)
        while at not in late:
            more = late | memory.saving([place for place in able if place < at], late)
            at, lower = memory.peak(more)
            if lower >= (1 - LEAST_SAVED) * peak:
                break
            late, peak = more, lower
    return [steps[place] for place in order(len(steps), late)]


def able_to_wait(steps: Sequence[Step], returned: Collection[str]) -> list[int]:
    """The places of calls that nothing behind them depends on: it neither reads their results nor writes what they read."""
    readers, writers = readers_of(steps), writers_of(steps)
    found = []
    for place, step in enumerate(steps):
        if not isinstance(step, Extern) or not step.results or step.mutates or may_raise(step.node) or is_ordered(step.node):
            continue
        alone = all(name in returned and name not in readers and writers[name] == {place} for name in step.results)
        if alone and all(max(writers.get(name, {-1})) < place for name in step.reads):
            found.append(place)
    return found


class Memory:
    """What steps hold: their results until they are read last, and what the forward kept for them. Parameters and what the
    caller gave stay where they are, and are not counted."""

    def __init__(self, steps: Sequence[Step], low: Lowering, returned: Collection[str], hints: Hints) -> None:
        self.reads, self.writes = [*map(reads_of, steps)], [*map(writes_of, steps)]
        self.sizes = Counter({name: hints(each.extent) * each.dtype.itemsize for name, each in low.buffers.items()})
        # So AOTAutograd names the inputs of a backward graph that are the program's.
        lent = {name for node, name in low.storage.items() if node.op == "placeholder" and node.name.startswith("primals")}
        for name in lent:
            self.sizes[name] = 0
        self.returned = frozenset(returned)
        self.kept = {name for node, name in low.storage.items() if node.op == "placeholder"}

    def bytes(self, names: Collection[str]) -> int:
        return sum(self.sizes[name] for name in names)

    def saving(self, places: Sequence[int], late: Collection[int]) -> frozenset[int]:
        """Those of the calls at these places that make more than is held for them beside what the late ones hold."""
        held = {name for place in late for name in self.reads[place]}
        found = set()
        for place in reversed(places):
            if place not in late and self.bytes(self.reads[place] - held) < self.bytes(self.writes[place]):
                found.add(place)
                held |= self.reads[place]
        return frozenset(found)

    def peak(self, late: Collection[int]) -> tuple[int, int]:
        """The place of the step at which the most bytes are held where these are late, and how many they are."""
        places = order(len(self.reads), late)
        last = {name: place for place in places for name in self.reads[place] | self.writes[place]}
        held = set(self.kept)
        now = self.bytes(held)
        found = (-1, now)
        for place in places:
            new = self.writes[place] - held
            held |= new
            now += self.bytes(new)
            found = max(found, (place, now), key=lambda each: each[1])
            gone = {name for name in self.reads[place] | self.writes[place] if last[name] == place} - self.returned
            held -= gone
            now -= self.bytes(gone)
        return found


def order(count: int, late: Collection[int]) -> list[int]:
    """The places of as many steps, those of the late ones last."""
    return sorted(range(count), key=lambda place: (place in late, place))
