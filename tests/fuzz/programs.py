"""Random Python functions over tensors: `program(seed)` gives the source of one.

Every function takes a tensor `x`, a list `items` and a number `n`, keeps a few tensors and numbers in names, and
returns them all. Statements are drawn until a budget is spent; `cut(v)` breaks the graph and gives `v` back.
"""

from __future__ import annotations

import random

PREAMBLE = '''
import contextlib
import torch
import fxjit


def cut(value=None):
    fxjit.graph_break()
    return value


def helper(a, b=2, *rest, k=1, **more):
    return a * k + b + len(rest) + len(more)


def gen(n):
    for index in range(n):
        got = yield index * 2
        if got:
            yield got


class Box:
    total = 0

    def __init__(self, value):
        self.value = value

    def add(self, other):
        self.value = self.value + other
        return self

    @property
    def twice(self):
        return self.value * 2

    def __add__(self, other):
        return Box(self.value + getattr(other, "value", other))


class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return 3

    def __exit__(self, kind, value, traceback):
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallow

'''


class Writer:
    """Writes one function."""

    def __init__(self, seed: int, breaks: bool = True) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.tensors = ["x"]
        self.numbers = ["n"]
        self.budget = self.random.randint(6, 22)
        self.fresh = 0
        self.breaks = breaks
        self.in_loop = False

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    # -- expressions ---------------------------------------------------------------------------------------------

    def maybe_cut(self, text: str) -> str:
        return f"cut({text})" if self.breaks and self.random.random() < 0.08 else text

    def number(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.4:
            return self.pick(*self.numbers, "1", "2", "3")
        left, right = self.number(depth + 1), self.number(depth + 1)
        return self.maybe_cut(self.pick(
            f"({left} + {right})", f"({left} - {right})", f"({left} * {right})", f"(len(items) + {left})",
            f"max({left}, {right})",
            f"sum([{left}, {right}])", f"({left} if {self.condition(depth + 1)} else {right})", f"helper({left}, {right})",
            f"helper({left}, k={right})", f"helper(*[{left}, {right}, 1], **{{'q': 1}})", f"abs({left})",
            f"len('%s-%s' % ({left}, {right}))", f"[{left}, {right}][0]", f"{{'a': {left}}}['a']",
            f"(lambda v, w={right}: v + w)({left})", "sum(v for v in gen(2))", f"Box({left}).twice",
        ))  # fmt: skip

    def tensor(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.3:
            return self.pick(*self.tensors)
        left, right = self.tensor(depth + 1), self.tensor(depth + 1)
        return self.maybe_cut(self.pick(
            f"({left} + {right})", f"({left} * {right})", f"({left} - {self.number(depth + 1)})", f"torch.relu({left})",
            f"{left}.clamp(-5, 5)", f"torch.where({left} > 0, {left}, {right})", f"Box({left}).add({right}).value",
            f"(Box({left}) + Box({right})).value", f"[{left}, {right}][{self.pick('0', '1', '-1')}]",
            f"({left} if {self.condition(depth + 1)} else {right})", f"helper({left}, {right})", f"-{left}",
            f"sum([{left}, {right}])", f"{left}.clone().mul_({self.pick('2', '-1')})", f"torch.stack([{left}, {right}])[0]",
        ))  # fmt: skip

    def condition(self, depth: int = 0) -> str:
        left, right = self.number(depth + 1), self.number(depth + 1)
        options = [f"{left} > {right}", f"{left} == {right}", f"{left} in [1, 2, 3]", f"not {left}", f"items and {left} < 3",
                   f"isinstance({left}, int)", f"{left} is not None"]
        if self.breaks and self.random.random() < 0.1:
            options = [f"{self.pick(*self.tensors)}.sum() > {self.pick('0', '3', '-3')}"]
        return self.pick(*options)

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, depth: int, size: int) -> None:
        before = (list(self.tensors), list(self.numbers))
        wrote = len(self.lines)
        for _ in range(size):
            if self.budget <= 0:
                break
            self.statement(depth)
        if len(self.lines) == wrote:
            self.emit(depth, "pass")
        if depth > 1:
            self.tensors, self.numbers = before

    def statement(self, depth: int) -> None:
        self.budget -= 1
        simple = [self.assign_tensor, self.assign_number, self.rebind, self.touch_items, self.unpack, self.comprehension]
        nested = [self.if_, self.for_, self.while_, self.try_, self.with_, self.function, self.generator]
        self.random.choice(simple if depth > 3 or self.random.random() < 0.6 else nested)(depth)

    def assign_tensor(self, depth: int) -> None:
        text, name = self.tensor(), self.name("t")
        self.emit(depth, f"{name} = {text}")
        self.tensors.append(name)

    def assign_number(self, depth: int) -> None:
        text, name = self.number(), self.name("a")
        self.emit(depth, f"{name} = {text}")
        self.numbers.append(name)

    def rebind(self, depth: int) -> None:
        if self.random.random() < 0.5:
            self.emit(depth, f"{self.pick(*self.tensors)} {self.pick('=', '+=')} {self.tensor()}")
        else:
            self.emit(depth, f"{self.pick(*self.numbers)} {self.pick('=', '+=', '-=')} {self.number()} % 7")

    def touch_items(self, depth: int) -> None:
        value = self.pick(self.number(), self.tensor())
        self.emit(depth, self.pick(f"items.append({value})", f"items.insert(0, {value})", f"log.append({self.number()})",
                                   f"items += [{value}]", f"log.extend([{self.number()}])", "items[:] = items[-4:]"))

    def unpack(self, depth: int) -> None:
        first, second = self.name("a"), self.name("t")
        self.emit(depth, f"{first}, ({second}, *_) = {self.number()}, ({self.tensor()}, 1)")
        self.numbers.append(first)
        self.tensors.append(second)

    def comprehension(self, depth: int) -> None:
        name = self.name("t")
        self.emit(depth, self.pick(
            f"{name} = sum([{self.tensor()} * i for i in range(3) if i != {self.number(2)}], {self.pick(*self.tensors)})",
            f"{name} = {{i: {self.tensor()} for i in range(2)}}[1]",
            f"{name} = sum(({self.pick(*self.tensors)} + v for v in gen(2)), {self.pick(*self.tensors)})",
        ))
        self.tensors.append(name)

    def if_(self, depth: int) -> None:
        self.emit(depth, f"if {self.condition()}:")
        self.block(depth + 1, 3)
        if self.random.random() < 0.5:
            self.emit(depth, "else:")
            self.block(depth + 1, 2)

    def for_(self, depth: int) -> None:
        index = self.name("i")
        over = self.pick("range(2)", "[1, 2]", "gen(2)", "list(range(3))[1:]", "zip([1, 2], [3, 4])")
        self.emit(depth, f"for {index} in {over}:")
        self.emit(depth + 1, f"{index} = {index} if isinstance({index}, int) else {index}[0]")
        self.numbers.append(index)
        outer, self.in_loop = self.in_loop, True
        if self.random.random() < 0.3:
            self.emit(depth + 1, f"if {self.condition()}: {self.pick('continue', 'break')}")
        self.block(depth + 1, 3)
        self.in_loop = outer
        self.numbers.remove(index)
        if self.random.random() < 0.2:
            self.emit(depth, "else:")
            self.block(depth + 1, 1)

    def while_(self, depth: int) -> None:
        index = self.name("w")
        self.emit(depth, f"{index} = 0")
        self.emit(depth, f"while {index} < {self.pick('1', '2', '3')}:")
        self.emit(depth + 1, f"{index} += 1")
        outer, self.in_loop = self.in_loop, True
        self.block(depth + 1, 2)
        self.in_loop = outer

    def try_(self, depth: int) -> None:
        self.emit(depth, "try:")
        self.block(depth + 1, 2)
        action = self.pick("raise ValueError(n)", "{}[n]", "[][5]", f"assert {self.condition()}", "int('q')", "pass")
        self.emit(depth + 1, action)
        if self.random.random() < 0.85:
            self.emit(depth, f"except {self.pick('ValueError', '(KeyError, IndexError)', 'Exception')} as error:")
            self.emit(depth + 1, "log.append(type(error).__name__)")
            self.block(depth + 1, 1)
            if self.random.random() < 0.3:
                self.emit(depth, "else:")
                self.block(depth + 1, 1)
            if self.random.random() < 0.3:
                self.emit(depth, "finally:")
                self.emit(depth + 1, "log.append('finally')")
        else:
            self.emit(depth, "finally:")
            self.emit(depth + 1, "log.append('finally')")

    def with_(self, depth: int) -> None:
        bound = self.name("a")
        known = ("torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)", "torch.inference_mode(False)",
                 "torch.autocast('cpu')", "torch.device('cpu')", "torch.profiler.record_function('here')")
        manager = self.pick(self.pick(*known), "contextlib.nullcontext(2)", "Manager(log, False)", "Manager(log, True)",
                            "contextlib.suppress(ValueError)")
        if manager in known or manager == "contextlib.suppress(ValueError)":
            self.emit(depth, f"with {manager}:")
            self.emit(depth + 1, "log.append((torch.is_grad_enabled(), torch.is_autocast_enabled('cpu')))")
        else:
            self.emit(depth, f"with {manager} as {bound}:")
            self.numbers.append(bound)
        self.block(depth + 1, 3)
        if bound in self.numbers:
            self.numbers.remove(bound)

    def function(self, depth: int) -> None:
        name, seen = self.name("f"), self.pick(*self.tensors)
        self.emit(depth, f"def {name}(p, q={self.number(2)}, *, r=1):")
        if self.random.random() < 0.4 and depth == 1:
            self.emit(depth + 1, f"nonlocal {seen}")
            self.emit(depth + 1, f"{seen} = {seen} + q")
        self.emit(depth + 1, f"return {self.maybe_cut('p * r')} + {seen} + q + {self.pick(*self.numbers)}")
        result = self.name("t")
        self.emit(depth, f"{result} = {name}({self.tensor()}{self.pick('', ', 3', ', r=2', ', q=4')})")
        self.tensors.append(result)

    def generator(self, depth: int) -> None:
        name = self.name("g")
        self.emit(depth, f"def {name}():")
        self.emit(depth + 1, "try:")
        self.emit(depth + 2, f"yield {self.tensor(2)}")
        self.emit(depth + 2, f"yield from [{self.maybe_cut(self.pick(*self.tensors))}]")
        self.emit(depth + 1, "finally:")
        self.emit(depth + 2, "log.append('closed')")
        result = self.name("t")
        self.emit(depth, f"{result} = {self.pick(f'sum(list({name}()))', f'[*{name}()][-1]')}")
        self.tensors.append(result)

    def write(self) -> str:
        self.emit(0, "def program(x, items, n):")
        self.emit(1, "log = []")
        while self.budget > 0:
            self.statement(1)
        self.emit(1, "log.append((torch.is_grad_enabled(), torch.is_autocast_enabled('cpu')))")
        self.emit(1, f"return [{', '.join(self.tensors + self.numbers)}], items, log")
        return PREAMBLE + "\n".join(self.lines) + "\n"


def program(seed: int, breaks: bool = True) -> str:
    """The source of a module with a function `program(x, items, n)`."""
    return Writer(seed, breaks).write()
