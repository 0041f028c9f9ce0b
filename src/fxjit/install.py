"""The drop-in: `torch.compile`, `nn.Module.compile` and torch's annotations go to fxjit, and back.

`install()` replaces the public entry points of `torch`, `torch.compiler` and, once the program imports it, of
`torch._dynamo`; `uninstall()` puts the originals back. `python -m fxjit run script.py` does it for a script that nobody
edits. "inductor" is the name of torch.compile's default there, and so of ours; what else of torch's state follows is in
`dropin.py`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from fxjit.homes import imported_module, module_of

from . import api, config, dropin, stance, torch_private
from .arguments import is_tensor
from .backends import registry
from .errors import ConfigError, displayed, near
from .options import region_options
from .replacements import Replacements, callers_globals, copy_of, innermost, is_torchs, wrapper_codes

_replaced = Replacements()


def _of_dimensions_there(mark: Callable[..., None]) -> Callable[..., None]:
    """torch's form of a mark: dimensions that the tensor does not have are taken, to no effect. Ours is told of the others."""

    @functools.wraps(mark)
    def run(t: Any, index: int | Sequence[int], **limits: Any) -> None:
        if is_tensor(t) and isinstance(index, (int, list, tuple)):
            wanted = [index] if isinstance(index, int) else list(index)
            index = [each for each in wanted if not isinstance(each, int) or -t.dim() <= each < t.dim()]
            if len(index) < len(wanted):
                warnings.warn(f"{mark.__name__}: the tensor has {t.dim()} dimensions, and not all of {wanted}.", stacklevel=2)
        mark(t, index, **limits)

    return run


# Name in torch.compiler and torch._dynamo -> ours.
_SHARED: Mapping[str, Any] = {
    "disable": api.disable,
    "allow_in_graph": api.allow_in_graph,
    "assume_constant_result": api.assume_constant_result,
    "substitute_in_graph": api.substitute_in_graph,
    "set_stance": stance.set_stance,
    "list_backends": registry.list_backends,
    "wrap_numpy": api.wrap_numpy,
}
_COMPILER_ONLY: Mapping[str, Any] = {
    "load_compiled_function": api.load_compiled_function,
    "set_enable_guard_collectives": stance.set_enable_guard_collectives,
}
_DYNAMO_ONLY: Mapping[str, Any] = {
    "run": api.run,
    "graph_break": api.graph_break,
    "skip_frame": api.skip_frame,
    "disallow_in_graph": api.disallow_in_graph,
    "forbid_in_graph": api.forbid_in_graph,
    "error_on_graph_break": api.error_on_graph_break,
    "mark_dynamic": _of_dimensions_there(api.mark_dynamic),
    "maybe_mark_dynamic": _of_dimensions_there(api.maybe_mark_dynamic),
    "mark_static": api.mark_static,
    "mark_unbacked": _of_dimensions_there(api.mark_unbacked),
    "lookup_backend": registry.lookup_backend,
}


def install() -> None:
    """`torch.compile`, `nn.Module.compile` and torch's annotations use fxjit from now on. A second call changes nothing."""
    if installed():
        return
    import torch

    _torchs_own.remember(innermost(torch.compile))
    _replaced.claim(torch, "compile", _torch_compile, torch_too=True)
    _replaced.claim(torch.nn.Module, "compile", _module_compile, torch_too=True)
    for name, ours in {**_SHARED, **_COMPILER_ONLY}.items():
        if hasattr(torch.compiler, name):
            _replaced.claim(torch.compiler, name, ours)
    _replaced.claim(torch.compiler, "compile", _torch_compile)
    _replaced.claim(torch.compiler, "reset", _reset)
    for name, ours in (("set_default_backend", _default_backend.set), ("get_default_backend", _default_backend.get)):
        if hasattr(torch.compiler, name):  # from torch 2.14 on
            _replaced.claim(torch.compiler, name, ours)
        else:
            _replaced.put(torch.compiler, name, ours)
    _replace_cache_artifacts(torch.compiler)
    dropin.follow_compiler(torch.compiler, _replaced)
    dropin.follow_environment()
    if torch_private.is_on("logs of torch"):
        dropin.follow_logging(torch._logging, _replaced)
    _finder.waiting = {name for name in _FOLLOWED if name not in sys.modules}
    for name in _FOLLOWED.keys() - _finder.waiting:
        _FOLLOWED[name](sys.modules[name])
    if _finder.waiting:
        sys.meta_path.insert(0, _finder)


