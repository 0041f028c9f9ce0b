"""One dict that is a module's globals, the attributes of an object, a function, an exception or a tensor, and a dict besides:
what is written one way is read the other, and what was different dicts when it was compiled may be one later."""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


class Plain:
    pass


class Slotted:
    __slots__ = ("__dict__", "place")


class Layer(torch.nn.Module):
    pass


class Failure(Exception):
    pass


class OwnModule(types.ModuleType):
    pass


#: How a name is written, read and deleted.
PLACES = {
    "global": ("v = {}", "v", "del v"),
    "globals()": ("globals()['v'] = {}", "globals()['v']", "del globals()['v']"),
    "module": ("MOD.v = {}", "MOD.v", "del MOD.v"),
    "found": ("setattr(sys.modules['themod'], 'v', {})", "getattr(sys.modules['themod'], 'v')",
              "delattr(sys.modules['themod'], 'v')"),
    "vars": ("vars(MOD)['v'] = {}", "vars(MOD)['v']", "vars(MOD).pop('v')"),
    "dict": ("d['v'] = {}", "d['v']", "del d['v']"),
    "methods": ("d.update(v={})", "d.get('v', 1)", "d.pop('v')"),
    "object": ("o.v = {}", "o.v", "del o.v"),
    "its dict": ("o.__dict__['v'] = {}", "o.__dict__['v']", "del o.__dict__['v']"),
    "slotted": ("slotted.v = {}", "slotted.v", "del slotted.v"),
    "layer": ("layer.v = {}", "layer.v", "del layer.v"),
    "function": ("fn.v = {}", "fn.v", "del fn.v"),
    "function's dict": ("fn.__dict__['v'] = {}", "fn.__dict__['v']", "del fn.__dict__['v']"),
    "exception": ("err.v = {}", "err.v", "del err.v"),
    "partial": ("part.v = {}", "part.v", "del part.v"),
    "cached": ("cached.v = {}", "cached.v", "del cached.v"),
    "tensor": ("tensor.v = {}", "tensor.v", "del tensor.v"),
    "asked for": ("d.update(v={})", "hasattr(o, 'v') + len(vars(o).keys() & {{'v'}}) + ('v' in d)", "d.clear()"),
    "helper": ("helper_write({})", "helper_read()", "helper_delete()"),
    "__globals__": ("helper_read.__globals__['v'] = {}", "helper_read.__globals__['v']", "helper_read.__globals__.pop('v')"),
}  # fmt: skip
HELPERS = """
def helper_write(z):
    global v
    v = z

def helper_read():
    return v

def helper_delete():
    global v
    del v
"""
FORMS = (
    "{write}\n return x * {read}, 0",
    "first = {read}\n {write}\n return x * {read}, first",
    "{delete}\n try: return x * {read}\n except Exception as e: return x * 100, type(e).__name__",
)


def namespaces(kind: type, is_root: bool, program: str) -> tuple[Any, dict[str, Any]]:
    """A module, and the globals of the program, which are the module's (`is_root`) or not."""
    module = kind("themod")
    exec(HELPERS, module.__dict__)
    helpers = {name: module.__dict__[name] for name in ("helper_write", "helper_read", "helper_delete")}
    home = module.__dict__ if is_root else {"__builtins__": builtins, "__name__": "elsewhere", **helpers}
    home |= {"MOD": module, "sys": sys}
    exec(program, home)
    return module, home


def outcomes(compile: Callable[..., Any], namespaces: tuple[Any, dict[str, Any]], order: list[bool]) -> list[Any]:
    module, home = namespaces
    program, found = compile(home["program"]), []
    for shared in order:
        home["v"] = 10
        module.v = 2
        objects = [Plain(), Slotted(), Layer(), lambda: 1, Failure(), functools.partial(max, 1), functools.lru_cache(abs),
                   torch.ones(2)]
        state: dict[str, Any] = {"v": 20}
        for number, each in enumerate(objects):
            each.v = 21 + number
            if shared:
                for name, value in each.__dict__.items():
                    module.__dict__.setdefault(name, value)
                object.__setattr__(each, "__dict__", module.__dict__)
                state = module.__dict__
        try:
            result = program(torch.ones(1), state, *objects)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        places = (module.__dict__, home, state, *(each.__dict__ for each in objects))
        found.append(str((shared, result, [place.get("v", "-") for place in places])))
    return found


