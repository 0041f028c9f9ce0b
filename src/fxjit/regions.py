"""Compiled regions: from a user's callable to the hook, with the region's callback and frames to start in.

`api.py` and `module.py` make regions whose callback is `on_miss`: a frame without an entry goes through the skip rules
and the stance to the pipeline, which is imported then, because it is heavy.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

from . import _C, config, events, stance, torch_private
from .collector import collection_deferred
from .errors import FxjitError, is_foreign
from .forks import generator_is_lost
from .frontend import entries
from .homes import imported_module
from .options import RegionOptions, region_options
from .skips import FrameVerdict, frame_verdict, is_given_tensors, is_librarys, marks, mentions_tensors, python_replaced

_tracing = threading.local()
# The options a function was last compiled with, for `run` of the plain function: by the code object's id.
# That goes with the code, and nothing here keeps code alive.
_last_options: dict[int, tuple[weakref.ref[CodeType], RegionOptions]] = {}


# A frame that is called this often without a tensor counts as one that never sees any.
TENSORLESS_CALLS = 200
# The first calls of it are looked at, and then one each time that their number has doubled: looking costs more than the call.
TENSORLESS_LOOKS = 8


class _Tensorless:
    """Calls of code without a tensor."""

    __slots__ = ("calls", "code", "next_look")

    def __init__(self, code: CodeType) -> None:
        self.code = weakref.ref(code)
        self.calls = 0
        self.next_look = 1

    def passes_by(self, code: CodeType, key: RegionOptions) -> bool:
        """Counts a call; whether it is not looked at."""
        if self.code() is not code or entries.is_users(code, key):
            return False
        self.calls += 1
        return self.calls < self.next_look

    def note(self) -> bool:
        """The call had no tensor; whether none ever has."""
        self.next_look = self.calls + 1 if self.calls < TENSORLESS_LOOKS else min(self.calls * 2, TENSORLESS_CALLS)
        return self.calls >= TENSORLESS_CALLS


_tensorless_calls: dict[int, _Tensorless] = {}


#: The code objects of `inlining`, by the callable's identity, and by what says that callables are alike.
_codes_of_alike: weakref.WeakValueDictionary[Hashable, CodeType] = weakref.WeakValueDictionary()

#: Those last used of callables that are no part of the program, such as modules of torch's classes: the next one that is like
#: one of these finds its entries, as the next object of a user's class does.
_kept_codes: OrderedDict[Hashable, CodeType] = OrderedDict()
_MOST_KEPT: Final = 32

#: Options under which an artifact was loaded: their frames look for stored entries, whatever the settings say.
_with_artifacts: weakref.WeakSet[RegionOptions] = weakref.WeakSet()


def look_for_stored(options: RegionOptions) -> None:
    """Frames under these options look for stored entries from now on."""
    _with_artifacts.add(options)


def is_tracing() -> bool:
    """Whether this thread is compiling a frame."""
    return bool(getattr(_tracing, "on", False))


def visible(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, or a Python function that calls it where the frame of `fn` itself is none that the hook would touch."""
    if not _hidden(fn):
        return fn
    return inlining(fn)


def inlining(fn: Callable[..., Any], alike: Hashable = None, kept_as: Hashable = None) -> Callable[..., Any]:
    """A Python function that only calls `fn`, whose frame counts as user code.

    Entries and their limits are counted by code object, of which each callable has one of its own: one that is compiled again
    finds the entries that it has. Where callables are `alike`, they share it while one of them lives, and with it the entries:
    those whose guards hold for them. Under `kept_as` it is kept for those that come when none of them lives any more.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    own = _identity(fn)
    code = _codes_of_alike.get(alike) if alike is not None else None
    if code is None:
        code = _codes_of_alike.get(own) or _kept_codes.get(kept_as)
    shared = code is not None and (alike in _codes_of_alike if kept_as is None else _kept_codes.get(kept_as) is code)
    if code is None or (not shared and entries.compiles(code) >= config.recompile_limit):
        name = str(getattr(fn, "__name__", type(fn).__name__))
        code = call.__code__.replace(co_name=name, co_qualname=name)
        marks.set_code_traced(code)
    if alike is not None:
        _codes_of_alike[alike] = code
    _codes_of_alike[own] = code
    if kept_as is not None:
        _kept_codes.pop(kept_as, None)  # behind the others
        _kept_codes[kept_as] = code
        if len(_kept_codes) > _MOST_KEPT:
            _kept_codes.popitem(last=False)
    return FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


def _identity(fn: Callable[..., Any]) -> Hashable:
    """The callable's identity, by which it is known while a function that calls it lives: that keeps it alive."""
    if isinstance(fn, MethodType):  # a new object each time that it is read
        return "identity", id(fn.__self__), id(fn.__func__)
    return "identity", id(fn)