def _replace_cache_artifacts(compiler: ModuleType) -> None:
    """torch's pair, whose file is bytes: they hold what fxjit has compiled. Bytes that torch wrote stay with torch."""
    info = torch_private.get_or("torch.compiler._cache.CacheInfo", None)
    if info is None:
        return
    theirs = copy_of(compiler.load_cache_artifacts)

    def save_cache_artifacts() -> Any:
        content, names = _bundle().bundled_cache()
        return (content, _cache_info(names)) if names else None

    def load_cache_artifacts(serialized_artifacts: bytes) -> Any:
        if not _bundle().is_bundle(serialized_artifacts):
            return theirs(serialized_artifacts)
        return _cache_info(_bundle().add_content(serialized_artifacts, "what load_cache_artifacts was given"))

    def _cache_info(names: Sequence[str]) -> Any:
        told = info()
        told.artifacts["fxjit"] = list(names)
        return told

    _replaced.claim(compiler, "save_cache_artifacts", save_cache_artifacts)
    _replaced.claim(compiler, "load_cache_artifacts", load_cache_artifacts)


def _bundle() -> Any:
    return importlib.import_module("fxjit.backends.store.bundle")  # heavy


def uninstall() -> None:
    """Puts torch's own functions back. What was compiled in the meantime stays compiled with fxjit."""
    _replaced.undo()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def installed() -> bool:
    """Whether `install` is in effect."""
    return bool(_replaced)