KINDS = [(types.ModuleType, False), (types.ModuleType, True), (OwnModule, False), (OwnModule, True)]


@pytest.mark.sweep(6)
@pytest.mark.parametrize("kind, is_root", KINDS)
@pytest.mark.parametrize("writer", PLACES)
def test_a_name_written_in_one_place_and_read_in_another(
    writer: str, kind: type, is_root: bool, monkeypatch: pytest.MonkeyPatch
):
    chosen = itertools.count(sorted(PLACES).index(writer) + KINDS.index((kind, is_root)))
    for reader, number in zip(PLACES, chosen, strict=False):
        body = FORMS[number % 3].format(write=PLACES[writer][0].format(3), read=PLACES[reader][1], delete=PLACES[writer][2])
        declared = " global v\n" if "global" in (writer, reader) else ""
        program = f"def program(x, d, o, slotted, layer, fn, err, part, cached, tensor):\n{declared} {body}\n"
        order = [[True, False, True], [False, True, False]][number // 3 % 2]
        fxjit.reset()
        runs = []
        for compile in (lambda fn: fn, lambda fn: fxjit.compile(fn, backend="eager")):
            made = namespaces(kind, is_root, program)
            monkeypatch.setitem(sys.modules, "themod", made[0])
            runs.append(outcomes(compile, made, order))
        assert runs[1] == runs[0], (reader, program, order)


OTHERS = [Slotted, Failure, lambda: functools.partial(max, 1), lambda: lambda: 1, lambda: torch.ones(1)]


@pytest.mark.parametrize("other", OTHERS)
def test_instance_dicts_that_are_one_object(other: Callable[..., Any]):
    def program(x, a, b):
        return x * (a.__dict__ is b.__dict__)

    for first in (Plain, Slotted):
        fxjit.reset()
        compiled = fxjit.compile(program, backend="eager")
        for shared in (True, False, True):
            a, b = first(), other()
            if shared:
                b.__dict__ = a.__dict__
            assert compiled(torch.ones(1), a, b) == shared
            assert compiled(torch.ones(1), b, a) == shared


def test_attributes_of_a_partial():
    part = functools.partial(torch.add, 1)

    def program(x):
        return part(x) * getattr(part, "scale", 7), getattr(part, "__name__", "none"), hasattr(part, "missing")

    compiled = fxjit.compile(program, backend="eager")
    for attributes in ({}, {"scale": 3}, {"scale": 4, "__name__": "add_one"}, {"missing": 1}):
        part.__dict__.clear()
        part.__dict__.update(attributes)
        assert str(compiled(torch.ones(1))) == str(program(torch.ones(1))), attributes


def test_attributes_of_a_cached_function_that_come_and_go():
    cached = functools.lru_cache(functools.partial(pow, 2))

    def program(x):
        return x * getattr(cached, "scale", 7) * cached(3)

    compiled = fxjit.compile(program, backend="eager")
    for attributes in ({}, {"scale": 3}, {"scale": 4}, {}):
        cached.__dict__.pop("scale", None)
        cached.__dict__.update(attributes)
        assert str(compiled(torch.ones(1))) == str(program(torch.ones(1))), attributes


def test_a_name_that_globals_lack_at_first():
    namespace: dict[str, Any] = {"__builtins__": builtins}
    exec("def program(x):\n try: return x * globals()['late']\n except KeyError: return x", namespace)
    compiled = fxjit.compile(namespace["program"], backend="eager")
    assert compiled(torch.ones(1)) == 1
    namespace["late"] = 5
    assert compiled(torch.ones(1)) == 5