def _hidden(fn: Any) -> bool:
    inner = fn.__func__ if isinstance(fn, MethodType) else fn
    if isinstance(inner, FunctionType):
        if marks.disabled(inner) is not None:
            return False
        return is_librarys(inner.__code__, inner.__globals__)
    if isinstance(inner, functools.partial):
        return _hidden(inner.func)
    if isinstance(inner, BuiltinFunctionType):
        return True
    if isinstance(inner, (_C.CompiledFunction, _C.DisabledFunction)):
        return False
    return not isinstance(call_method(inner), FunctionType)


def on_miss(
    region: _C.Region,
    func: FunctionType,
    code: CodeType,
    args: tuple[object, ...],
    closure: Any,
    globals_: dict[str, Any],
    builtins: dict[str, Any],
) -> _C.Entry | None:
    """The hook's callback: a frame that no entry fits is about to start."""
    try:
        entry = _entry_for(region, func, code, args, closure, globals_, builtins)
    except _C.Interrupted:
        entry = None
    return _pipeline().raising_entry(code, args) if _C.signal_pending() else entry  # type: ignore[no-any-return]  # imported late, so untyped


def _entry_for(
    region: _C.Region,
    func: FunctionType,
    code: CodeType,
    args: tuple[object, ...],
    closure: Any,
    globals_: dict[str, Any],
    builtins: dict[str, Any],
) -> _C.Entry | None:
    tensorless = _tensorless_calls.get(id(code))
    if tensorless is not None and not is_given_tensors(args) and tensorless.passes_by(code, region.key):
        return None
    name = python_replaced()
    if name is not None:
        _untraced(region, func, code, globals_, name)
        return None
    verdict = frame_verdict(code, globals_, func)
    if verdict.skip:
        _pass_by(region.key, code, verdict)
        return None
    if verdict.shared and _may_not_fail(region.key):
        return None
    loaded = region.key in _with_artifacts
    if not loaded and not _may_compile(code, region.key, args):
        return None
    outside = _outside()
    if outside is not None:
        entry = _under_modes(region.key, func, code) if outside == _FUNCTION_MODE else None
        if entry is None:
            _leave_to(outside, region.key, code)
        return entry
    wanted = config.compile_tensorless_frames or entries.is_users(code, region.key) or marks.code_resumes(code)
    if not (wanted or mentions_tensors(code, args, closure, globals_)):
        _tensorless(code, region.key)
        return None
    if generator_is_lost():
        _refuse_for_generator(region.key, code)
        return None
    _C.defer_signals()
    before, _tracing.on = getattr(_tracing, "on", False), True
    try:
        with collection_deferred():  # importing the compiler makes as many objects as compiling does
            if loaded or config.store_entries:
                settled, entry = _stored(region.key, code, args, closure, globals_, builtins)
                if settled or (loaded and not _may_compile(code, region.key, args)):
                    return entry
            return _pipeline().compile_frame(region.key, func, code, args, closure, globals_, builtins)  # type: ignore[no-any-return]  # imported late, so untyped
    except RecursionError:  # no room left on the stack to compile in; the frame runs into the limit where eager does
        return None
    except FxjitError as error:
        if config.verbose:
            raise
        # Our own frames between the user's call and the error say nothing to the user; the cause keeps its own.
        raise error.with_traceback(None) from error.__cause__
    finally:
        _tracing.on = before


