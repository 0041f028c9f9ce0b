"""Which statements share a kernel.

Statements come in graph order and each either joins a group that stands after everything it needs, or starts one; the
groups stay in a total order in which every value is made before it is read, so no cycle can arise. A group is a loop
nest over `outer`; a member runs once an outer index ("row") or over further loops of its own ("inner"), reducing them
or not. Inner loops of one size are merged into one loop nest (`Member.loop_nest`) unless one needs what the other has reduced.

`column_reduction`: the loops of the innermost outer dimension run inside the reducing loops (a reduction over columns).
`split`: few outer indices and many inner ones, so the threads share the inner loops; such a group has one loop nest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import sympy
import torch
import torch.fx

from fxjit import budget
from fxjit.backends.graph.facts import may_raise

from ..choose.fusion import has_room, is_small, leaves_gpu_idle, shares_reduction
from ..choose.predictions import LOOK_BACK
from ..hints import Hints
from ..index import Size, Sizes, equal, prod, refine, same_sizes, segments, symbols_in
from ..ir import (
    Compute,
    Expr,
    Extern,
    Iota,
    Load,
    NotAffine,
    Statement,
    permute,
    reshape,
    reshape_strides,
    walk,
)
from ..ops import wants_vectors, work
from ..target import by_triton

#: A statement of at least so much work (`ops.work`), as functions take, joins no kernel over so many rows of so few numbers, of
#: which it would be calculated one by one. 32,768 rows of 2 / 4 / 8 floats, one thread of a Zen 5, times eager's speed: the
#: sine of a norm times the row 1.4 / 1.1 / 0.8 -> 3.7 / 3.0 / 1.8, logsumexp 0.6 / 1.1 / 1.2 -> 1.5 / 1.7 / 2.0, GELU of a sum
#: 0.7 / 0.6 / 0.6 -> 2.8 / 2.3 / 1.5, log-softmax 1.4 / 2.3 / 4.7 -> 1.5 / 2.9 / 4.9; of bfloat16 the first 1.1 / 0.8 / 1.1 ->
#: 5.2 / 4.6 / 3.1.
FUNCTION: Final = 16
FEW_NUMBERS: Final = 8
MANY_ROWS: Final = 256
#: Columns that a join leaves side by side, where a reduction has as many: of floats, four vectors of 512 bits.
COLUMNS_LEAST: Final = 64


@dataclass(eq=False, slots=True)
class Member:
    """A Compute in a group's coordinates: `outer` sizes of the group, then `inner` ones of its own."""

    compute: Compute
    inner: Sizes
    loop_nest: int = 0

    @property
    def is_row(self) -> bool:
        """Runs once an outer index and does not reduce."""
        return not self.inner and self.compute.reduction is None

    @property
    def gives_row(self) -> bool:
        """Its result is one value an outer index."""
        return not self.inner or self.compute.reduction is not None


@dataclass(eq=False, slots=True)
class Group:
    outer: Sizes
    members: list[Member] = field(default_factory=list)
    column_reduction: bool = False
    split: bool = False
    reducing: bool = False
    name: str = ""

    @property
    def device(self) -> torch.device:
        return self.members[0].compute.out.device

    @property
    def scatters(self) -> bool:
        """Stores at computed places have a kernel to themselves."""
        return self.members[0].compute.scatter is not None

    def writes(self) -> set[str]:
        return {member.compute.out.name for member in self.members}

    def reads(self) -> set[str]:
        return {name for member in self.members for name in member.compute.reads}

    def origins(self) -> frozenset[torch.fx.Node]:
        """The nodes of the graph that it computes."""
        return frozenset[torch.fx.Node]().union(*(member.compute.origins for member in self.members))


Step = Group | Extern


def reads_of(step: Step) -> set[str]:
    return step.reads() if isinstance(step, Group) else set(step.reads)


def writes_of(step: Step) -> set[str]:
    return step.writes() if isinstance(step, Group) else set(step.mutates | step.results)


def readers_of(steps: Sequence[Step]) -> dict[str, set[int]]:
    """Which of the steps read each buffer."""
    return _positions(map(reads_of, steps))


def writers_of(steps: Sequence[Step]) -> dict[str, set[int]]:
    """Which of the steps write each buffer."""
    return _positions(map(writes_of, steps))


