"""The public functions: each checks its arguments and makes one call inward.

`compile` hands out a `_C.CompiledFunction`, which activates a region around each call (`regions.py`); what
a name means beyond that is kept in `skips/marks.py`, where the front end reads it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, TypeVar, overload

from . import _C, artifact, events, regions, stance
from .arguments import described, file_of, is_nn_module, is_tensor
from .counters import reset as reset_counters
from .errors import InvalidArgument, displayed
from .homes import imported_module
from .options import RegionOptions, region_options
from .regions import call_method, code_of, compiled_function, disabled_function, dress, is_tracing, options_of
from .skips import marks
from .skips.marks import Mark, error_on_graph_break

F = TypeVar("F", bound=Callable[..., Any])
BackendLike = str | Callable[..., Any]


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendLike = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    nopython: bool | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> F: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendLike = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    nopython: bool | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Callable[[F], F]: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendLike = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    nopython: bool | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Any:
    """Compile `model`: the result is called the same way and does the same, through graphs that `backend` compiled.

    Nothing is compiled before the first call; arguments that no compiled code fits are compiled for at that call.

    Args:
        model: a function, method, lambda, callable object, class with a `__call__`, or nn.Module. An nn.Module comes back as
            an `OptimizedModule` that shares its parameters, buffers and hooks. Left out, `compile` is a decorator.
        fullgraph: a graph break is an error (`errors.Unsupported`) and not a piece of ordinary Python between two graphs.
        dynamic: True: sizes are symbols from the first call on. False: every new size is compiled for by itself. None: a size
            becomes a symbol once it was seen to change.
        backend: one of `list_backends()`, or a callable `(gm: torch.fx.GraphModule, example_inputs: list) -> callable`.
        mode: `default`, `reduce-overhead`, `max-autotune` or `max-autotune-no-cudagraphs`: a name for some options.
        options: settings of `fxjit.config` by name, in force while this callable's graphs are compiled. Not with `mode`.
        disable: give `model` back as it is.
        nopython: another name for `fullgraph`.
        recompile_limit: entries that a code object may have under these arguments before it runs eagerly (with `fullgraph`: an
            error); None: `config.recompile_limit`.
        isolate_recompiles: the callable has entries of its own, which no other callable compiled with the same arguments uses
            or counts.

    Raises:
        InvalidArgument (a TypeError), ConfigError (a ValueError), InvalidBackend: an argument cannot be used, at once.
        Unsupported, BackendCompilerFailed, RecompileLimitExceeded, InternalError: from a call; docs/errors.md says when.
    """
    if nopython is not None:
        fullgraph = nopython
    chosen = region_options(backend, mode, options, fullgraph, dynamic, recompile_limit, isolate_recompiles)
    if not isinstance(disable, bool):
        raise InvalidArgument(f"compile: disable must be True or False, not {displayed(disable)}.")
    if model is None:
        return lambda fn: compile_with(chosen, fn, disable)
    return compile_with(chosen, model, disable)


def compile_with(chosen: RegionOptions, model: Any, disable: bool = False) -> Any:
    """`compile`, once its arguments were checked."""
    if not callable(model):
        called = " `fxjit.compile(f)(x)` compiles `f`; `fxjit.compile(f(x))` was given its result." if is_tensor(model) else ""
        raise InvalidArgument(f"compile: expected something callable or an nn.Module, not {described(model)}.{called}")
    if disable:
        return model
    if isinstance(model, type):
        return _compile_class(chosen, model)
    if is_nn_module(model):
        from .module import OptimizedModule  # here: it needs torch, which a program without modules may not have loaded

        return OptimizedModule(model, chosen)
    return compiled_function(chosen, model)


def _compile_class(chosen: RegionOptions, cls: type) -> type:
    """A decorated class stays the class, and calling its instances runs compiled."""
    if "__call__" in dir(cls):
        _set_on_class("compile", cls, "__call__", compiled_function(chosen, cls.__call__))  # type: ignore[attr-defined]  # the class has one
    return cls


def _set_on_class(name: str, cls: type, attribute: str, value: Any) -> None:
    try:
        setattr(cls, attribute, value)
    except TypeError:
        raise InvalidArgument(f"{name}: {cls.__qualname__} is a class that cannot be changed.") from None


def run(fn: Any = None) -> Any:
    """`fn` (a function, a compiled function or a module) frozen: where code compiled before fits a call it is used, and
    otherwise the call runs eagerly; nothing new is compiled. Without `fn`: the decorator."""
    if fn is None:
        return run
    if not callable(fn):
        raise InvalidArgument(f"run: expected a function, a compiled function or a module, not {described(fn)}.")
    if is_nn_module(fn):
        from .module import OptimizedModule

        chosen = fn.options if isinstance(fn, OptimizedModule) else options_of(fn.forward)
        return OptimizedModule(fn._orig_mod if isinstance(fn, OptimizedModule) else fn, chosen, frozen=True)
    if isinstance(fn, _C.CompiledFunction):
        chosen = fn.region.key if fn.region is not None else region_options()
        target = fn.fn
    else:
        chosen, target = options_of(fn), fn
    frozen = _C.CompiledFunction(target, _C.Region(chosen, None))
    dress(frozen, fn)
    return frozen


def reset() -> None:
    """Drops every compiled entry, skip mark, recorded size and counter of this process, and memory kept for the next call; goes
    back to the default stance. What the disk cache has stays."""
    entries = imported_module("fxjit.frontend.entries")
    if entries is not None:
        entries.reset()
    dynamic = imported_module("fxjit.frontend.dynamic")
    if dynamic is not None:
        dynamic.forget_histories()
    reset_counters()
    regions.reset()
    events.reset()
    stance.reset()
    _C.drop_arenas()


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Waits until no graph is compiled in the background any more (`config.tiers`), and puts the compiled code in place.

    Args:
        timeout: seconds to wait at most; None: until the end.

    Returns:
        False if the time was not enough. Code for another state of torch than this thread's (grad mode, autocast, a default
        device) is put in place by the first call that runs it.
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise InvalidArgument(f"wait_for_compiles: timeout must be None or seconds, not {described(timeout)}.")
    tiers = imported_module("fxjit.backends.tiers")
    if timeout is not None and timeout > threading.TIMEOUT_MAX:
        timeout = None
    return True if tiers is None else bool(tiers.wait_for_compiles(timeout))


def is_compiling() -> bool:
    """True in code that is being traced."""
    return is_tracing()


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """`fn` runs eagerly wherever it is called from, and so does all that it calls. Also a decorator, with or without arguments.

    Args:
        fn: a function, a class (its `__init__`, `__call__` and `forward` are disabled), or an nn.Module.
        recursive: False: only the frame of `fn` itself runs eagerly, and what it calls is still compiled.
        reason: is shown where the call breaks a graph.
    """
    if not isinstance(recursive, bool):
        raise InvalidArgument(f"disable: recursive must be True or False, not {described(recursive)}.")
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise InvalidArgument(f"disable: expected something callable or an nn.Module, not {described(fn)}.")
    if isinstance(fn, type):
        return _disable_class(fn, recursive, reason)
    if is_nn_module(fn):
        from .module import OptimizedModule

        return OptimizedModule(fn, None, reason=reason)
    said = marks.disabled(fn)
    if said is not None and said.recursive:
        return fn
    fn = marks.unwrapped(fn) if marks.is_compiled(fn) else fn
    if not recursive:
        return _disable_shallow(fn, reason)
    return disabled_function(fn, reason)


def _disable_shallow(fn: Any, reason: str | None) -> Any:
    called = _with_own_code(fn)
    code = code_of(called) or code_of(call_method(called))
    if code is not None:
        marks.set_code_disabled(code, reason)

    @functools.wraps(fn)
    def shallow(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    marks.set_disabled(shallow, fn, False, reason)
    if called is not fn:
        marks.set_calls_copy(shallow)
    return shallow


def _with_own_code(fn: Any) -> Any:
    """A function that does what `fn` does and whose code is its own, to be marked; other callables as they are."""
    if isinstance(fn, MethodType):
        return MethodType(_with_own_code(fn.__func__), fn.__self__)
    if not isinstance(fn, FunctionType):
        return fn
    copy = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return functools.update_wrapper(copy, fn)


def _disable_class(cls: type, recursive: bool, reason: str | None) -> type:
    for name in ("__init__", "__call__", "forward"):
        method = cls.__dict__.get(name)
        if isinstance(method, FunctionType):
            setattr(cls, name, disable(method, recursive, reason=reason))
    return cls


def graph_break(msg: str = "") -> None:
    """In traced code: the graph ends here and another begins after; reports show `msg`. Elsewhere it does nothing."""


def skip_frame(msg: str = "") -> None:
    """In traced code: the calling frame runs eagerly from its start; what it calls is still compiled. Elsewhere it does
    nothing."""


def allow_in_graph(fn: Any) -> Any:
    """Calls of `fn` become one node of the graph: `fn` itself is not traced, so its Python effects happen where the backend
    calls it, and nothing that it reads besides its arguments is guarded. Takes a callable or a list of them; gives it back."""
    return _mark(fn, Mark.ALLOW_IN_GRAPH)


def disallow_in_graph(fn: Any) -> Any:
    """Calls of the operator `fn` (or of each in a list) break the graph and run eagerly."""
    return _mark(fn, Mark.DISALLOW_IN_GRAPH)


def forbid_in_graph(fn: Any) -> Any:
    """A call of `fn` (or of each in a list) in compiled code raises `errors.Unsupported`."""
    return _mark(fn, Mark.FORBID_IN_GRAPH)


def assume_constant_result(fn: Any) -> Any:
    """`fn` is called once, while tracing, and its result is a constant of the compiled code: the promise that it always gives
    the same for the same arguments is the caller's."""
    return _mark(fn, Mark.ASSUME_CONSTANT)