def _may_compile(code: CodeType, key: RegionOptions, args: tuple[object, ...]) -> bool:
    """Whether the stance lets a frame be compiled for which no entry is stored; raises where that is an error."""
    return entries.is_owed(code, key) or stance.on_miss(code, key, args)


def _pass_by(key: RegionOptions, code: CodeType, verdict: FrameVerdict) -> None:
    """A frame that a rule keeps the hook from, from now on. For what the user compiled that is reported."""
    entries.mark_skipped(code, None, verdict.reason, recursive=verdict.recursive)
    if entries.is_users(code, key) and verdict.reason == "skip-too-big":
        events.report_skip(code, verdict.reason, {"size": len(code.co_code)})
    else:
        events.log_passed_by(code, verdict.rule)


def report_code_kind(fn: Any) -> None:
    """The user compiles `fn`. The hook sees no frame of generators and coroutines, of which nothing is ever captured."""
    code = code_of(fn)
    verdict = frame_verdict(code, {}) if code is not None else None
    if code is not None and verdict is not None and verdict.reason == "skip-code-kind":
        events.report_skip(code, verdict.reason, {"rule": verdict.rule})


def _refuse_for_generator(key: RegionOptions, code: CodeType) -> None:
    """In a forked process whose generator is locked: frames that no entry fits run eagerly."""
    if key.fullgraph:
        raise events.unsupported("skip-generator-locked", {"function": code.co_qualname}, None)
    if entries.first_time(code, key, "skip-generator-locked"):
        events.report_skip(code, "skip-generator-locked", {})
    _warn_of_generator()


@functools.cache
def _warn_of_generator() -> None:
    warnings.warn("fxjit compiles nothing in this process: it was forked while another thread drew random numbers, and torch's "
                  "generator, which compiling reads, stays locked. Fork before threads draw, or start processes with `spawn`.",
                  RuntimeWarning, stacklevel=2)


def _leave_to(outside: str, key: RegionOptions, code: CodeType) -> None:
    """A frame that runs eagerly this time, since `outside` wants to see each operator."""
    if entries.is_users(code, key) and entries.first_time(code, key, outside):
        events.report_skip(code, "skip-seen-from-outside", {"outside": outside})
    else:
        events.log_passed_by(code, outside)


_AnyError: Final = Exception  # where a program has something else in the place of the builtin


def _untraced(region: _C.Region, func: FunctionType, code: CodeType, globals_: dict[str, Any], name: str) -> None:
    """A frame that is not compiled because `name` is not Python's own now. What says so calls the same functions: what they
    then raise is no error of the program's."""
    try:
        if frame_verdict(code, globals_, func).skip or not stance.on_miss(code, region.key, ()) or _outside() is not None:
            return
        if region.key.fullgraph:
            raise events.unsupported("skip-python-replaced", {"name": name, "function": code.co_qualname}, None)
        events.report_skip(code, "skip-python-replaced", {"name": name})
    except FxjitError:
        raise
    except _AnyError as error:
        if is_foreign(error):
            raise


def _agreed(key: RegionOptions, func: FunctionType, args: tuple[object, ...], held: bool) -> bool:
    """The hook's question at each look-up under `config.guard_collectives`: whether the entry that it found is used."""
    return importlib.import_module("fxjit.agreement").agreed(key, func, args, held)  # type: ignore[no-any-return]  # see _pipeline


def _config_changed(name: str, value: Any) -> None:
    if name == "guard_collectives":
        _C.set_agreement(_agreed if value else None)


config.on_change(_config_changed)
_config_changed("guard_collectives", config.guard_collectives)


def _may_not_fail(chosen: RegionOptions) -> bool:
    """Whether a frame that cannot be compiled, or not again, is an error now."""
    recompiles = config.error_on_recompile or config.fail_on_recompile_limit_hit or stance.current().name == "fail_on_recompile"
    return chosen.fullgraph or recompiles


