"""Ints that vary as keys of dicts: compared with each of the other keys, which is a guard; one entry for all that differ."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import fxjit


class Queried:
    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return self.number == other


BODIES = {
    "fresh": "e = {n: x, n + 1: x * 2}; return e[n] + e[n + 1], len(e), list(e), n in e, 3 in e, e.get(4)",
    "given": "d[n] = x * 2; return d[n], list(d), len(d)",
    "gone": "d[n] = x; y = d.pop(n); return y, list(d)",
    "twice": "d[n] = 1; d[n] = 2; d[n - 1 + 1] = x; return list(d), d",
    "known": "d[n] = x; d[3] = x * 2; d[4.0] = 5; d[True] = 6; return list(d.items())",
    "looked": "d[n] = x; return 3 in d, 3.0 in d, d.get(4), 'a' in d, None in d, n in d, (n,) in d",
    "views": "e = {n: 1}; return e.keys() & {3, 4}, e.keys() | {9}, set(e), sorted(e), e.items() & {(3, 1)}, e.keys() == {3}",
    "equal": "return {n: 1} == {3: 1}, {n: 1} == {n: 1}, {n: 1} != {4: 1}",
    "copies": "e = {n: x}; return list(dict(e)), list(e.copy()), list({**e}), list(e | {3: 1}), {k: v for k, v in e.items()}",
    "queried": "d[n] = 1; return Queried(3) in d, Queried(4) in d, d.get(Queried(n))",
    "after one that is queried": "e = {Queried(3): 1}; e[n] = 2; return len(e), x",
    "moved": "o = OrderedDict({1: 1}); o[n] = 2; o.move_to_end(1); o[5] = 3; o.move_to_end(n); return list(o), o.popitem()",
    "default": "o = defaultdict(list); o[n].append(x); o[n].append(1); o[3].append(2); return dict(o), len(o)",
    "counter": "c = Counter(); c[n] += 1; c[3] += 1; return dict(c), c.most_common()",
    "setdefault": "a = d.setdefault(n, x); b = d.setdefault(n, 5); return a is b, list(d)",
    "update": "d.update({n: x}); d.update([(n + 1, 2)]); return list(d)",
    "nested": "e = {(n, 1): x}; e[n] = {n: 2}; return e[(n, 1)], e[n][n], 3 in e[n]",
    "frozen": "return frozenset({n: 1}), tuple({n: 1}), {n: 1}.keys() - {3}",
    "over a break": "d[n] = x; e = {n: 1}\n    print(end='')\n    return d[n], e, list(d)",
    "text": "return str({n: 1}), repr({n: 1})",
    "cleared": "d[n] = 1; d.clear(); d[n] = 2; return d, x",
    "iterated": "d[n] = 1; i = iter(d); a = next(i); return a, list(i)",
    "mapped": "return tree_map(lambda v: v * 2, {n: x})",
    "numbers": "e = {n: x}; return list(e.items()), max(e), min(e), sum(e)",
}


def outcome(fn: Any, *args: Any) -> str:
    try:
        return repr(fn(*args))
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", BODIES)
def test_as_in_eager(name: str) -> None:
    scope: dict[str, Any] = {"Queried": Queried, "tree_map": torch.utils._pytree.tree_map, **vars(collections)}
    exec(f"def fn(x, n, d):\n    {BODIES[name]}\n", scope)
    fn = scope["fn"]
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True, recompile_limit=200):
        for number in (3, 4, 5, 6, 3, 1, 0, -1, 4, 17, True):
            for base in ({}, {3: 0}, {7: 1, "a": 2}):
                first, second = dict(base), dict(base)  # type: ignore[call-overload]  # of either kind
                x = torch.ones(2)
                assert outcome(fn, x, number, first) == outcome(compiled, x, number, second)
                assert repr(first) == repr(second)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_entry_for_all(backend: str) -> None:
    def fn(x: torch.Tensor, n: int, cache: dict[int, torch.Tensor]) -> torch.Tensor:
        cache[n] = x * 2
        return cache[n] + 1

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend=backend)
    for number in range(3, 12):
        caches: list[dict[int, torch.Tensor]] = [{}, {}]
        assert torch.equal(fn(torch.ones(2), number, caches[0]), compiled(torch.ones(2), number, caches[1]))
        assert repr(caches[0]) == repr(caches[1])
    assert fxjit.counters["stats"]["unique_graphs"] == 2
