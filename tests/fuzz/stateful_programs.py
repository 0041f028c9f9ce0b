"""Random programs over state: functions that read and write a world of objects (world.py), and the steps that call them and
change that world between the calls. `program(seed)` gives one; `Program.text()` is what a reader wants of it.

The vocabulary is stateful_programs.txt.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
from collections.abc import Iterator


@dataclasses.dataclass
class Function:
    """Statements with how deep each stands; `head` may be a method's or a closure's."""

    name: str
    body: list[tuple[int, str]]
    kind: str = "plain"

    def text(self) -> str:
        lines = ["    " * (depth + 1) + line for depth, line in self.body] + ["    return x, y"]
        if self.kind == "closure":
            inner = "\n".join("    " + line for line in lines)
            head = f"def make_{self.name}():\n    held, many = 2, [1]\n\n    def {self.name}(w, x, k=1, *, m=None):\n"
            head += "        nonlocal held"
            return f"{head}\n        y = k\n{inner}\n    return {self.name}\n\n\n{self.name} = make_{self.name}()\n"
        return f"def {self.name}(w, x, k=1, *, m=None):\n    held, many, y = 2, [1], k\n" + "\n".join(lines) + "\n"


@dataclasses.dataclass
class Program:
    seed: int
    functions: list[Function]
    steps: list[str]

    def source(self) -> str:
        return "\n\n".join(each.text() for each in self.functions)

    @property
    def optimizes(self) -> bool:
        """Compiled, torch's optimizers keep their counters on the device, and calculate otherwise."""
        return "opt.step()" in self.source()

    def text(self) -> str:
        return f"{self.source()}\n# steps, on w = World({self.seed}):\n" + "\n".join(self.steps)


def _sections() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    text = pathlib.Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for section in text.split("\n== ")[1:]:
        name, *lines = section.splitlines()
        found[name] = ["" if line == "(nothing)" else line for line in lines if line]
    return found


WORDS = _sections()