def _outside() -> str | None:
    """The ambient interpreter that observes each operator: a transform (vmap, grad), forward differentiation, a dispatch
    mode, or none allowed, a mode of `__torch_function__`, `torch.export`, `torch.jit.trace` or `torch.fx.symbolic_trace`;
    None: nothing.
    Queried before the compiler is imported, since torch.export replaces builtin functions meanwhile."""
    torch_private.require()
    torch: Any = importlib.import_module("torch")  # `import fxjit` does without it
    if torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a dispatch mode"
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):  # fake tensors would be none
        return "a block in which __torch_dispatch__ is disabled"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch.compiler.is_exporting():
        return "torch.export"
    is_tracing = getattr(sys.modules.get("torch.fx._symbolic_trace"), "is_fx_symbolic_tracing", None)
    if is_tracing is not None and is_tracing():
        return "torch.fx.symbolic_trace"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward differentiation"
    included = _included_keys()  # by `jacobian(vectorize=True)`, or by a library for its own
    if included is not None and included().raw_repr() & ~_usual_keys():
        return "a dispatch key of the program's"
    return _FUNCTION_MODE if _under_a_mode(torch) else None


@functools.cache
def _included_keys() -> Callable[[], Any] | None:
    """Torch's function that says which dispatch keys this thread includes."""
    return torch_private.get_or("torch._C._dispatch_tls_local_include_set", None)  # type: ignore[no-any-return]  # by its name


@functools.cache
def _usual_keys() -> int:
    """The dispatch keys, as bits, that a thread includes for all operators."""
    torch: Any = importlib.import_module("torch")
    kinds = torch._C.DispatchKey
    usual = (torch._C.DispatchKeySet(each) for each in (kinds.BackendSelect, kinds.ADInplaceOrView))
    bits: int = functools.reduce(operator.or_, (each.raw_repr() for each in usual))
    return bits


_FUNCTION_MODE: Final = "a mode of __torch_function__"


def _under_modes(key: RegionOptions, func: FunctionType, code: CodeType) -> _C.Entry | None:
    """The entry of a frame that starts under modes of `__torch_function__`; None where it runs as it stands."""
    if not entries.is_users(code, key):  # what an eager function calls is seen by the mode anyway
        return None

    def make(options: RegionOptions, target: FunctionType) -> Any:
        note_options(target, options)
        return _C.CompiledFunction(target, _C.Region(options, on_miss))

    return importlib.import_module("fxjit.under_modes").entry_of(key, func, code, make)  # type: ignore[no-any-return]  # see _pipeline


def _under_a_mode(torch: Any) -> bool:
    """Whether a mode of `__torch_function__` is active other than a default device."""
    if not torch._C._len_torch_function_stack():
        return False
    device = sys.modules.get("torch.utils._device")  # which torch imports when the first default device is set
    modes = torch.overrides._get_current_function_mode_stack()
    return device is None or any(type(mode) is not getattr(device, "DeviceContext", None) for mode in modes)


def _tensorless(code: CodeType, key: Any) -> None:
    """A frame that has to do with tensors another time may not have today; after many such days it is left alone."""
    events.log_passed_by(code, "nothing that it can reach is a tensor")
    known = _tensorless_calls.get(id(code))
    if known is None or known.code() is not code:
        known = _tensorless_calls[id(code)] = _Tensorless(code)
        known.calls = 1
    if known.note():
        _C.set_flags(code, _C.get_flags(code, key) | _C.SKIP, key)


def _stored(key: RegionOptions, code: CodeType, args: tuple[object, ...], closure: Any, globals_: dict[str, Any],
            builtins: dict[str, Any]) -> tuple[bool, _C.Entry | None]:
    """Whether something on the disk fits the frame, so that the compiler is not even imported: an entry, or (None) that it
    runs as it stands."""
    stored = importlib.import_module("fxjit.stored.entries")
    found: tuple[bool, _C.Entry | None] = stored.find(key, stored.Frame(code, args, closure, globals_, builtins))
    return found


@functools.cache
def _pipeline() -> Any:
    if config.report:
        importlib.import_module("fxjit.report").start(config.report)
    torch_private.require(thoroughly=True)
    return importlib.import_module("fxjit.pipeline")


