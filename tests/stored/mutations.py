"""The programs of the guards' tables (tests/guards) in a process of their own, on a folder of stored entries:
`python -m tests.stored.mutations FOLDER ROLE`. The roles: `make` compiles, `same` starts with the same facts, `changed` with
one of them changed, `harmless` with a change that does not matter. Prints what became of each program, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.guards import test_catalogue as catalogue
from tests.guards import test_mutations as mutations

import fxjit
from fxjit import config
from fxjit.counters import counters


@dataclass
class Outcome:
    """What became of a program: whether the results were eager's, whether they are those of unchanged facts, how many entries
    were found on the disk and frames traced, and how many entries were not kept."""

    right: bool
    as_before: bool
    found: int
    traced: int
    unkept: int


@dataclass
class Program:
    """`run(world)` of a world that `change` and `harmless` may replace."""

    code: Callable[..., Any]
    world: Callable[[], Any]
    change: Callable[[Any], Any]
    harmless: Callable[[Any], Any]
    args: Callable[[Any], tuple[Any, ...]]
    warm: tuple[Callable[[Any], object], ...] = ()
    dynamic: bool | None = None
    backend: str = "eager"


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _product(x: torch.Tensor) -> torch.Tensor:
    return x @ x + x


def programs() -> dict[str, Program]:
    """Of both tables, and of the states of the process."""
    found = {f"kind {name}": Program(case.program, case.world, _only(case.change), _only(case.harmless), lambda world: (world,),
                                     case.warm) for name, case in catalogue.CASES.items()}
    found |= {f"tree {name}": Program(case.program, case.world, case.change, lambda world: None,
                                      lambda world: (torch.arange(1.0, 4.0), world), dynamic=case.dynamic)
              for name, case in mutations.CASES.items()}
    for states, code in ((catalogue.STATES, _doubled), ({name: of for name, (_, of) in catalogue.ASKED.items()}, _product)):
        for name, enter in states.items():
            found[f"state {name}"] = Program(_alike(code), lambda: None, lambda world, enter=enter: enter(),
                                             _only(lambda world: torch.manual_seed(3)),
                                             lambda world: (torch.eye(3, requires_grad=True),), backend="native")
    return found


def _only(change: Callable[[Any], object]) -> Callable[[Any], None]:
    """The change without what it gives."""
    def made(world: Any) -> None:
        change(world)

    return made


def _alike(function: Any) -> Any:
    """Of one text and another name: entries of its own."""
    counted = len(_made)
    _made.append(type(function)(function.__code__.replace(co_name=f"{function.__name__}_{counted}",
                                                          co_qualname=f"{function.__name__}_{counted}"), function.__globals__))
    return _made[-1]


_made: list[Any] = []


def run(program: Program, role: str) -> Outcome:
    """One program in a role, with its counts."""
    fxjit.reset()
    compiled = fxjit.compile(program.code, backend=program.backend, dynamic=program.dynamic)
    world, undo = program.world(), None
    unchanged = program.code(*program.args(world))
    if role == "make":
        compiled(*program.args(world))
        for step in program.warm:
            step(world)
            compiled(*program.args(world))
    before = {key: counters["cache"][key] for key in ("entry hit", "entry not kept")}, counters["frames"]["ok"]
    try:
        if role != "make":
            undo = {"changed": program.change, "harmless": program.harmless}.get(role, lambda world: None)(world)
            world = undo if isinstance(undo, int) else world
            # The compiled function first: what eager's call leaves in the process is not there when the entry is looked for.
            results = compiled(*program.args(world)), program.code(*program.args(world))
        else:
            results = unchanged, unchanged
    finally:
        if callable(undo):
            undo()
        torch.set_grad_enabled(True)
    (cache, ok) = before
    return Outcome(mutations.is_same(*results), mutations.is_same(results[1], unchanged),
                   counters["cache"]["entry hit"] - cache["entry hit"], counters["frames"]["ok"] - ok,
                   counters["cache"]["entry not kept"])


def main(folder: str, role: str) -> None:
    with config.patch(store_entries=True, cache_graphs=True, cache_dir=folder):
        print(json.dumps({name: vars(run(program, role)) for name, program in programs().items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
