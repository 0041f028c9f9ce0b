"""Entries: generated code in place of a frame, guards that decide, and how long all that lives."""

from __future__ import annotations

import gc
import types
import weakref

import pytest

from fxjit import _C
from fxjit.frontend import entries, hook


class Key:
    pass


def flattened(fn):
    """Code as the assembler writes it: the argument slots are plain positional parameters."""
    code = fn.__code__
    slots = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.replace(co_argcount=slots, co_kwonlyargcount=0, co_posonlyargcount=0, co_flags=code.co_flags & ~0xC)


def compiling_to(**replacements):
    """A callback that compiles the functions named to the code of the ones given."""
    compiled = []

    def callback(region, func, code, *rest):
        if code.co_name not in replacements:
            return None
        compiled.append(code.co_name)
        entry = _C.Entry(None, flattened(replacements[code.co_name]))
        entries.add(code, region.key, entry)
        return entry

    callback.compiled = compiled
    return callback


def test_the_entry_runs_in_place_of_the_frame_and_is_found_next_time():
    def f(x):
        return "old", x

    callback = compiling_to(f=lambda x: ("new", x))
    region = _C.Region(Key(), callback)
    compiled = _C.CompiledFunction(f, region)
    assert [compiled(i) for i in range(3)] == [("new", 0), ("new", 1), ("new", 2)]
    assert callback.compiled == ["f"]
    [entry] = entries.of(f.__code__, region.key)
    assert entry.hits == 3
    assert f(1) == ("old", 1)


def test_entries_take_all_kinds_of_arguments():
    def f(a, /, b, *rest, k=1, **named):
        raise AssertionError

    def new(a, /, b, *rest, k=1, **named):
        return a, b, rest, k, named

    compiled = _C.CompiledFunction(f, _C.Region(Key(), compiling_to(f=new)))
    for _ in range(2):
        assert compiled(1, b=2) == (1, 2, (), 1, {})
        assert compiled(1, 2, 3, 4, k=5, z=6) == (1, 2, (3, 4), 5, {"z": 6})


def test_entries_share_the_closure_and_the_globals():
    counter = 0

    def old():
        nonlocal counter
        counter -= 1

    def new():
        nonlocal counter
        counter += 1
        return __name__

    compiled = _C.CompiledFunction(old, _C.Region(Key(), compiling_to(old=new)))
    assert [compiled(), compiled()] == [__name__] * 2
    assert counter == 2


def test_one_code_object_with_two_closures_and_two_namespaces():
    def make(value):
        def f():
            return value

        return f

    region = _C.Region(Key(), compiling_to(f=make(None)))
    assert [_C.CompiledFunction(make(i), region)() for i in range(3)] == [0, 1, 2]

    source = "def g():\n    return here\n"
    code = compile(source, "<g>", "exec").co_consts[0]
    region = _C.Region(Key(), compiling_to(g=types.FunctionType(code.replace(co_name="g2"), {})))
    functions = [types.FunctionType(code, {"here": i}) for i in range(3)]
    assert [_C.CompiledFunction(g, region)() for g in functions] == [0, 1, 2]


def test_entries_stand_in_for_inner_frames():
    def inner(x, *, k):
        return "old"

    def f(x):
        return inner(x, k=2)

    compiled = _C.CompiledFunction(f, _C.Region(Key(), compiling_to(inner=lambda x, k: (x, k))))
    assert [compiled(1), compiled(2)] == [(1, 2), (2, 2)]


def test_the_first_entry_whose_guards_hold_runs_and_moves_to_the_front():
    asked = []

    def only_for(n):
        def tree(args, closure, globals_, builtins):
            asked.append(n)
            return args[0] == n

        return tree

    def f(x):
        return "eager"

    region = _C.Region(Key())
    for n in range(3):
        new = eval(f"lambda x: {n}")
        entries.add(f.__code__, region.key, _C.Entry(only_for(n), new.__code__))
    compiled = _C.CompiledFunction(f, region)
    assert compiled(1) == 1 and asked == [0, 1]
    asked.clear()
    assert compiled(1) == 1 and asked == [1]
    asked.clear()
    assert compiled(2) == 2 and asked == [1, 0, 2]
    asked.clear()
    assert compiled(9) == "eager" and asked[:3] == [2, 1, 0]
    assert sorted(e.hits for e in entries.of(f.__code__, region.key)) == [0, 1, 2]


def test_a_tree_sees_what_the_frame_has():
    value = 3

    def f(x, *rest, k):
        return value

    seen = []

    def tree(args, closure, globals_, builtins):
        seen.append((args, closure, globals_, builtins))
        return True

    def new(x, k, rest):
        return value

    region = _C.Region(Key())
    entries.add(f.__code__, region.key, _C.Entry(tree, new.__code__))
    assert _C.CompiledFunction(f, region)(1, 2, k=4) == 3
    [(args, closure, globals_, builtins)] = seen
    assert args == (1, 4, (2,)) and closure is f.__closure__
    assert globals_ is globals() and builtins["len"] is len