def options_of(fn: Any) -> RegionOptions:
    """The options of the last `compile` of `fn`."""
    code = _own_code(fn)
    found = _last_options.get(id(code)) if code is not None else None
    return found[1] if found is not None else region_options()


def note_options(fn: Any, chosen: RegionOptions) -> None:
    """`fn` was compiled, by itself or as part of a module: `run` of it finds the entries, and it counts for their limit."""
    code = _own_code(fn)
    if code is not None:
        key = id(code)
        inner = marks.unwrapped(fn)
        entries.note_compiled(code, chosen, inner.__self__ if isinstance(inner, MethodType) else inner)
        _last_options[key] = (weakref.ref(code, lambda dead: _last_options.pop(key, None)), chosen)


def dress(wrapper: Any, fn: Any) -> None:
    """Name, documentation, signature and attributes of the user's function, on what stands for it."""
    functools.update_wrapper(wrapper, fn)
    for name, value in (("__name__", type(fn).__name__), ("__qualname__", type(fn).__qualname__)):
        if name not in wrapper.__dict__:
            setattr(wrapper, name, value)


def code_of(fn: Any) -> CodeType | None:
    fn = marks.unwrapped(fn)
    code = getattr(fn.__func__ if isinstance(fn, MethodType) else fn, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _own_code(fn: Any) -> CodeType | None:
    """The code that a call of `fn` runs: its own, or that of its class's `__call__`."""
    return code_of(fn) or code_of(call_method(fn))


def call_method(fn: Any) -> Any:
    return inspect.getattr_static(type(fn), "__call__", None)


def reset() -> None:
    _last_options.clear()
    _kept_codes.clear()
    _tensorless_calls.clear()
    under_modes = imported_module("fxjit.under_modes")
    if under_modes is not None:
        under_modes.reset()


def compiled_function(options: RegionOptions, fn: Callable[..., Any], *, frozen: bool = False) -> Any:
    """A callable that runs `fn` in a region with `options`; frozen: nothing new is compiled."""
    fn = marks.unwrapped(fn)  # the last word counts, also over `disable`
    target = visible(fn)
    compiled = _C.CompiledFunction(target, _C.Region(options, None if frozen else on_miss))
    dress(compiled, fn)
    marks.set_compiled(compiled, fn)
    note_options(fn, options)
    if target is not fn:
        note_options(target, options)
    report_code_kind(target)
    return compiled


def disabled_function(fn: Callable[..., Any], reason: str | None) -> Any:
    """A callable that runs `fn`, and all that it calls, eagerly."""
    wrapper = _C.DisabledFunction(fn)
    dress(wrapper, fn)
    marks.set_disabled(wrapper, fn, True, reason)
    return wrapper


def reduced(function: Any) -> str | tuple[Any, ...]:
    """What pickles a compiled or disabled function: its name, as of any function, where that leads to it; else the function
    inside and how it is run, since `compiled = compile(f)` has the name of another."""
    name, module = getattr(function, "__qualname__", None), sys.modules.get(getattr(function, "__module__", None) or "")
    if isinstance(name, str):
        try:
            if operator.attrgetter(name)(module) is function:
                return name
        except AttributeError:
            pass
    if isinstance(function, _C.DisabledFunction):
        disabled = marks.disabled(function)
        return disabled_function, (function.__wrapped__, None if disabled is None else disabled.reason)
    region = function.region
    return _compiled_as_before, (region.key, function.__wrapped__, region.callback is None)


def _compiled_as_before(options: RegionOptions, fn: Callable[..., Any], frozen: bool) -> Any:
    return compiled_function(options, fn, frozen=frozen)


def is_of_another_trace(call: Any, own: Any) -> bool:
    """Whether a class's `__call__` is torch.fx's wrapper of its own, there as long as another thread traces: guards on what the
    module calls are of its own, and it is in place again soon."""
    return getattr(call, "__wrapped__", None) is own and entries.compiled_by_another_thread()
