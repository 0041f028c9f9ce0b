"""Artifacts: one compiled function in one file: `save`, `aot_compile`, and `read`, which `fxjit.load` calls.

A file has the stored entries (stored/) of all code that was compiled under the function's options, with their graphs and
libraries, as the cache on the disk has them: a bundle of the same records (backends/store/bundle.py), found by the same keys
and checked by the same guards. Loading makes them known to the process; nothing is written anywhere. The first call installs
what fits, and compiles the rest as usual.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from fxjit.homes import imported_module, module_of

from . import _C, logs, regions
from .arguments import described, file_of, is_nn_module
from .errors import ArtifactError, InvalidArgument
from .frontend import entries
from .options import RegionOptions, region_options
from .skips import marks

log = logs.artifact("cache")
_NO_FUNCTION: Final = "give it the function or the module that was saved: fxjit.load(path, model)"


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What `save` wrote. `left_out` has the functions of which something has no form on the disk, each with why: those are
    traced again by the process that loads the file."""

    functions: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def save(compiled: Any, path: str | os.PathLike[str]) -> SaveReport:
    """Writes a compiled function or module to one file: its entries with their guards, resume functions, graphs and libraries,
    and those of all else that was compiled with the same options. Call it after the calls that are to be fast.

    Args:
        compiled: what `compile` returned; graph breaks are no hindrance.
        path: the file, which is replaced.

    Raises:
        ArtifactError: it has not been called yet, or nothing of it has a form on the disk; the message has the reasons.
        InvalidArgument: not something compiled, or a path that cannot be written to.
    """
    options, target = _parts("save", compiled)
    file = file_of("save", path)
    found = importlib.import_module("fxjit.stored.entries").saved(options)
    name = _name_of(target)
    if not found.entries:
        if not found.left_out:
            raise ArtifactError(f"{name} has nothing to save: it was not called yet, or nothing of it was compiled "
                                f"({_skipped(target)}). Call it with arguments like those to come, then save it.")
        raise ArtifactError(f"Nothing of {name} can be saved:\n{_listed(found.left_out)}\nThe kernels can: see "
                            "fxjit.save_cache_artifacts.")
    bundle = importlib.import_module("fxjit.backends.store.bundle")
    try:
        bundle.write_bundle(file, found.entries.items(), _described(options, target))
    except OSError as problem:
        raise InvalidArgument(f"save: {file} cannot be written: {problem.strerror or problem}") from problem
    if found.left_out:
        log.warning("%s was saved without what has no form on the disk, which is traced again:\n%s", name,
                    _listed(found.left_out))
    return SaveReport(found.functions, found.left_out)


