"""`options={"guard_filter_fn": keep}`: a program's own function says which of the facts that a trace relied on are guarded.

The function is given a list with one `FilterEntry` a guard, in torch's vocabulary, so that the functions of `torch.compiler`
(`skip_guard_on_globals_unsafe` and the others) can be passed; it gives a list with one truth value for each. What the kernels
of fxjit's own backends rely on stays guarded: with tensors of other sizes they would read memory of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from fxjit.errors import ConfigError
from fxjit.guards import kinds
from fxjit.guards.kinds import Guard, GuardSet
from fxjit.guards.modules import ABOUT_TENSORS
from fxjit.guards.source import ConstSource, GlobalSource, GlobalsSource, Scope, Source
from fxjit.homes import module_of

#: Kind of guard -> what torch calls guards of this meaning. Others go by the name of their class.
_TORCHS_NAMES: Final[dict[type[Guard], str]] = {
    kinds.TensorIs: "TENSOR_MATCH",
    kinds.ShapeExpr: "SHAPE_ENV",
    kinds.AmbientIs: "GLOBAL_STATE",
    kinds.TypeIs: "TYPE_MATCH",
    kinds.IdIs: "ID_MATCH",
    kinds.CodeIs: "CLOSURE_MATCH",
    kinds.SameObject: "DUPLICATE_INPUT",
    kinds.NotSameObject: "DUPLICATE_INPUT",
    kinds.ConstIs: "CONSTANT_MATCH",
    kinds.LengthIs: "SEQUENCE_LENGTH",
    kinds.KeysAre: "DICT_KEYS_MATCH",
    kinds.HasKey: "DICT_CONTAINS",
    kinds.HasAttr: "HASATTR",
}


@dataclass(frozen=True, slots=True)
class FilterSource:
    """The view of a guard's source that a filter gets."""

    name: str
    _modules: tuple[nn.Module, ...]

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it is a module or inside of one."""
        return bool(self._modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether that module is of a class of torch."""
        return bool(self._modules) and module_of(type(self._modules[-1])).startswith(("torch.nn.", "torch.ao."))


@dataclass(frozen=True, slots=True)
class FilterGuard:
    source: FilterSource


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """A guard as a `guard_filter_fn` sees it."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: FilterGuard


def filtered(guards: GuardSet, keep: Callable[[Sequence[FilterEntry]], Sequence[Any]], scope: Scope, *,
             with_tensors: bool) -> GuardSet:
    """The guards that `keep` wants, for the frame of `scope`. `with_tensors`: those about tensors stay in any case."""
    known = list(guards)
    wanted = list(keep([_entry(guard, scope) for guard in known]))
    if len(wanted) != len(known):
        raise ConfigError(f"compile: guard_filter_fn gave {len(wanted)} values for {len(known)} guards: it takes a list of "
                          "guards, and gives a list that says of each whether it is kept.")
    kept = GuardSet()
    for guard, is_wanted in zip(known, wanted, strict=True):
        if is_wanted or (with_tensors and isinstance(guard, ABOUT_TENSORS)):
            kept.add(guard, guards.user_stack(guard))
    return kept


def _entry(guard: Guard, scope: Scope) -> FilterEntry:
    source = guard.sources[0] if guard.sources else None
    values = [] if source is None else _values(source, scope)
    kind = _TORCHS_NAMES.get(type(guard), type(guard).__name__)
    name = "" if source is None else source.name
    modules = tuple(value for value in values if isinstance(value, nn.Module))
    return FilterEntry(name, bool(values), values[-1] if values else None, kind, (), _is_global(source),
                       FilterGuard(FilterSource(name, modules)))


def _values(source: Source, scope: Scope) -> list[object]:
    """The objects on the way to the source, outermost first; none where a look-up of the user's own fails."""
    steps = []
    step: Source | None = source
    while step is not None:
        steps.append(step)
        step = step.base
    try:
        return [each.fetch(scope) for each in reversed(steps)]
    except Exception:  # of the user's
        return []


def _is_global(source: Source | None) -> bool:
    root = source
    while root is not None and root.base is not None:
        root = root.base
    return isinstance(root, (GlobalSource, GlobalsSource, ConstSource))