def _mark(fn: Any, mark: Mark) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_mark(each, mark) for each in fn]
    if not callable(fn):
        raise InvalidArgument(f"{mark.value}: expected something callable, not {described(fn)}.")
    marks.set_mark(fn, mark)
    return fn


def substitute_in_graph(
    original_fn: Any,
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
    is_embedded_type: bool = False,
) -> Callable[[F], F]:
    """Decorator: the decorated Python function is traced wherever `original_fn`, which cannot be (C code, say), is called.

    Both take the same parameters, which is checked where `original_fn` has a signature; `skip_signature_check` waives that.
    Nothing depends on the other two, which torch.compile needs: a traced call on constants is a constant.
    """
    if not callable(original_fn):
        raise InvalidArgument(f"substitute_in_graph: expected something callable, not {described(original_fn)}.")

    def decorate(traceable: F) -> F:
        if not isinstance(traceable, FunctionType):
            raise InvalidArgument(f"substitute_in_graph: expected a Python function, not {described(traceable)}.")
        if not skip_signature_check:
            _check_same_signature(original_fn, traceable)
        marks.set_substitute(original_fn, traceable)
        return traceable

    return decorate


def _check_same_signature(original: Any, traceable: Callable[..., Any]) -> None:
    try:
        wanted = list(inspect.signature(original).parameters.values())
    except (TypeError, ValueError):
        return  # many builtins have none
    given = list(inspect.signature(traceable).parameters.values())
    if [(each.name, each.kind) for each in wanted] != [(each.name, each.kind) for each in given]:
        raise InvalidArgument(
            f"substitute_in_graph: {traceable.__name__}{inspect.signature(traceable)} has another signature than "
            f"{getattr(original, '__name__', original)}{inspect.signature(original)}; "
            "pass skip_signature_check=True if that is meant."
        )