class Writer:
    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)

    def fill(self, template: str, depth: int = 0) -> str:
        """The template with texts of their kinds in its gaps; braces of its own are written twice."""

        def text_of(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0][0]
            options = WORDS[match[1]]
            if depth > 2:  # the shallow ones
                options = [each for each in options if "{" not in each.replace("{node}", "")] or options
            return self.fill(self.chance.choice(options), depth + 1)

        return re.sub(r"\{\{|\}\}|\{(\w+)\}", text_of, template)

    def statements(self, depth: int, count: int) -> Iterator[tuple[int, str]]:
        for _ in range(count):
            kind = self.chance.random()
            if depth < 2 and kind < 0.22:
                head = self.fill(self.chance.choice(WORDS["block"]))
                yield depth, head
                if head.startswith("while"):
                    yield depth + 1, "w.counter += 1"
                yield from self.statements(depth + 1, self.chance.randint(1, 2))
                if head.startswith("if") and self.chance.random() < 0.4:
                    yield depth, "else:"
                    yield from self.statements(depth + 1, 1)
            elif depth < 2 and kind < 0.28:
                yield depth, "try:"
                yield from self.statements(depth + 1, self.chance.randint(1, 2))
                yield (
                    depth,
                    self.chance.choice(
                        ["except (ValueError, KeyError, AttributeError):", "except Exception as error:", "finally:"]
                    ),
                )
                yield depth + 1, "EVENTS.append('handled')"
            else:
                yield depth, self.fill(self.chance.choice(WORDS["statement"]))

    def call(self, functions: list[Function]) -> str:
        name = self.chance.choice([each.name for each in functions])
        around, given, rest = self.fill("{around}"), self.fill("{input}"), self.fill("{arguments}")
        if self.chance.random() < 0.2:
            return f"{around} r = settle({name}, w, {given})".strip()
        return f"{around} r = {name}(w, {given}{rest})".strip()

    def write(self) -> Program:
        if self.chance.random() < 0.25:
            return self.training()
        functions = [
            Function(
                f"f{index}",
                list(self.statements(0, self.chance.randint(2, 7))),
                self.chance.choice(["plain", "plain", "closure"]),
            )
            for index in range(self.chance.randint(1, 2))
        ]
        steps = []
        for _ in range(self.chance.randint(4, 9)):
            steps.append(self.call(functions))
            if self.chance.random() < 0.2:
                steps.append("backward(r)")
            if self.chance.random() < 0.08:
                steps.append("{node}.t = r[0]".replace("{node}", self.fill("{node}")))
            steps += [self.fill(self.chance.choice(WORDS["step"])) for _ in range(self.chance.choice([0, 1, 1, 1, 2]))]
        return Program(self.seed, functions, [*steps, self.call(functions)])

    def training(self) -> Program:
        loss = self.chance.choice(["out.square().mean()", "torch.nn.functional.mse_loss(out, x.flip(-1))",
                                   "out.softmax(-1).log().mean().neg()",
                                   "torch.nn.functional.cross_entropy(out, torch.arange(len(x)) % 4)",
                                   "out.abs().sum()"])  # fmt: skip
        whole = [
            (0, "w.opt.zero_grad()"),
            (0, "out = w.net(x)"),
            (0, f"y = {loss}"),
            (0, "y.backward()"),
            (0, "w.opt.step()"),
            (0, "y = y.detach()"),
        ]
        forward = [(0, "out = w.net(x)"), (0, f"y = {loss}")]
        step = [(0, "w.opt.step()"), (0, "w.opt.zero_grad()")]
        for body in (whole, forward, step):
            if self.chance.random() < 0.4:
                body.insert(self.chance.randint(0, len(body) - 1), (0, self.fill(self.chance.choice(WORDS["statement"][:90]))))
        functions = [Function("f0", whole), Function("f1", forward), Function("f2", step)]
        steps = []
        for _ in range(self.chance.randint(5, 10)):
            given = self.chance.choice(
                ["numbers(3, 4)", "numbers(3, 4, by=0.5)", "numbers(5, 4)", "numbers(2, 4)", "numbers(3, 4)"]
            )
            steps += self.chance.choice([[f"r = f0(w, {given})"],
                                         [f"r = f1(w, {given})", "r[1].backward()", "r = None", f"f2(w, {given})"],
                                         [f"r = settle(f0, w, {given})"],
                                         [f"with torch.no_grad(): r = f1(w, {given})"]])  # fmt: skip
            steps += [
                self.fill(self.chance.choice(WORDS["training"] if self.chance.random() < 0.7 else WORDS["step"]))
                for _ in range(self.chance.choice([0, 1, 1, 2]))
            ]
        return Program(self.seed, functions, steps)


def program(seed: int) -> Program:
    return Writer(seed).write()


def smaller(given: Program) -> Iterator[Program]:
    """Programs with something left out, the most first."""
    for size in (len(given.steps) // 2, 4, 2, 1):
        for start in range(len(given.steps) - size, -1, -1) if size else ():
            yield dataclasses.replace(given, steps=given.steps[:start] + given.steps[start + size :])
    for number, function in enumerate(given.functions):
        for start in range(len(function.body)):
            end = start + 1
            while end < len(function.body) and function.body[end][0] > function.body[start][0]:
                end += 1
            for body in (function.body[:start] + function.body[end:], _dedented(function.body, start, end)):
                changed = dataclasses.replace(function, body=body)
                yield dataclasses.replace(given, functions=[*given.functions[:number], changed, *given.functions[number + 1 :]])
    for index, step in enumerate(given.steps):
        for other in (
            step.replace("settle(", "", 1).replace(", w", "(w", 1) if "settle(" in step else step,
            re.sub(r"^with [^:]*: ", "", step),
        ):
            if other != step:
                yield dataclasses.replace(given, steps=[*given.steps[:index], other, *given.steps[index + 1 :]])


def _dedented(body: list[tuple[int, str]], start: int, end: int) -> list[tuple[int, str]]:
    """A block's statements in the place of the block."""
    return body[:start] + [(depth - 1, line) for depth, line in body[start + 1 : end]] + body[end:]