def _positions(names: Iterable[set[str]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for position, each in enumerate(names):
        for name in each:
            found.setdefault(name, set()).add(position)
    return found


def writes_by_kernels(steps: Sequence[Step]) -> Counter[str]:
    """How many groups write each buffer."""
    return Counter(name for step in steps if isinstance(step, Group) for name in step.writes())


def fuse(statements: Iterable[Statement], hints: Hints) -> list[Step]:
    """Groups and extern calls in the order they run."""
    fuser = Fuser(hints)
    for statement in single_elements_first(statements):
        budget.spend("fusion")
        fuser.place(statement)
    for step in fuser.steps:
        if isinstance(step, Group):
            assign_loop_nests(step)
    return fuser.steps


def single_elements_first(statements: Iterable[Statement]) -> list[Statement]:
    """The statements with those that compute one element right behind what they need: a group stands after all that its
    members need, so that a factor computed between two statements over a tensor would keep these apart (an optimizer's moments
    and the update that they make, with the step's corrections between)."""
    written: dict[str, int] = {}
    touched: dict[str, int] = {}
    ordered: list[tuple[int, int, Statement]] = []
    for number, statement in enumerate(statements):
        reads = set(statement.reads)
        writes = {statement.out.name} if isinstance(statement, Compute) else set(statement.mutates | statement.results)
        place, after = number, 0
        if isinstance(statement, Compute) and _is_single(statement):
            place, after = max((-1, *(written.get(name, -1) for name in reads), *(touched.get(name, -1) for name in writes))), 1
        for name in reads | writes:
            touched[name] = max(place, touched.get(name, -1))
        written |= dict.fromkeys(writes, place)
        ordered.append((place, after, statement))
    return [statement for _, _, statement in sorted(ordered, key=lambda each: each[:2])]


def _is_single(compute: Compute) -> bool:
    """One element, computed of others and of no size, into memory of the graph's own."""
    return (all(equal(size, 1) for size in compute.domain) and not compute.has_order and compute.scatter is None
            and not compute.gathers() and compute.out.kind != "input"
            and not group_symbols(Group(compute.size, [Member(compute, compute.rsize)])))


class Fuser:
    def __init__(self, hints: Hints) -> None:
        self.hints = hints
        self.steps: list[Step] = []
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        self.step_reads: list[set[str]] = []
        self.step_writes: list[set[str]] = []
        #: The last step that may raise. One that writes to an input comes behind it, unless the statement itself came before.
        self.last_raising = -1
        #: The last extern call that is `ordered`.
        self.last_ordered = -1
        #: Which step finds a size that depends on data: who has it among its own sizes comes after that.
        self.found: dict[sympy.Symbol, int] = {}

    def place(self, statement: Statement) -> None:
        if isinstance(statement, Extern):
            self.append(statement, set(statement.reads), set(statement.mutates | statement.results))
            self.found |= dict.fromkeys(statement.node.meta.get("unbacked_bindings") or (), len(self.steps) - 1)
            if statement.ordered:
                self.last_ordered = len(self.steps) - 1
            if may_raise(statement.node):
                self.last_raising = len(self.steps) - 1
            return
        compute = normalize(statement, self.hints)
        reads = compute.reads
        for index in self.candidates(compute, reads):
            joined = self.join(index, compute, reads)
            if joined is not None:
                self.steps[index] = joined
                self.record(index, reads, {compute.out.name})
                break
        else:
            index = len(self.steps)
            self.append(self.start(compute), reads, {compute.out.name})
        if compute.gathers() and not by_triton(compute.out.device):
            self.last_raising = max(self.last_raising, index)

    def append(self, step: Step, reads: set[str], writes: set[str]) -> None:
        self.steps.append(step)
        self.step_reads.append(set())
        self.step_writes.append(set())
        self.record(len(self.steps) - 1, reads, writes)

    def record(self, index: int, reads: set[str], writes: set[str]) -> None:
        self.step_reads[index] |= reads
        self.step_writes[index] |= writes
        for name in reads:
            self.readers.setdefault(name, []).append(index)
        for name in writes:
            self.writers.setdefault(name, []).append(index)

    def start(self, compute: Compute) -> Group:
        group = Group(compute.size, [Member(compute, compute.rsize)], reducing=compute.has_order)
        if group.reducing:
            group.column_reduction = reduces_columns(compute, self.hints)
            group.split = shares_reduction(compute, group.column_reduction, self.hints)
        return group

    def earliest(self, compute: Compute, reads: set[str]) -> int:
        """The first step that may hold the statement."""
        first = 0
        for name in reads:
            first = max([first, *self.writers.get(name, ())])
        out = compute.out.name
        for index in self.writers.get(out, ()):
            first = max(first, index + 1)
        # What an input held before it is written: readers come before, or in the same group where `legal` allows it.
        for index in self.readers.get(out, ()):
            first = max(first, index)
        if compute.out.kind == "input":
            first = max(first, self.last_raising + 1)
        if compute.gathers():
            first = max(first, self.last_ordered + 1)
        if self.found:
            for symbol in group_symbols(Group(compute.size, [Member(compute, compute.rsize)])):
                first = max(first, self.found.get(symbol, -1) + 1)
        return first

    def candidates(self, compute: Compute, reads: set[str]) -> list[int]:
        first = self.earliest(compute, reads)
        end = len(self.steps)
        window = range(max(first, end - LOOK_BACK), end)
        # Who makes what the statement reads stands at `first`, however far back: an optimizer goes over its parameters step by
        # step, so that of a hundred the second step of each stands a hundred statements behind the first.
        far = [first] if first < window.start and self.step_writes[first] & reads else []
        places = [i for i in (*far, *window) if isinstance(self.steps[i], Group)]
        producers = [i for i in places if self.step_writes[i] & reads]
        sharers = [i for i in places if i not in producers and self.step_reads[i] & reads]
        others = [i for i in places if i not in producers and i not in sharers]
        return producers[::-1] + sharers[::-1] + (others[::-1] if is_small(compute, self.hints) else [])

    def join(self, index: int, compute: Compute, reads: set[str]) -> Group | None:
        group = self.steps[index]
        assert isinstance(group, Group)
        if group.device != compute.out.device or group.scatters or compute.scatter is not None:
            return None
        if not has_room(len(group.members), len(self.step_reads[index] | reads)):
            return None
        for attempt in (self.as_inner, self.as_row, self.as_permuted, self.regroup):
            try:
                made = attempt(group, compute)
            except NotAffine:
                continue  # the loops do agree, but not in a way that can be seen from symbols
            if made is None or not self.keeps_columns(made, group, compute):
                continue
            if keeps_neighbours(made, self.hints) and legal(made, self.hints):
                return made
        return None

    def keeps_columns(self, made: Group, group: Group, compute: Compute) -> bool:
        """Whether as many columns as a vector has stay side by side: groups of channels would leave a group's own."""
        if not made.column_reduction or by_triton(made.device):
            return True
        before = [group.outer] if group.column_reduction else []
        before += [compute.size] if reduces_columns(compute, self.hints) else []
        columns = min((self.hints(sizes[-1]) for sizes in before), default=0)
        return self.hints(made.outer[-1]) >= min(columns, COLUMNS_LEAST)

    def as_inner(self, group: Group, compute: Compute) -> Group | None:
        """The statement's outer loops are the group's; its other loops are inner ones."""
        if compute.has_order:
            if not group.reducing:
                return None
            if group.column_reduction != reduces_columns(compute, self.hints):
                return None
            outer, inner = compute.size, compute.rsize
        else:
            if not group.reducing:
                outer, inner = compute.size, ()
            else:
                cut = cut_at(compute.size, prod(group.outer))
                if cut is None or cut == len(compute.size):
                    return None
                outer, inner = compute.size[:cut], compute.size[cut:]
                if leaves_gpu_idle(prod(group.outer), inner, compute.out.device, self.hints):
                    return None
        common = refine(group.outer, outer)
        if common is None:
            return None
        # The same inner loops in the same pieces, so that they can share a loop nest.
        wanted = next((m.inner for m in group.members if m.inner and equal(prod(m.inner), prod(inner))), ())
        inner_common = refine(wanted, inner) if inner and wanted else inner
        if inner_common is None:
            return None
        members = [
            redomain(m, common, inner_common if m.inner and inner and equal(prod(m.inner), prod(inner)) else m.inner)
            for m in group.members
        ]
        members.append(redomain(Member(compute, inner), common, inner_common))
        return Group(common, members, group.column_reduction, group.split, group.reducing)

    def as_row(self, group: Group, compute: Compute) -> Group | None:
        """A statement without loops of its own, run once an outer index of a reducing group."""
        if compute.has_order or not group.reducing or self.leaves_vectors(group, compute):
            return None
        common = refine(group.outer, compute.size)
        if common is None:
            return None
        members = [redomain(m, common, m.inner) for m in group.members]
        return Group(common, [*members, redomain(Member(compute, ()), common, ())], group.column_reduction, group.split, True)

    def leaves_vectors(self, group: Group, compute: Compute) -> bool:
        """Whether a function of many rows would be calculated row by row, beside loops over a few numbers each."""
        rows, longest = self.hints(prod(group.outer)), max(self.hints(prod(member.inner)) for member in group.members)
        few = longest <= FEW_NUMBERS and rows >= MANY_ROWS
        return few and not group.column_reduction and not by_triton(group.device) and work(compute.expr) >= FUNCTION

    def as_permuted(self, group: Group, compute: Compute) -> Group | None:
        """A statement that reads what the group reduced or scanned, with its loops in the group's order, not its memory's."""
        if compute.has_order or not group.reducing:
            return None
        makers = {member.compute.out.name: member for member in group.members}
        for load in compute.loads():
            maker = makers.get(load.buffer)
            if maker is None or load.gathers:
                continue
            if maker.gives_row:
                outer = [k for k, stride in enumerate(load.strides) if stride != 0]
                inner = [k for k, stride in enumerate(load.strides) if stride == 0]
                order = [*outer, *inner] if outer and inner else []
            elif maker.compute.scan is not None and set(load.strides) == set(maker.compute.stride):
                order = [load.strides.index(stride) for stride in maker.compute.stride]
            else:
                continue
            # Of an order that is the statement's own, the other ways to join have had their turn.
            if order == sorted(order) or self.leaves_neighbours(group, compute, order):
                return None
            return self.as_inner(group, permuted(compute, tuple(order)))
        return None

    def leaves_neighbours(self, group: Group, compute: Compute, order: Sequence[int]) -> bool:
        """Whether vectors along rows would take, and store, numbers that lie apart, where the statement's own loops end side by
        side: images times a number of each channel, with the channels of a pixel in a row."""
        if group.column_reduction or by_triton(group.device) or not order:
            return False
        return self.hints(compute.stride[-1]) == 1 and self.hints(compute.stride[order[-1]]) != 1

    def regroup(self, group: Group, compute: Compute) -> Group | None:
        """A reduction or a scan joins a pointwise group: its outer loops become the group's."""
        if not compute.has_order or group.reducing:
            return None
        columns = reduces_columns(compute, self.hints)
        split = shares_reduction(compute, columns, self.hints)
        if equal(prod(group.outer), prod(compute.size)) and compute.size != ():
            common = refine(group.outer, compute.size)
            if common is None:
                return None
            members = [redomain(m, common, ()) for m in group.members]
            return Group(
                common, [*members, redomain(Member(compute, compute.rsize), common, compute.rsize)], columns, split, True
            )
        whole = refine(group.outer, compute.domain)
        if whole is None:
            return None
        cut = cut_at(whole, prod(compute.size))
        if cut is None:
            return None
        outer, inner = whole[:cut], whole[cut:]
        members = [redomain(Member(m.compute, ()), outer, inner, whole) for m in group.members]
        return Group(outer, [*members, redomain(Member(compute, compute.rsize), outer, inner)], columns, split, True)


def cut_at(sizes: Sizes, product: Size) -> int | None:
    """How many leading sizes make the product."""
    running: Size = 1
    if equal(running, product):
        return 0
    for position, size in enumerate(sizes):
        running = running * size if isinstance(running, int) and isinstance(size, int) else prod((running, size))
        if equal(running, product):
            return position + 1
    return None


def redomain(member: Member, outer: Sizes, inner: Sizes, whole: Sizes | None = None) -> Member:
    """The member over loops (outer, inner), which split its own."""
    old = member.compute
    new = outer + inner
    if same_sizes(old.domain, new) and len(member.inner) == len(inner):
        if same_sizes(old.size, outer) or not old.has_order:
            return Member(old, inner)
    written, after = (old.size, outer) if old.reduction is not None else (old.domain, new)
    loops = (outer, inner) if old.has_order else (new, ())
    stride = restride(written, old.stride, after)
    return Member(old.over(*loops, stride, lambda expr: reshape(expr, old.domain, new)), inner)


def restride(old: Sizes, stride: Sizes, new: Sizes) -> Sizes:
    if same_sizes(old, new):
        return stride
    if any(size == 0 for size in new):
        return (0,) * len(new)
    runs = segments(old, new)
    if runs is None:
        raise NotAffine(f"{old} as {new}")
    return reshape_strides(old, stride, new, runs)


def normalize(compute: Compute, hints: Hints) -> Compute:
    """Without loops of size 1; outer loops in the order of the memory written, inner ones in that of the memory read."""
    keep = [i for i, size in enumerate(compute.size) if size != 1]
    keep.sort(key=lambda i: -abs(hints(compute.stride[i])))
    ndim = len(compute.size)
    inner = [ndim + j for j, size in enumerate(compute.rsize) if size != 1]
    weight = read_strides(compute, hints)
    if compute.scan is None:
        inner.sort(key=lambda i: -weight[i])
    # Reducing one element is taking it.
    kind = compute if inner else replace(compute, reduction=None, scan=None)
    if kind is compute and keep == list(range(ndim)) and inner == list(range(ndim, ndim + len(compute.rsize))):
        return compute
    order = tuple(keep + inner)
    domain, written = compute.domain, keep if compute.scan is None else order
    return kind.over(
        tuple(domain[i] for i in keep), tuple(domain[i] for i in inner), tuple(compute.stride[i] for i in written),
        lambda expr: permute(expr, order),
    )  # fmt: skip


def permuted(compute: Compute, order: tuple[int, ...]) -> Compute:
    """A statement over loops that may run in any order, with them in another one."""
    pick = tuple(compute.size[k] for k in order)
    return compute.over(pick, (), tuple(compute.stride[k] for k in order), lambda expr: permute(expr, order))


def read_strides(compute: Compute, hints: Hints) -> list[int]:
    """A loop's weight: the strides by which it steps through what is read, added up."""
    total = [0] * len(compute.domain)
    for load in compute.loads():
        if len(load.strides) == len(total):
            for i, stride in enumerate(load.strides):
                total[i] += abs(hints(stride))
    return total


def reduces_columns(compute: Compute, hints: Hints) -> bool:
    """Whether neighbours in memory belong to different results."""
    if not compute.size or not compute.rsize:
        return False
    votes = 0
    for load in compute.loads():
        if len(load.strides) != len(compute.domain):
            continue
        last_outer, last_inner = abs(hints(load.strides[len(compute.size) - 1])), abs(hints(load.strides[-1]))
        # A row that is looked up for each step of the reduction is as far from the last one as rows are.
        last_inner += sum(abs(hints(gather.stride)) for gather in load.gathers if steps_through(gather.index))
        if last_outer and last_inner:
            votes += 1 if last_outer < last_inner else -1
    return votes > 0


def keeps_neighbours(group: Group, hints: Hints) -> bool:
    """Whether vectors across columns store side by side. Rows and columns of sizes that divide each other can be cut to the
    same loops (512 x 128 as 128 x 4 x 128), in which neighbours would be far from each other."""
    last = len(group.outer) - 1
    return not group.column_reduction or not any(
        abs(hints(member.compute.stride[last])) > 1 and any(hints(step) == 1 for step in member.compute.stride[last + 1 :])
        for member in group.members
        if not member.gives_row
    )


def steps_through(index: Expr) -> bool:
    """Whether a computed part of an address changes with the innermost loop."""
    return any(isinstance(node, (Load, Iota)) and node.strides[-1:] not in ((), (0,)) for node in walk(index))


def store_index(member: Member, outer: Sizes) -> tuple[Sizes, Size]:
    compute = member.compute
    stride = compute.stride
    if member.gives_row:
        stride = tuple(stride[: len(outer)])
    return stride, compute.offset


def reads_same_place(load: Load, producer: Member, reader: Member, outer: Sizes) -> bool:
    """The load reads, in each iteration, just what the producer wrote in that iteration."""
    if load.gathers:
        return False
    stride, offset = store_index(producer, outer)
    n = len(outer)
    if not equal(load.offset, offset):
        return False
    sizes = outer + reader.inner
    wanted = stride if not producer.gives_row else stride + (0,) * len(reader.inner)
    if not producer.gives_row and not same_sizes(producer.inner, reader.inner):
        return False
    if len(wanted) != len(load.strides) or len(sizes) != len(wanted) or n > len(wanted):
        return False
    return all(size == 1 or equal(a, b) for size, a, b in zip(sizes, load.strides, wanted, strict=True))


def legal(group: Group, hints: Hints) -> bool:
    """Every value made in the group is read in it only where it was made, and its loop nests can be laid out."""
    makers: dict[str, Member] = {}
    readers: dict[str, list[tuple[Load, Member]]] = {}
    for member in group.members:
        for load in member.compute.loads():
            readers.setdefault(load.buffer, []).append((load, member))
            producer = makers.get(load.buffer)
            if producer is not None:
                if member.is_row and group.reducing and not producer.gives_row:
                    return False
                if not reads_same_place(load, producer, member, group.outer):
                    return False
        if member.compute.out.name in makers:
            return False
        makers[member.compute.out.name] = member
    assign_loop_nests(group)
    if waits_for_scans(group):
        return False
    for name, writer in makers.items():
        # Memory that is read before it is written: each place by the iteration that writes it, and not later.
        for load, reader in readers.get(name, ()):
            before = group.members.index(reader) <= group.members.index(writer)
            if before and not (reads_same_place(load, writer, reader, group.outer) and reader.loop_nest <= writer.loop_nest):
                return False
    inner = [member for member in group.members if not member.is_row]
    return not group.split or all(member.loop_nest == 0 and member.compute.scan is None for member in inner)


def waits_for_scans(group: Group) -> bool:
    """Whether vectors would read what a scan along memory has just stored one by one, which processors are slow at."""
    if group.column_reduction or by_triton(group.device):
        return False
    scans = {member.compute.out.name: member for member in group.members if member.compute.scan is not None}
    return any(
        load.buffer in scans and member.loop_nest > scans[load.buffer].loop_nest and not member.is_row
        for member in group.members
        for load in member.compute.loads()
    )


def assign_loop_nests(group: Group) -> None:
    """The inner loops of nest t run, then its rows; a row before any inner loop has nest -1."""
    makers: dict[str, Member] = {}
    loop_nests: dict[int, list[Member]] = {}
    for member in group.members:
        loop_nest = -1 if member.is_row else 0
        for load in member.compute.loads():
            producer = makers.get(load.buffer)
            if producer is None:
                continue
            if member.is_row or not producer.gives_row:
                loop_nest = max(loop_nest, producer.loop_nest)
            else:
                loop_nest = max(loop_nest, producer.loop_nest + 1)
        if not member.is_row:
            while not all(share_a_loop(member, mate, group.column_reduction) for mate in loop_nests.get(loop_nest, ())):
                loop_nest += 1
            loop_nests.setdefault(loop_nest, []).append(member)
        member.loop_nest = loop_nest
        makers[member.compute.out.name] = member


def share_a_loop(a: Member, b: Member, column_reduction: bool) -> bool:
    """The same loops; and a scan along memory, which goes one by one, does not hold up what vectors compute faster."""
    if not same_sizes(a.inner, b.inner):
        return False
    return column_reduction or not any(
        each.compute.scan is not None and wants_vectors(other.compute.expr) for each, other in ((a, b), (b, a))
    )


#: What combining takes in scans by a function, in the units of `ops.work`.
SCAN_WORK: Final = {"logaddexp": 40}


def group_work(group: Group, hints: Hints) -> int:
    def of_element(member: Member) -> int:
        return sum(map(work, member.compute.exprs)) + SCAN_WORK.get(member.compute.scan or "", 0)

    return sum(of_element(member) * hints(prod(group.outer + member.inner)) for member in group.members)


def group_elements(group: Group, hints: Hints) -> int:
    """How often the longest of its loops runs."""
    return max(hints(prod(group.outer + member.inner)) for member in group.members)


def group_symbols(group: Group) -> set[sympy.Symbol]:
    """Every size that varies in the loops, strides and gathers of a group: what its kernel takes as numbers."""
    found: set[sympy.Symbol] = set(symbols_in(group.outer))
    for member in group.members:
        compute = member.compute
        found |= symbols_in((*member.inner, *compute.stride, compute.offset))
        found |= {s for g in compute.gathers() for s in symbols_in((g.stride, g.size))}
        for node in (node for expr in compute.exprs for node in walk(expr)):
            if isinstance(node, (Load, Iota)):
                found |= symbols_in((*node.strides, node.offset))
    return found