def _replace_in_dynamo(dynamo: ModuleType) -> None:
    from .explain import explain

    _torchs_own.lookup_backend = copy_of(dynamo.lookup_backend)
    _torchs_own.reset = copy_of(dynamo.reset)
    theirs, register_theirs, optimize_theirs, optimize_assert_theirs, reset_theirs = (
        copy_of(function) for function in (dynamo.disable, dynamo.register_backend, dynamo.optimize, dynamo.optimize_assert,
                                           dynamo.reset_code_caches)
    )

    def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
        """Torch disables functions of its own through this one too, without a wrapper; those stay with torch."""
        if not wrapping:
            return theirs(fn, recursive, reason=reason, wrapping=False)
        return api.disable(fn, recursive, reason=reason)

    def register_backend(compiler_fn: Any = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
        """Torch registers its own backends through this one too, when they are first looked for; those stay with torch."""
        if compiler_fn is None:
            return functools.partial(register_backend, name=name, tags=tags)
        if module_of(compiler_fn).startswith("torch."):
            return register_theirs(compiler_fn, name, tags)
        return registry.register_backend(compiler_fn, name, tags)

    def optimize(*args: Any, **kwargs: Any) -> Any:
        """Torch's own `torch.compile` ends here too: where torch compiles for itself, with torch's compiler."""
        return (optimize_theirs if _torchs_own.at_work else _dynamo_optimize)(*args, **kwargs)

    def optimize_assert(backend: Any, **kwargs: Any) -> Any:
        """Torch's export and compiled autograd end here too, with hooks of their own."""
        if kwargs.keys() - {"dynamic", "rebuild_ctx"} or is_torchs(callers_globals()):
            return optimize_assert_theirs(backend, **kwargs)
        return _dynamo_optimize(backend, nopython=True, dynamic=kwargs.get("dynamic"))

    def reset_code_caches() -> None:
        """Torch's `reset` ends here too."""
        api.reset()
        reset_theirs()

    special = {
        "optimize_assert": optimize_assert,
        "reset": _reset,
        "reset_code_caches": reset_code_caches,
        "explain": explain,
        "optimize": optimize,
        "disable": disable,
        "register_backend": register_backend,
    }
    for name, ours in {**_SHARED, **_DYNAMO_ONLY, **special}.items():
        if hasattr(dynamo, name):
            _replaced.claim(dynamo, name, ours)
    for name in ("set_stance", "graph_break", "skip_frame", "error_on_graph_break", "mark_dynamic", "maybe_mark_dynamic",
                 "mark_static", "mark_unbacked"):
        _replaced.claim(dynamo.decorators, name, {**_SHARED, **_DYNAMO_ONLY}[name])
    compiled_autograd = dynamo.compiled_autograd
    _replaced.put(compiled_autograd, "_enable", _with_breaks(compiled_autograd._enable))
    dropin.follow_dynamo(dynamo, _replaced)


def _with_breaks(enable: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled_autograd._enable` for what we compile: the backward of a compiled graph is one call in the graphs that
    compiled autograd traces, at which they break. `fullgraph` would make that an error nobody can mend."""

    def may_break(compiled: Any) -> Any:
        module = imported_module("fxjit.module")
        if module is None or not isinstance(compiled, module.OptimizedModule) or not compiled.options.fullgraph:
            return compiled
        return module.OptimizedModule(compiled._orig_mod, compiled.options.with_fullgraph(False))

    @functools.wraps(enable)
    def with_breaks(compiler_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return enable(lambda graph: may_break(compiler_fn(graph)), *args, **kwargs)

    return with_breaks


def _torch_compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    nopython: bool | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    **unused: Any,
) -> Any:
    """`torch.compile` while the drop-in is installed: its default backend is ours. What torch compiles for itself (the
    wrappers of higher-order operators that are called eagerly) stays with torch's compiler, which they are written for;
    so does everything once the drop-in is gone, for a wrapper of a library's that keeps this function."""
    if not installed() or _torchs_own.applies_to(callers_globals(wrapper_codes(sys.modules["torch"].compile)), model):
        return _torchs_own(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
                           disable=disable, nopython=nopython, recompile_limit=recompile_limit,
                           isolate_recompiles=isolate_recompiles or None, **unused)
    dropin.ignore_arguments("torch.compile", unused)
    fullgraph = fullgraph if nopython is None else nopython
    backend, mode = _of_lite(backend, mode)
    chosen = region_options(_our_backend(backend), mode, _known_options(backend, options), fullgraph, dynamic,
                            recompile_limit, isolate_recompiles)
    disable = disable or dropin.is_switched_off()
    if model is None:
        return lambda fn: api.compile_with(chosen, fn, disable)
    return api.compile_with(chosen, model, disable)


class _TorchsOwn:
    """torch.compile as torch has it, for functions of torch that torch itself compiles."""

    compile: Callable[..., Any]
    lookup_backend: Callable[[str], Any]
    #: What forgets what torch compiled; None until the program imports torch's compiler.
    reset: Callable[[], None] | None = None

    def __init__(self) -> None:
        self._thread = threading.local()

    @property
    def at_work(self) -> bool:
        return getattr(self._thread, "at_work", False)

    def applies_to(self, callers_globals: Mapping[str, Any], model: Any) -> bool:
        """Whether code of torch compiles a function of torch."""
        return is_torchs(callers_globals) and is_torchs(getattr(inspect.unwrap(model), "__globals__", {}))

    def remember(self, function: Any) -> None:
        """`function` is torch.compile, or ours where a wrapper of a library's kept it from the last time."""
        if function is not _torch_compile:
            self.compile = copy_of(function)

    def backend(self, name: str) -> Any:
        """The backend that torch alone has under this name, for the graphs that we capture; the name where there is none."""
        dynamo = importlib.import_module("torch._dynamo")  # which `_replace_in_dynamo` follows
        try:
            return self.lookup_backend(name)
        except dynamo.exc.InvalidBackend:
            return name

    def __call__(self, model: Any, **arguments: Any) -> Any:
        self._thread.at_work = True
        try:
            return self.compile(model, **{name: value for name, value in arguments.items() if value is not None})
        finally:
            self._thread.at_work = False


_torchs_own = _TorchsOwn()


def _reset() -> None:
    """`torch.compiler.reset` while the drop-in is installed: what torch compiles for itself counts recompiles, too."""
    api.reset()
    if _torchs_own.reset is not None:
        _torchs_own.reset()


def _module_compile(self: Any, *args: Any, **kwargs: Any) -> None:
    """`nn.Module.compile()` while the drop-in is installed."""
    from .module import compile_in_place

    if args:
        raise ConfigError("nn.Module.compile takes keyword arguments only, those of torch.compile.")
    if kwargs.pop("disable", False) or dropin.is_switched_off():
        self.__dict__["_compiled_call_impl"] = None
        return
    backend, kwargs["mode"] = _of_lite(kwargs.pop("backend", None), kwargs.get("mode"))
    options = _known_options(backend, kwargs.pop("options", None))
    if kwargs.get("nopython") is not None:
        kwargs["fullgraph"] = kwargs["nopython"]
    kwargs.pop("nopython", None)
    known = {name: kwargs.pop(name) for name in ("mode", "fullgraph", "dynamic", "recompile_limit", "isolate_recompiles")
             if name in kwargs}
    dropin.ignore_arguments("nn.Module.compile", kwargs)
    compile_in_place(self, region_options(_our_backend(backend), options=options, **known))


def _dynamo_optimize(backend: Any = "inductor", *, nopython: bool = False, **kwargs: Any) -> Callable[[Any], Any]:
    """The old spelling: `torch._dynamo.optimize("inductor")(fn)`."""
    own = {name: kwargs[name] for name in ("dynamic", "recompile_limit", "isolate_recompiles") if name in kwargs}
    chosen = region_options(_our_backend(backend), fullgraph=nopython, **own)
    return lambda fn: api.compile_with(chosen, fn, bool(kwargs.get("disable", False)) or dropin.is_switched_off())


#: Backends of torch that have another name here.
_OURS: Mapping[str, str] = {"inductor": "native", "aot_eager_default_partitioner": "aot_eager"}


class _DefaultBackend:
    """`torch.compiler.set_default_backend` and `get_default_backend`: of what is compiled without a backend's name."""

    def __init__(self) -> None:
        self._chosen: Any = "inductor"

    def set(self, backend: Any) -> None:
        if isinstance(backend, str):
            registry.check_backend_name(_our_backend(backend))
        elif not callable(backend) and backend is not None:
            raise ConfigError(f"set_default_backend: a backend is a name or a callable, not {displayed(backend)}.")
        self._chosen = "inductor" if backend is None else backend

    def get(self) -> Any:
        return self._chosen


_default_backend = _DefaultBackend()


def _our_backend(backend: Any) -> Any:
    chosen = _default_backend.get() if backend is None else backend
    if not isinstance(chosen, str):
        return chosen
    chosen = _OURS.get(chosen, chosen)
    return chosen if registry.is_known(chosen) else _torchs_own.backend(chosen)


def _of_lite(backend: Any, mode: str | None) -> tuple[Any, str | None]:
    """`mode="lite"`, in which Inductor leaves operators to eager's kernels, as they are."""
    return ("aot_eager", None) if mode == "lite" and _our_backend(backend) == "native" else (backend, mode)


#: Options that are no settings.
_OTHER_OPTIONS = ("max_autotune", "guard_filter_fn")


def _known_options(backend: Any, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A script written for inductor may set options that only inductor has; they are dropped, and that is said. One that
    inductor does not have either is an error, as it is in torch.compile."""
    if not isinstance(options, Mapping) or not options or _our_backend(backend) not in ("native", "fxjit"):
        return options  # type: ignore[return-value]  # checked where all arguments are
    known = {name: value for name, value in options.items() if name in config.SETTINGS or name in _OTHER_OPTIONS}
    dropped = sorted(map(str, options.keys() - known.keys()))
    if dropped:
        inductors = importlib.import_module("torch._inductor.config").get_config_copy()
        for name in dropped:
            if name.replace("-", "_") not in inductors:
                meant = near(name, [*inductors, *config.SETTINGS])
                raise ConfigError(f"Unexpected optimization option {name}. {meant}".rstrip())
        warnings.warn(f"fxjit ignores these options of inductor: {', '.join(dropped)}.", stacklevel=3)
    return known


# Modules of torch that a program may import at any time -> what is done then.
_FOLLOWED: Mapping[str, Callable[[ModuleType], None]] = {
    "torch._dynamo": _replace_in_dynamo,
    "torch.fx.experimental.symbolic_shapes": lambda module: dropin.follow_symbolic_shapes(module, _replaced),
    "torch._inductor.config": lambda module: dropin.follow_inductor(module, _replaced),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the program to import what is followed, to replace functions and follow settings right after."""

    waiting: set[str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        self.waiting.remove(fullname)
        if not self.waiting:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        @functools.wraps(run_module)
        def then_replace(module: ModuleType) -> None:
            run_module(module)
            if installed():
                _FOLLOWED[fullname](module)

        spec.loader.exec_module = then_replace  # type: ignore[method-assign]  # one loader object a module
        return spec


_finder = _Finder()