def test_a_guard_that_raises_raises_from_the_call():
    def tree(*args):
        raise KeyError("guard")

    def f(x):
        return x

    region = _C.Region(Key())
    entries.add(f.__code__, region.key, _C.Entry(tree, (lambda x: x).__code__))
    with pytest.raises(KeyError):
        _C.CompiledFunction(f, region)(1)
    with pytest.raises(KeyError):
        _C.CompiledFunction(lambda: f(x=1), region)()


def test_frames_of_guards_are_not_seen():
    def inside(x):
        return True

    def tree(args, *rest):
        assert _C.hook_info()["bypass"]
        return inside(args[0])

    asked = []
    region = _C.Region(Key(), lambda region, func, code, *rest: asked.append(code.co_name))

    def f(x):
        return "old"

    entries.add(f.__code__, region.key, _C.Entry(tree, (lambda x: "new").__code__))
    assert _C.CompiledFunction(f, region)(1) == "new"
    assert asked == []


def test_a_guard_may_take_the_entries_away_meanwhile():
    def f(x):
        return "old"

    region = _C.Region(Key())

    def tree(*args):
        entries.reset()
        _C.clear(f.__code__)
        gc.collect()
        return True

    for _ in range(3):
        entries.add(f.__code__, region.key, _C.Entry(lambda *args: False, (lambda x: "never").__code__))
        entries.add(f.__code__, region.key, _C.Entry(tree, (lambda x: "new").__code__))
        assert _C.CompiledFunction(f, region)(1) == "new"
        assert entries.of(f.__code__, region.key) == []


def test_regions_with_the_same_key_share_entries_and_others_do_not():
    def f(x):
        return "old"

    key = Key()
    callback = compiling_to(f=lambda x: "new")
    assert _C.CompiledFunction(f, _C.Region(key, callback))(1) == "new"
    assert _C.CompiledFunction(f, _C.Region(key, callback))(1) == "new"
    assert _C.CompiledFunction(f, hook.frozen_region(key))(1) == "new"
    assert callback.compiled == ["f"]
    assert _C.CompiledFunction(f, hook.frozen_region(Key()))(1) == "old"


def test_code_that_does_not_fit_is_refused():
    def f(x, *rest):
        return x

    def gen():
        yield

    with pytest.raises(ValueError, match="takes 1 arguments, a frame of .*f has 2"):
        _C.add_entry(f.__code__, "key", _C.Entry(None, (lambda x: x).__code__))
    with pytest.raises(ValueError, match="plain positional parameters"):
        _C.Entry(None, f.__code__)
    with pytest.raises(ValueError, match="plain positional parameters"):
        _C.Entry(None, gen.__code__)
    with pytest.raises(ValueError, match="is a generator"):
        _C.add_entry(gen.__code__, "key", _C.Entry(None, (lambda: 1).__code__))
    with pytest.raises(ValueError, match="has 1 free variables"):
        _C.add_entry((lambda x, y: x).__code__, "key", _C.Entry(None, (lambda x, y: f).__code__))
    with pytest.raises(TypeError, match="tree must be"):
        _C.Entry(3, (lambda: 1).__code__)
    entry = _C.Entry(None, (lambda x: x).__code__)
    with pytest.raises(ValueError, match="takes 1 arguments"):
        _C.CompiledFunction(f, _C.Region(Key(), lambda *args: entry))(1)


def test_generated_code_is_run_as_it_is_and_what_it_calls_is_seen():
    def helper():
        return "helped"

    def f():
        return "old", helper

    def generated():
        return helper()

    asked = []

    def callback(region, func, code, *rest):
        asked.append(code.co_name)
        return _C.Entry(None, generated.__code__) if code is f.__code__ else None

    assert _C.CompiledFunction(f, _C.Region(Key(), callback))() == "helped"
    assert asked == ["f", "helper"]
    assert _C.get_flags(generated.__code__) == _C.TRANSFORMED


def test_flags_of_a_code_object_hold_for_every_key_or_for_one():
    def inner():
        return "inner"

    def f():
        return inner(), _C.current_region() is not None

    def run(**flags):
        asked = []
        key = Key()
        region = _C.Region(key, lambda region, func, code, *rest: asked.append(code.co_name))
        for flag in flags.get("everywhere", ()):
            _C.set_flags(f.__code__, flag)
        for flag in flags.get("here", ()):
            _C.set_flags(f.__code__, flag, key)
        result = _C.CompiledFunction(f, region)()
        _C.clear(f.__code__)
        return result, asked

    assert run() == (("inner", True), ["f", "inner"])
    for where in ("everywhere", "here"):
        assert run(**{where: [_C.SKIP]}) == (("inner", True), ["inner"])
        assert run(**{where: [_C.SKIP_RECURSIVE]}) == (("inner", False), [])
    assert run(here=[_C.FROZEN]) == (("inner", True), ["inner"])