@dataclass(frozen=True, slots=True)
class DimRange:
    """What `mark_dynamic(min=, max=)` leaves on the tensor, under the names torch gives these facts."""

    dim: int
    min: int | None
    max: int | None


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function over NumPy arrays as one over tensors: tensors among the arguments arrive as arrays, arrays in the result come
    back as tensors. Compiled, NumPy's functions become torch operators, which can be differentiated."""
    return importlib.import_module("fxjit.interop.numpy_").wrap_numpy(fn)  # type: ignore[no-any-return]  # imported late, so untyped


def mark_dynamic(
    t: Any,
    index: int | Sequence[int],
    *,
    min: int | None = None,
    max: int | None = None,
    hint_override: int | None = None,
    specialize_on: Sequence[Any] | None = None,
) -> None:
    """Makes the size of dimension `index` of tensor `t` (or of each in a sequence; negative ones count from the end) a symbol
    from the first compile on. A program that needs it to be a constant raises `errors.ConstraintViolationError`.

    Args:
        min, max: what the caller promises of the size; both ends belong to the range.
        hint_override, specialize_on: tune torch's inductor, and are accepted so that its programs run.
    """
    _check_range("mark_dynamic", min, max)
    for each in _dimensions("mark_dynamic", t, index):
        for part in _parts(t):
            _attribute_set(part, "_dynamo_dynamic_indices").add(each)
            if min is not None or max is not None:
                _attribute_set(part, "_dynamo_dynamic_range").add(DimRange(each, min, max))