def aot_compile(compiled: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Compiles for these arguments, now, and gives `compiled` back, which then can be saved:
    `compile(f).aot_compile(x).save(path)`.

    It is one call, whose result is dropped: what comes after a graph break depends on what ran before it. So arguments that the
    function writes to are written to. torch's spelling, one tuple of the positional arguments and a dict of the others, does
    the same.
    """
    _parts("aot_compile", compiled)
    if len(args) == 1 and not kwargs and _is_torchs_spelling(args[0]):
        args, kwargs = args[0]
    compiled(*args, **kwargs)
    tiers = imported_module("fxjit.backends.tiers")
    if tiers is not None:
        tiers.wait_for_compiles(None)
    return compiled


#: What compiled functions and modules have for methods, beside what the program's own have under these names.
METHODS: Final = {"save": save, "aot_compile": aot_compile, "save_compiled_function": save}


def _is_torchs_spelling(value: object) -> bool:
    return (type(value) is tuple and len(value) == 2 and type(value[0]) in (tuple, list) and type(value[1]) is dict
            and all(isinstance(name, str) for name in value[1]))


def _parts(function: str, compiled: Any) -> tuple[RegionOptions, Any]:
    """The options of something compiled, and what it runs."""
    called = compiled if isinstance(compiled, _C.CompiledFunction) else _call_of(compiled)
    if called is not None and called.region is not None:
        return called.region.key, _uncompiled(compiled)
    raise InvalidArgument(f"{function}: expected what fxjit.compile returned, not {described(compiled)}.")


# -- which function a file is of -------------------------------------------------------------------------------------


def _described(options: RegionOptions, target: Any) -> dict[str, Any]:
    """As the manifest has it."""
    named = type(target) if is_nn_module(target) else target
    chosen = {"backend": options.chosen_backend, "mode": options.mode, "options": options.options,
              "fullgraph": options.fullgraph, "dynamic": options.dynamic, "recompile_limit": options.own_limit}
    code = _code_of(target)
    return {"module": module_of(named) or None, "name": getattr(named, "__qualname__", type(target).__qualname__),
            "is module": is_nn_module(target), "file": code.co_filename if code is not None else None, "code": _digest(target),
            "compiled with": chosen}


def read(content: bytes, path: Any, fn: Any, namespace: Mapping[str, object] | None) -> tuple[RegionOptions, Any]:
    """From the content of a file: the options that its function was compiled with, and the function, `fn` or the one of its
    name. The entries are known to the process from then on, if they are good for it. ArtifactError."""
    bundle = importlib.import_module("fxjit.backends.store.bundle")
    read = bundle.read_bundle(content, path)
    if read.function is None:
        raise ArtifactError(f"{path} is of no single function: it is for fxjit.load_cache_artifacts.")
    here = bundle.machine()
    for name in bundle.VERSIONS:
        if read.machine.get(name) != here[name]:
            raise ArtifactError(f"{path} was saved with {name} {read.machine.get(name)}, and this process has {here[name]}. "
                                "Save it again with the versions that run it.")
    told = read.function
    target = _function(path, told, namespace) if fn is None else _checked(path, told, fn)
    options = region_options(**told["compiled with"])
    differs = read.differs()
    if differs is None:
        bundle.ship(read.entries)
        regions.look_for_stored(options)
    else:
        log.warning("%s is not for this machine, where %s is compiled anew: it was saved with %s.", path, told["name"], differs)
    return options, target


def _function(path: Any, told: dict[str, Any], namespace: Mapping[str, object] | None) -> Any:
    """The function that the program has under the name in the manifest. Nothing is imported."""
    if told["is module"]:
        raise ArtifactError(f"{path} is of a module of class {told['name']}: {_NO_FUNCTION}.")
    place: Any = namespace
    if place is None:
        place = vars(sys.modules[told["module"]]) if told["module"] in sys.modules else {}
    first, *rest = str(told["name"]).split(".")
    found: Any = place.get(first)
    for part in rest:
        found = getattr(found, part, None)
    if found is None:
        raise ArtifactError(f"{path} is of {told['module']}.{told['name']}, which is not there by that name: {_NO_FUNCTION}.")
    return _checked(path, told, found)


def _checked(path: Any, told: dict[str, Any], fn: Any) -> Any:
    """The function, if it is the one that the file is of."""
    target = _uncompiled(fn)
    if not callable(target):
        raise InvalidArgument(f"load: expected the function or the module that was saved, not {described(fn)}.")
    if is_nn_module(target) == told["is module"] and _digest(target) == told["code"]:
        return target
    what, code = f"{told['module']}.{told['name']}", _code_of(target)
    where = "" if code is None else f" in {code.co_filename}"
    raise ArtifactError(f"{path} is of {what} in {told['file']}, and not of {_name_of(target)}{where}: it is another function, "
                        "or its code was changed or moved since. Save it again.")


def _call_of(module: Any) -> Any:
    """What a call of a compiled module runs: of one that `compile` made of another, or of one that was compiled in place."""
    if not is_nn_module(module):
        return None
    found = vars(module).get("forward" if "_orig_mod" in module._modules else "_compiled_call_impl")
    return found if isinstance(found, _C.CompiledFunction) else None


def _uncompiled(fn: Any) -> Any:
    """The program's own function or module."""
    if is_nn_module(fn):
        return fn._modules.get("_orig_mod", fn)
    return marks.unwrapped(fn) if marks.is_compiled(fn) else fn


def _code_of(target: Any) -> CodeType | None:
    """The code that a call runs first, or that of the module's `forward`."""
    if is_nn_module(target):
        return regions.code_of(target.forward)
    return regions.code_of(target) or regions.code_of(regions.call_method(target))


def _digest(target: Any) -> str | None:
    code = _code_of(target)
    return None if code is None else importlib.import_module("fxjit.stored.objects").code_digest(code)  # type: ignore[no-any-return]  # imported late


def _name_of(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _skipped(target: Any) -> str:
    """Why nothing of it was compiled, where that is known."""
    code = _code_of(target)
    reasons = () if code is None else entries.skip_reasons(code)
    return "; ".join(reasons) if reasons else "fxjit.explain says why"


def _listed(left_out: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(dict.fromkeys(f"  {name}: {why}" for name, why in left_out))
