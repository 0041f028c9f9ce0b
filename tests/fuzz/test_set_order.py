"""Random programs of sets, built, changed, combined, copied, given and handed over at breaks: their order is CPython's."""

from __future__ import annotations

import random

import pytest
import torch

import fxjit

NUMBERS = [0, 1, 2, 3, 5, 8, 13, 16, 24, 32, 40, 64, 65, 72, 96, 128, 160, 256, 1024, -2, -9, 2**40, 2**61]


def some(rng: random.Random, most: int = 9) -> str:
    return ", ".join(map(str, rng.sample(NUMBERS, rng.randint(1, most))))


def operand(rng: random.Random, sets: list[str]) -> str:
    kinds = ["{{{}}}", "set([{}])", "frozenset(({},))", "dict.fromkeys([{}]).keys()", "set(dict.fromkeys([{}]))"]
    return rng.choice(sets) if rng.random() < 0.4 else rng.choice(kinds).format(some(rng))


def statement(rng: random.Random, sets: list[str], number: int) -> tuple[str, ...]:
    target, other, new = rng.choice(sets), operand(rng, sets), f"s{number}"
    method = rng.choice(["update", "intersection_update", "difference_update", "symmetric_difference_update"])
    pure = rng.choice(["union", "intersection", "difference", "symmetric_difference"])
    several = f"{other}, {operand(rng, sets)}" if not method.startswith("symm") and rng.random() < 0.3 else other
    more = f"{other}, {operand(rng, sets)}" if not pure.startswith("symm") and rng.random() < 0.3 else other
    iterable = rng.choice([f"[{some(rng)}]", f"dict.fromkeys([{some(rng)}])", f"({some(rng)},)"])
    choices: list[tuple[str, ...]] = [
        (f"{target}.add({rng.choice(NUMBERS)})",),
        (f"{target}.add({rng.choice(NUMBERS)})", f"{target}.discard({rng.choice(NUMBERS)})"),
        (f"for v in [{some(rng)}]: {target}.discard(v)",),
        (f"for v in [{some(rng)}]: {target}.add(v)",),
        (f"if {target}: seen.append({target}.pop())",),
        (f"{target} {rng.choice('|&-^')}= set({other})",),
        (f"{target}.{method}({several})",), (f"{target}.{method}({iterable})",),
        (f"{new} = {target} {rng.choice('|&-^')} set({other})",), (f"{new} = {target}.{pure}({more})",),
        (f"{new} = {target}.{pure}({iterable})",),
        (f"{new} = {target}.copy()",), (f"{new} = set({target})",), (f"{new} = {{v for v in {target} if v % 3}}",),
        (f"{new} = set({other})",), (f"{target}.clear()",),
        (f"seen.append(list({target}))",), (f"seen.append(list({target}))",), ("graph_break()",),
    ]  # fmt: skip
    return rng.choice(choices)


def program(seed: int) -> str:
    rng = random.Random(seed)
    sets, body = ["a", "b"], []
    for number in range(rng.randint(5, 14)):
        lines = statement(rng, sets, number)
        body += lines
        if lines[0].startswith(f"s{number} ="):
            sets.append(f"s{number}")
    body.append(f"return seen, [list(s) for s in ({', '.join(sets)},)], ({', '.join(sets)},)")
    return "def f(x, a, seen):\n  y = x + 1\n  b = {" + some(rng) + "}\n" + "".join(f"  {line}\n" for line in body)


def given(seed: int) -> set[int]:
    """A set of the caller's: sometimes a table with gaps."""
    rng = random.Random(seed)
    found = set(rng.sample(NUMBERS, rng.randint(1, 12)))
    for number in rng.sample(NUMBERS, rng.randint(0, 8)):
        found.discard(number)
    return found


def outcome(f: object, x: object, seed: int) -> object:
    a: set[int] = given(seed)
    seen, orders, sets = f(x, a, [])  # type: ignore[operator]
    return seen, orders, [list(each) for each in sets], list(a)


def different(seed: int, x: object) -> tuple[str, object, object] | None:
    space = {"graph_break": fxjit.graph_break}
    text = program(seed)
    fxjit.reset()
    exec(text, space)
    f = space["f"]
    expected = outcome(f, x, seed)
    compiled = fxjit.compile(f, backend="eager")
    for _ in range(2):
        got = outcome(compiled, x, seed)
        if got != expected:
            return text, got, expected
    return None


@pytest.mark.parametrize("seed", range(12))
def test_sets_are_iterated_over_in_cpythons_order(seed: int) -> None:
    assert different(seed, torch.ones(2)) is None


def test_a_set_that_has_lost_elements_is_handed_over_with_its_gaps() -> None:
    def f(x):
        y = x + 1
        s = {0, 1, 2, 3, 5, 8, 13, 24, 40}
        for v in (0, 8, 24):
            s.discard(v)
        fxjit.graph_break()
        s.update((64, 32, 16))
        return y, list(s)

    x = torch.ones(2)
    assert fxjit.compile(f, backend="eager")(x)[1] == f(x)[1]