def maybe_mark_dynamic(t: Any, index: int | Sequence[int], *, min: int | None = None, max: int | None = None) -> None:
    """As `mark_dynamic`, but a program that needs the size to be a constant gets the constant, without an error. A later call
    replaces the range; a dimension that `mark_dynamic` marked stays as it is."""
    _check_range("maybe_mark_dynamic", min, max)
    for part, each in itertools.product(_parts(t), _dimensions("maybe_mark_dynamic", t, index)):
        _attribute_set(part, "_dynamo_weak_dynamic_indices").add(each)
        if each in getattr(part, "_dynamo_dynamic_indices", ()):
            continue
        ranges = _attribute_set(part, "_dynamo_dynamic_range")
        ranges -= {limits for limits in ranges if limits.dim == each}
        if min is not None or max is not None:
            ranges.add(DimRange(each, min, max))


def _check_range(function: str, low: Any, high: Any) -> None:
    for name, end in (("min", low), ("max", high)):
        if end is not None and (not isinstance(end, int) or isinstance(end, bool)):
            raise InvalidArgument(f"{function}: {name} must be a size, not {described(end)}.")
    if low is not None and high is not None and low > high:
        raise InvalidArgument(f"{function}: no size is at least {low} and at most {high}.")


def mark_unbacked(t: Any, index: int | Sequence[int], **_unused: Any) -> None:
    """As `mark_dynamic`, and tracing may not look at the size: a branch on it breaks the graph."""
    for part, each in itertools.product(_parts(t), _dimensions("mark_unbacked", t, index)):
        _attribute_set(part, "_dynamo_unbacked_indices").add(each)


def mark_static(t: Any, index: int | Sequence[int] | None = None) -> Any:
    """The size of dimension `index` (of every dimension, when left out) is a constant of the compiled code, however often it
    changes. `t` may also be a class of modules, whose integer attributes are then constants, and which is given back."""
    if isinstance(t, type) and index is None:
        _set_on_class("mark_static", t, "_dynamo_marked_static", True)  # a class of modules: its integers are constants
        return t
    dimensions = range(t.dim()) if index is None and hasattr(t, "dim") else index
    wanted = _dimensions("mark_static", t, dimensions)  # type: ignore[arg-type]  # checked there
    for part, each in itertools.product(_parts(t), wanted):
        _attribute_set(part, "_dynamo_static_indices").add(each)
        for other in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices"):
            getattr(part, other, set()).discard(each)


def _dimensions(name: str, t: Any, index: Any) -> list[int]:
    if not is_tensor(t):
        raise InvalidArgument(f"{name}: expected a tensor, not {described(t)}.")
    if not isinstance(index, (int, Sequence)) or isinstance(index, str):
        raise InvalidArgument(f"{name}: expected a dimension or a sequence of them, not {described(index)}.")
    wanted = [index] if isinstance(index, int) else list(index)
    for each in wanted:
        if not isinstance(each, int) or not -t.dim() <= each < t.dim():
            raise InvalidArgument(f"{name}: there is no dimension {displayed(each)}; the tensor has {t.dim()}.")
    return [each % t.dim() for each in wanted]


