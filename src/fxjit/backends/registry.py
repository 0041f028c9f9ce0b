"""Which backends there are: the built-in ones, those a program registered, and those installed packages offer.

A backend is `(gm: torch.fx.GraphModule, example_inputs: list) -> callable`. The built-in ones are named here and
imported when first used; a package offers one as an entry point of the group `fxjit_backends` or
`torch_dynamo_backends`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, overload

from fxjit import torch_private
from fxjit.errors import InvalidArgument, InvalidBackend, displayed, near

Backend = Callable[..., Any]
F = TypeVar("F", bound=Backend)
ENTRY_POINT_GROUPS = ("fxjit_backends", "torch_dynamo_backends")


@dataclass(frozen=True, slots=True)
class _Builtin:
    place: str  # "module:attribute"
    tags: tuple[str, ...] = ()
    #: The feature (torch_private.py) without which graphs run operator by operator.
    needs: str = ""
    #: Whether the exception of a graph says if the graph wrote to its inputs before it (_C.left_unwritten).
    tells_writes: bool = False


_BUILTIN: dict[str, _Builtin] = {
    "native": _Builtin("fxjit.backends.native:native", needs="compiled graphs", tells_writes=True),
    "eager": _Builtin("fxjit.backends.eager:eager", ("debug",)),
    "eager_noexcept": _Builtin("fxjit.backends.eager:eager_noexcept", ("debug",)),
    "pre_dispatch_eager": _Builtin("fxjit.backends.eager:pre_dispatch_eager", ("debug",), "make_fx backend"),
    "aot_eager": _Builtin("fxjit.backends.aot.node_by_node:aot_eager", ("debug",), "compiled graphs", tells_writes=True),
    "aot_eager_decomp_partition": _Builtin("fxjit.backends.native:aot_eager_decomp_partition", ("debug",), "compiled graphs",
                                           tells_writes=True),
    "cudagraphs": _Builtin("fxjit.backends.cudagraphs:cudagraphs", needs="CUDA graphs"),
    "inductor": _Builtin("fxjit.backends.inductor:inductor"),
}
_registered: dict[str, tuple[Backend, tuple[str, ...]]] = {}


@overload
def register_backend(fn: F, name: str | None = None, tags: Sequence[str] = ()) -> F: ...
@overload
def register_backend(fn: None = None, name: str | None = None, tags: Sequence[str] = ()) -> Callable[[F], F]: ...
def register_backend(fn: F | None = None, name: str | None = None, tags: Sequence[str] = ()) -> F | Callable[[F], F]:
    """Makes `fn` known under `name` (its own name by default); usable as a decorator with or without arguments."""
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(f"register_backend: a backend's name is text, not {displayed(name)}.")
    kept = _tags("register_backend: tags", tags)
    if fn is None:
        return functools.partial(register_backend, name=name, tags=kept)
    if not callable(fn):
        raise InvalidArgument(f"register_backend: a backend is a callable (gm, example_inputs), not {displayed(fn)}.")
    chosen = name or getattr(fn, "__name__", None)
    if not chosen or not isinstance(chosen, str):
        raise InvalidArgument(f"register_backend: {displayed(fn)} has no __name__; pass name=.")
    known = _registered.get(chosen)
    if chosen in _BUILTIN or (known is not None and known[0] is not fn):
        raise InvalidBackend(f"A backend called {displayed(chosen)} exists already.")
    _registered[chosen] = (fn, kept)
    return fn


def _tags(what: str, tags: Any) -> tuple[str, ...]:
    kept = None if isinstance(tags, str) or not isinstance(tags, Iterable) else tuple(tags)
    if kept is None or not all(isinstance(each, str) for each in kept):
        raise InvalidArgument(f"{what} must be a sequence of names, not {displayed(tags)}.")
    return kept


def list_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """The names `compile(backend=...)` takes, without those that carry one of `exclude_tags`."""
    excluded = set(() if exclude_tags is None else _tags("list_backends: exclude_tags", exclude_tags))
    tags = {**{name: row.tags for name, row in _BUILTIN.items()}, **{name: row[1] for name, row in _registered.items()}}
    offered = (name for name, point in _offered().items() if not point.value.startswith("fxjit."))
    tags.update((name, ()) for name in offered if name not in tags)
    return sorted(name for name, its in tags.items() if not excluded.intersection(its))


def is_known(name: str) -> bool:
    """Whether there is a backend of this name; loads nothing."""
    return name in _BUILTIN or name in _registered or name in _offered()


def check_backend_name(name: str) -> None:
    """Raises InvalidBackend when nothing is known by this name; loads nothing."""
    if is_known(name):
        return
    raise InvalidBackend(f"No backend is called {displayed(name)}. {near(name, list_backends(exclude_tags=None))}")


def lookup_backend(compiler_fn: str | Backend) -> Backend:
    """The backend of this name, imported if need be; a callable is a backend already."""
    if not isinstance(compiler_fn, str):
        if not callable(compiler_fn):
            raise InvalidArgument(f"A backend is a name or a callable (gm, example_inputs), not {displayed(compiler_fn)}.")
        return compiler_fn
    if compiler_fn in _registered:
        return _registered[compiler_fn][0]
    check_backend_name(compiler_fn)
    if compiler_fn in _BUILTIN:
        return _load(_BUILTIN[compiler_fn])
    try:
        loaded = _offered()[compiler_fn].load()
    except Exception as error:  # the package's import may raise anything
        raise InvalidBackend(f"Backend {displayed(compiler_fn)} is installed but cannot be loaded: {error}") from error
    if not callable(loaded):
        raise InvalidBackend(f"Backend {displayed(compiler_fn)} is installed but is no callable: {displayed(loaded)}.")
    return loaded  # type: ignore[no-any-return]  # callable() does not narrow Any


def _load(row: _Builtin) -> Backend:
    module, _, attribute = row.place.partition(":")
    try:
        built_in: Backend = getattr(importlib.import_module(module), attribute)
    except (AttributeError, ImportError):
        if not row.needs or torch_private.is_on(row.needs, thoroughly=True):
            raise
        return _load(_BUILTIN["eager"])
    return built_in


def is_built_in(backend: str | Backend) -> bool:
    """Whether it is one of ours, which say themselves what their code depends on."""
    return isinstance(backend, str) and backend in _BUILTIN and backend != "inductor"


def tells_writes(backend: str | Backend) -> bool:
    """Whether what its graphs raise says if they wrote to their inputs before (_C.left_unwritten)."""
    return isinstance(backend, str) and (backend == "fxjit" or (backend in _BUILTIN and _BUILTIN[backend].tells_writes))


def checking_results(compiled: Backend, backend: str, count: int) -> Backend:
    """`compiled`, of somebody else's backend, whose results are unpacked: `count` of them, in a tuple or list."""
    def call(*args: Any) -> Any:
        results = compiled(*args)
        if isinstance(results, Iterator):
            results = tuple(results)
        several = isinstance(results, (tuple, list))
        if not several or len(results) != count:
            what = type(results).__name__ + (f" of {len(results)}" if several else "")
            raise InvalidArgument(
                f"The callable that backend {backend!r} made of a graph returned a {what}, not a tuple or list of the graph's "
                f"outputs ({count}), which the graph module itself returns.")
        return results

    return call


@functools.cache
def _offered() -> dict[str, EntryPoint]:
    """The entry points of installed packages, ours left out: it is the built-in `native` under another name."""
    found: dict[str, EntryPoint] = {}
    for group in ENTRY_POINT_GROUPS:
        for point in entry_points(group=group):
            found.setdefault(point.name, point)
    return found
