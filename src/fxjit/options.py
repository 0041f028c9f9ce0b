"""Checked arguments of `compile`, as the object that regions and compiled entries are filed under.

`region_options` gives the same object for the same arguments, so that two compiled callables of one function share
their entries. The pipeline reads `backend`, `backend_name`, `fullgraph` and `dynamic`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import config
from .backends.registry import check_backend_name, lookup_backend
from .errors import ConfigError, InvalidArgument, displayed, near

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {"triton.max_autotune": True, "triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"triton.max_autotune": True},
}
# Options of torch.compile that have the name of ours without its group.
_OPTION_ALIASES = {"max_autotune": "triton.max_autotune", "fast_math": "cpp.fast_math"}


class RegionOptions:
    """Compared by identity; kept as long as a callable that was compiled with it, and its entries with it."""

    def __init__(
        self,
        backend: str | Callable[..., Any],
        mode: str | None,
        options: Mapping[str, Any],
        fullgraph: bool,
        dynamic: bool | None,
        recompile_limit: int | None = None,
    ) -> None:
        self.chosen_backend = backend
        self.backend_name = backend if isinstance(backend, str) else _name_of(backend)
        self.mode = mode
        self.options = dict(options)
        #: Says of each guard whether it is kept (guards/filtered.py); None: all are.
        self.guard_filter: Callable[[Any], Any] | None = self.options.pop("guard_filter_fn", None)
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        #: Entries that a code object may have under these options; None: config.recompile_limit.
        self.own_limit = recompile_limit
        self._settings: dict[str, Any] = {}
        self._keywords: dict[str, Any] = {}
        if backend in ("native", "fxjit"):
            self._settings = {**MODES[mode or "default"], **_native_settings(self.options)}
        else:
            self._keywords = _keywords(backend, mode, self.options)

    @property
    def recompile_limit(self) -> int:
        """Entries that a code object may have under these options, for each function or module compiled that runs it."""
        return config.recompile_limit if self.own_limit is None else self.own_limit

    @property
    def limits_name(self) -> str:
        """Where `recompile_limit` was set, as messages say it."""
        return "config.recompile_limit" if self.own_limit is None else "compile(recompile_limit=)"

    @property
    def tells_failures(self) -> bool:
        """Whether a check of backends reports to the caller what a compiled graph raises."""
        return bool(config.repro_after) or config.verify_correctness

    def backend(self, gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        """Compiles one graph, under the settings that mode and options stand for."""
        compile_graph = self._compile
        if config.repro_after == "dynamo":
            repro = importlib.import_module("fxjit.repro")
            compiled = repro.watched(compile_graph, gm, example_inputs, "dynamo", self.backend_name,
                                     lambda fn, args: fn(*args))
        else:
            compiled = compile_graph(gm, example_inputs)
        if config.verify_correctness and callable(compiled):
            verify = importlib.import_module("fxjit.verify")  # needs torch, which may not be there at `import fxjit`
            compiled = verify.verified(compiled, gm, self.backend_name)
        return compiled  # type: ignore[no-any-return]  # the pipeline checks that it can be called

    def _compile(self, gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        compile_graph = lookup_backend(self.chosen_backend)
        with config.patch(self._settings) if self._settings else contextlib.nullcontext():
            return compile_graph(gm, example_inputs, **self._keywords)  # type: ignore[no-any-return]  # checked by the pipeline

    def __repr__(self) -> str:
        said = {"mode": self.mode, "options": self._given_options() or None, "dynamic": self.dynamic,
                "recompile_limit": self.own_limit}
        extra = "".join(f", {name}={value!r}" for name, value in said.items() if value is not None)
        return f"<fxjit options: backend={self.backend_name!r}, fullgraph={self.fullgraph}{extra}>"

    def with_fullgraph(self, fullgraph: bool) -> RegionOptions:
        """These options but for `fullgraph`."""
        return region_options(self.chosen_backend, self.mode, self._given_options(), fullgraph, self.dynamic, self.own_limit)

    def __deepcopy__(self, memo: object) -> RegionOptions:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return region_options, (self.chosen_backend, self.mode, self._given_options(), self.fullgraph, self.dynamic,
                                self.own_limit)

    def _given_options(self) -> dict[str, Any]:
        return self.options if self.guard_filter is None else {**self.options, "guard_filter_fn": self.guard_filter}


_known: weakref.WeakValueDictionary[tuple[Any, ...], RegionOptions] = weakref.WeakValueDictionary()


def region_options(
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> RegionOptions:
    """Checks the arguments of `compile` and gives their RegionOptions; the same one for the same arguments, unless entries are
    to be counted by themselves (`isolate_recompiles`)."""
    _check(backend, mode, options, fullgraph, dynamic)
    _check_limit(recompile_limit, isolate_recompiles)
    chosen = dict(options or {})
    made = RegionOptions(backend, mode, chosen, fullgraph, dynamic, recompile_limit)
    if isolate_recompiles:
        return made
    # A callable backend is kept as long as the RegionOptions that it is part of the key of.
    which = backend if isinstance(backend, str) else id(backend)
    key = (which, mode, tuple(sorted((name, repr(value)) for name, value in chosen.items())), fullgraph, dynamic,
           recompile_limit)
    return _known.setdefault(key, made)


def _check(backend: Any, mode: Any, options: Any, fullgraph: Any, dynamic: Any) -> None:
    if isinstance(backend, str):
        check_backend_name(backend)
    elif not callable(backend):
        raise InvalidArgument(f"compile: backend must be a name or a callable (gm, example_inputs), not {displayed(backend)}.")
    if not isinstance(fullgraph, bool):
        raise InvalidArgument(f"compile: fullgraph must be True or False, not {displayed(fullgraph)}.")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise InvalidArgument(f"compile: dynamic must be None, True or False, not {displayed(dynamic)}.")
    if mode is not None and options:
        raise ConfigError("compile: give either mode or options, not both.")
    if mode is not None and not isinstance(mode, str):
        raise InvalidArgument(f"compile: mode must be a name, not {displayed(mode)}.")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(f"compile: options must be a dict of settings, not {displayed(options)}.")
    if options and not callable(options.get("guard_filter_fn", _check)):
        raise InvalidArgument("compile: options: guard_filter_fn is a function that takes a list of guards, not "
                              f"{displayed(options['guard_filter_fn'])}.")
    for name in options or ():
        if not isinstance(name, str):
            raise InvalidArgument(f"compile: options: the name of an option is text, not {displayed(name)}.")
    takes_own_mode = not isinstance(backend, str) and _accepts(backend, "mode")
    if mode is not None and mode not in MODES and not takes_own_mode:
        raise ConfigError(f"compile: there is no mode {displayed(mode)}. {near(mode, MODES)}")


def _check_limit(recompile_limit: Any, isolate_recompiles: Any) -> None:
    if recompile_limit is not None and (type(recompile_limit) is not int or recompile_limit < 0):
        raise InvalidArgument("compile: recompile_limit must be None or a number of entries, not "
                              f"{displayed(recompile_limit)}.")
    if not isinstance(isolate_recompiles, bool):
        raise InvalidArgument(f"compile: isolate_recompiles must be True or False, not {displayed(isolate_recompiles)}.")


def _native_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for name, value in options.items():
        full = _OPTION_ALIASES.get(name, name)
        if full not in config.SETTINGS:
            known = [each for each, row in config.SETTINGS.items() if row.in_cache_key]
            raise ConfigError(f"compile: backend 'native' has no option {displayed(name)}. {near(name, known)}")
        settings[full] = value
    return config.patch(settings).changes  # checks the types


def _keywords(backend: str | Callable[..., Any], mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """`mode` and `options` are handed to a backend that takes them, as torch.compile does."""
    if (mode is None or mode == "default") and not options:
        return {}
    compile_graph = lookup_backend(backend)
    keywords: dict[str, Any] = {}
    if mode is not None and mode != "default" and _accepts(compile_graph, "mode"):
        keywords["mode"] = mode
    if options:
        if not _accepts(compile_graph, "options"):
            raise ConfigError(f"compile: backend {_name_of(backend)!r} takes no options.")
        keywords["options"] = dict(options)
    return keywords


def _accepts(fn: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == name or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def _name_of(backend: str | Callable[..., Any]) -> str:
    if isinstance(backend, str):
        return backend
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", None)
    return str(name or type(backend).__name__)