def _parts(t: Any) -> Iterator[Any]:
    """The tensor, and of a wrapper subclass the tensors of as many dimensions inside it, whose sizes its own are made of."""
    yield t
    for name in t.__tensor_flatten__()[0] if hasattr(type(t), "__tensor_flatten__") else ():
        inner = getattr(t, name)
        if is_tensor(inner) and inner.dim() == t.dim():
            yield from _parts(inner)


def _attribute_set(t: Any, name: str) -> set[Any]:
    if not hasattr(t, name):
        setattr(t, name, set())
    found: set[Any] = getattr(t, name)
    return found


def save_cache_artifacts(path: str | os.PathLike[str]) -> int:
    """Writes one file with all that this process compiled, or found compiled: kernels, graphs and, with
    `config.store_entries`, entries. Gives their number.

    `load_cache_artifacts` in another process, of the same versions and processor, spares it their compile. Such a file may be
    written after a warm-up, say, and shipped with an image of the machine.
    Raises InvalidArgument for a path that cannot be written to."""
    file = file_of("save_cache_artifacts", path)
    from .backends.store import bundle

    try:
        return bundle.write_bundle(file)
    except OSError as problem:
        raise InvalidArgument(f"save_cache_artifacts: {file} cannot be written: {problem.strerror or problem}") from problem


def load_cache_artifacts(path: str | os.PathLike[str]) -> int:
    """Puts the content of such a file into this process's cache, before what it spares is compiled. Gives the number of
    entries: 0, and a line in the log, for a file of other versions or another processor. Raises InvalidArgument for a damaged
    file, and one that cannot be read.

    The file holds code that will run: load only what you would run."""
    file = file_of("load_cache_artifacts", path)
    from .backends.store import bundle

    try:
        return bundle.add_to_cache(file)
    except OSError as problem:
        raise InvalidArgument(f"load_cache_artifacts: {file} cannot be read: {problem.strerror or problem}") from problem


def load(path: str | os.PathLike[str], fn: Any = None) -> Any:
    """The compiled function of a file that `compiled.save(path)` wrote: it starts compiled, with the options that it had.

    What fits a call (the guards say so) is neither traced nor lowered; other calls compile as usual. The file is only read. On
    another processor or device, or with another number of threads, one line in the log says so, and all is compiled anew.
    The file holds code that will run: load only what you would run.

    Args:
        path: the file.
        fn: the function or the module that was saved, not compiled. May be left out for a function that its module has by name.

    Raises:
        ArtifactError: the file is damaged, of another version of torch, Python or fxjit, or of another function.
        InvalidArgument: the file cannot be read.
    """
    file = file_of("load", path)
    try:
        content = file.read_bytes()
    except OSError as problem:
        raise InvalidArgument(f"load: {file} cannot be read: {problem.strerror or problem}") from problem
    return compile_with(*artifact.read(content, file, fn, None))


def load_compiled_function(
    file: Any, *, f_globals: Mapping[str, object] | None = None, external_data: Mapping[str, Any] | None = None
) -> Any:
    """`load` under torch's name: `file` is open for reading bytes, and the function is found by its name in `f_globals`, by
    default in its module. `external_data` has to be empty: nothing of the program's objects is in the file."""
    if external_data is not None and not (isinstance(external_data, Mapping) and not external_data):
        raise InvalidArgument("load_compiled_function: external_data is not supported: the file has no objects of the "
                              "program's, which are those that the function finds.")
    if f_globals is not None and not isinstance(f_globals, Mapping):
        raise InvalidArgument(f"load_compiled_function: f_globals is a namespace, not {described(f_globals)}.")
    if not hasattr(file, "read"):
        raise InvalidArgument(f"load_compiled_function: file is open for reading bytes, not {described(file)}; fxjit.load "
                              "takes a path.")
    content = file.read()
    if not isinstance(content, bytes):
        raise InvalidArgument("load_compiled_function: file is open for reading text; open it with 'rb'.")
    return compile_with(*artifact.read(content, getattr(file, "name", "the file"), None, f_globals))


__all__ = ["error_on_graph_break"]