@pytest.mark.parametrize("recursive", [False, True])
def test_a_frame_skipped_by_its_callback_is_skipped_from_this_call_on(recursive):
    asked = []

    def callback(region, func, code, *rest):
        asked.append(code.co_name)
        if code.co_name == "f":
            entries.mark_skipped(code, region.key, "no-reason", recursive=recursive)

    def inner():
        return _C.current_region() is not None

    def f():
        return inner()

    region = _C.Region(Key(), callback)
    compiled = _C.CompiledFunction(f, region)
    assert compiled() is not recursive
    assert compiled() is not recursive
    assert asked == (["f"] if recursive else ["f", "inner", "inner"])
    assert entries.is_skipped(f.__code__, region.key) and not entries.is_skipped(f.__code__, Key())
    assert entries.skip_reasons(f.__code__) == ("no-reason",)


def test_at_the_limit_entries_are_used_and_nothing_is_compiled():
    def f(x):
        return "eager"

    asked = []
    region = _C.Region(Key(), lambda *args: asked.append(args))
    entries.add(f.__code__, region.key, _C.Entry(lambda args, *rest: args[0] == 1, (lambda x: "new").__code__))
    entries.mark_limit(f.__code__, region.key)
    compiled = _C.CompiledFunction(f, region)
    assert [compiled(1), compiled(2)] == ["new", "eager"]
    assert asked == []


def test_reset_drops_entries_skips_and_counts():
    def f():
        return "old"

    key = Key()
    callback = compiling_to(f=lambda: "new")
    compiled = _C.CompiledFunction(f, _C.Region(key, callback))
    compiled()
    entries.mark_skipped(f.__code__, key, "later")
    before = entries.stats()
    assert before.entries >= 1 and before.skipped >= 1 and entries.compiles(f.__code__) == 1
    entries.reset()
    assert entries.stats() == entries.Stats(0, 0, 0, 0)
    assert entries.skip_reasons(f.__code__) == () and entries.compiles(f.__code__) == 0
    assert compiled() == "new" and callback.compiled == ["f", "f"]


def test_remove_takes_one_entry():
    def f():
        return "old"

    key = Key()
    one, two = _C.Entry(None, (lambda: 1).__code__), _C.Entry(None, (lambda: 2).__code__)
    entries.add(f.__code__, key, one)
    entries.add(f.__code__, key, two)
    assert entries.remove(f.__code__, key, one) and not entries.remove(f.__code__, key, one)
    assert entries.of(f.__code__, key) == [two]
    assert _C.CompiledFunction(f, hook.frozen_region(key))() == 2


# ---- lifetimes ----


class Payload:
    pass


def compiled_once(key):
    namespace = {"__name__": "elsewhere"}
    exec("def f():\n    return 'old'\n", namespace)
    f = namespace["f"]
    payload = Payload()
    entry = _C.Entry(None, (lambda: "new").__code__, payload)
    entries.add(f.__code__, key, entry)
    assert _C.CompiledFunction(f, hook.frozen_region(key))() == "new"
    return f, weakref.ref(payload), weakref.ref(entry)


def test_entries_go_with_the_code_object():
    key = Key()
    f, payload, entry = compiled_once(key)
    gc.collect()
    assert payload() is not None
    code = weakref.ref(f.__code__)
    del f
    gc.collect()
    assert code() is None and payload() is None and entry() is None


def test_entries_go_with_the_key():
    key = Key()
    f, payload, entry = compiled_once(key)
    assert _C.keys(f.__code__) == [key]
    del key
    gc.collect()
    assert payload() is None and entry() is None
    assert _C.keys(f.__code__) == []


def test_keys_that_allow_no_weak_reference_work_and_live_on():
    f, payload, entry = compiled_once("a string")
    gc.collect()
    assert entry() is not None and _C.keys(f.__code__) == ["a string"]
    del f
    gc.collect()
    assert entry() is None


def test_key_and_code_may_go_in_any_order():
    for order in ("key first", "code first", "together"):
        key = Key()
        functions = [compiled_once(key) for _ in range(5)]
        if order == "key first":
            del key
            functions.clear()
        elif order == "code first":
            functions.clear()
            del key
        else:
            both = [key, functions]
            del key, functions
            both.append(both)
            del both
        gc.collect()
        assert not [o for o in gc.get_objects() if type(o) is Payload]


def test_an_entry_that_runs_survives_its_removal():
    def f():
        return "old"

    region = _C.Region(Key())

    def new():
        entries.reset()
        gc.collect()
        return "new", [i for i in range(3)]

    globals()["entries"] = entries
    entries.add(f.__code__, region.key, _C.Entry(None, new.__code__, Payload()))
    assert _C.CompiledFunction(f, region)() == ("new", [0, 1, 2])


def test_a_region_may_be_dropped_while_it_is_active():
    def f():
        del compiled.region_holder
        compiled.region = None
        gc.collect()
        return inner(1)

    def inner(x):
        return x

    asked = []
    region = _C.Region(Key(), lambda region, func, code, *rest: asked.append(code.co_name))
    compiled = _C.CompiledFunction(f, region)
    compiled.region_holder = region
    dead = weakref.ref(region)
    del region
    assert compiled() == 1
    # Other tests leave callbacks on the collector, whose frames are seen as well.
    assert [name for name in asked if name in ("f", "inner")] == ["f", "inner"]
    gc.collect()
    assert dead() is None
