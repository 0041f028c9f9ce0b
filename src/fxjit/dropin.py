"""Settings and state of torch that follow fxjit's while the drop-in is installed.

Programs written for torch.compile do not stop at calling it: they set `torch._dynamo.config`, turn on logs by
`TORCH_LOGS` or `torch._logging.set_logs`, read `torch._dynamo.utils.counters`, catch `torch._dynamo.exc.Unsupported`
and unwrap an `OptimizedModule`. `install.py` says when; this file says what; replacements.py does it and puts it all back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from . import config, errors, logs, surface
from .counters import compile_times, counters
from .profiler import CompileProfiler
from .replacements import Replacements, copy_of

_NOT_THERE: Final = object()

_SAME_NAME: Final = (
    "accumulated_recompile_limit", "allow_empty_graphs", "assume_static_by_default", "automatic_dynamic_shapes",
    "capture_dynamic_output_shape_ops", "capture_func_transforms", "capture_scalar_outputs", "disable",
    "dynamic_shapes", "error_on_recompile", "fail_on_recompile_limit_hit", "guard_nn_modules", "optimize_ddp",
    "recompile_limit", "repro_after", "repro_level", "specialize_float", "specialize_int", "suppress_errors",
    "trace_autograd_ops", "trace_numpy", "verbose", "verify_correctness",
)
#: Setting of torch._dynamo.config -> ours of the same meaning and default.
_SETTINGS: Final[Mapping[str, str]] = {
    **{name: name for name in _SAME_NAME},
    "enable_trace_unittest": "trace_unittest",
    "reorderable_logging_functions": "reorderable_functions",
}
#: The same for torch._inductor.config.
_INDUCTOR_SETTINGS: Final[Mapping[str, str]] = {
    "fallback_random": "fallback_random",
    "freezing": "freezing",
    "max_autotune": "triton.max_autotune",
    "trace.enabled": "debug",
    "triton.cudagraphs": "triton.cudagraphs",
}

#: The same for torch.compiler.config.
_COMPILER_SETTINGS: Final[Mapping[str, str]] = {
    name: name for name in ("dynamic_sources", "dynamic_values", "static_sources", "unbacked_sources")
}

_ON: Final[Mapping[str, Any]] = {"1": True, "true": True, "True": True}
_NOTHING_ASKED: Final = frozenset({"", "0", "false", "False"})
#: What torch reads from the environment when it imports torch._dynamo or torch._inductor, which a program compiled by us may
#: never do, or read in earlier versions: the variable, our setting, and our setting's value for each of the variable's.
_VARIABLES: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("TORCH_COMPILE_DISABLE", "disable", _ON),
    ("TORCH_COMPILE_DEBUG", "debug", _ON),
    ("TORCHINDUCTOR_FREEZING", "freezing", _ON),
    ("TORCHDYNAMO_SUPPRESS_ERRORS", "suppress_errors", _ON),
    ("TORCHDYNAMO_VERBOSE", "verbose", _ON),
    ("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS", "capture_scalar_outputs", _ON),
    ("TORCHDYNAMO_DYNAMIC_SHAPES", "dynamic_shapes", {"0": False, "1": True}),
    ("TORCHDYNAMO_DYNAMIC_SHAPES", "assume_static_by_default", {"0": True, "1": False}),
    ("TORCHDYNAMO_REPRO_AFTER", "repro_after", {"dynamo": "dynamo", "aot": "aot"}),
    ("TORCHDYNAMO_REPRO_LEVEL", "repro_level", {"1": 1, "2": 2, "3": 3, "4": 4}),
)

#: Name in torch._dynamo.exc -> our error that a handler of that name is to catch too.
_EXCEPTIONS: Final[Mapping[str, type[errors.FxjitError]]] = {
    "Unsupported": errors.Unsupported,
    "BackendCompilerFailed": errors.BackendCompilerFailed,
    "InvalidBackend": errors.InvalidBackend,
    "RecompileError": errors.RecompileError,
    "FailOnRecompileLimitHit": errors.RecompileLimitExceeded,
    "InternalTorchDynamoError": errors.InternalError,
}


def _handing_on(change: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: _Functions, *args: Any) -> Any:
        result = change(self, *args)
        _forward("torch._dynamo.config.reorderable_logging_functions", "reorderable_functions", self)
        return result

    return changed


class _Functions(set[Any]):
    """`torch._dynamo.config.reorderable_logging_functions`, which programs change in place."""

    add = _handing_on(set.add)
    update = _handing_on(set.update)
    remove = _handing_on(set.remove)
    discard = _handing_on(set.discard)
    clear = _handing_on(set.clear)


def is_switched_off() -> bool:
    """TORCHDYNAMO_DISABLE, which torch reads whenever something is compiled: what is then given back is as it was."""
    return config.environment("TORCHDYNAMO_DISABLE") == "1"


def follow_environment() -> None:
    """TORCH_LOGS and the switches of torch._dynamo hold for us as far as ours of the same meaning were not set."""
    for variable, ours, values in _VARIABLES:
        text = config.environment(variable)
        if config.environment(config.SETTINGS[ours].env):
            continue
        if text in values:
            setattr(config, ours, values[text])
        elif text not in _NOTHING_ASKED:
            known = ", ".join(map(repr, values))
            warnings.warn(f"{variable}={text!r} has no effect on fxjit, which knows {known} of it. Its own is "
                          f"{config.SETTINGS[ours].env}.", stacklevel=3)
    asked = config.environment("TORCH_LOGS")
    if asked and not config.logs:
        logs.set_logs(",".join(item for item in asked.split(",") if logs.is_known(item.strip().lstrip("+-"))))


def follow_logging(torch_logging: ModuleType, made: Replacements) -> None:
    """`torch._logging.set_logs` sets our logs of the same names too."""
    theirs = copy_of(torch_logging.set_logs)

    def set_logs(*, all: int | None = None, **artifacts: Any) -> None:
        """`torch._logging.set_logs` while the drop-in is installed: torch's own logs, and fxjit's of the same names."""
        theirs(all=all, **artifacts)
        logs.set_logs(all=all, **{name: value for name, value in artifacts.items() if logs.is_known(name)})

    made.claim(torch_logging, "set_logs", set_logs)


def follow_dynamo(dynamo: ModuleType, made: Replacements) -> None:
    """For a torch._dynamo that is imported: its settings, counters, exceptions and class of compiled modules."""
    _follow_settings(dynamo.config, _SETTINGS, made)
    made.put(counters, "also", dynamo.utils.counters)
    made.put(dynamo.utils, "counters", counters)
    made.claim(dynamo.utils, "compile_times", compile_times)
    made.put(dynamo.utils, "CompileProfiler", CompileProfiler)
    for name, ours_too in _EXCEPTIONS.items():
        _catch_too(ours_too, getattr(dynamo.exc, name, None), made)
    for module in (dynamo, dynamo.decorators, dynamo.eval_frame):
        surface.apply(module, made)


def follow_symbolic_shapes(symbolic_shapes: ModuleType, made: Replacements) -> None:
    """For a torch.fx.experimental.symbolic_shapes that is imported: its exceptions."""
    _catch_too(errors.ConstraintViolationError, getattr(symbolic_shapes, "ConstraintViolationError", None), made)


def _catch_too(ours: type[errors.FxjitError], theirs: type[Exception] | None, made: Replacements) -> None:
    """A handler of `theirs` catches ours."""
    if theirs is not None:  # some are of later versions of torch
        made.put(ours, "__bases__", (*ours.__bases__, theirs), ours.__bases__)


def follow_compiler(compiler: ModuleType, made: Replacements) -> None:
    """For torch.compiler, and its settings."""
    surface.apply(compiler, made)
    _follow_settings(compiler.config, _COMPILER_SETTINGS, made)


def follow_inductor(inductor_config: ModuleType, made: Replacements) -> None:
    """For a torch._inductor.config that is imported."""
    _follow_settings(inductor_config, _INDUCTOR_SETTINGS, made)


def _follow_settings(theirs: ModuleType, table: Mapping[str, str], made: Replacements) -> None:
    """`theirs` is of a class of its own, whose assignments, those of `patch` included, are handed on."""
    own_class = type(theirs)
    assign = own_class.__setattr__

    def assign_both(module: ModuleType, name: str, value: Any) -> None:
        assign(module, name, value)
        hand_on(module, name, value)

    def hand_on(module: ModuleType, name: str, value: Any) -> None:
        if name in table:
            _forward(f"{theirs.__name__}.{name}", table[name], value)
        elif name.startswith("trace."):
            message = f"{theirs.__name__}.{name} has no effect on fxjit: config.debug writes a folder of all files a compile."
            warnings.warn(message, stacklevel=2)
        else:
            surface.warn_of_setting(theirs.__name__, name)

    set_raw = getattr(own_class, "_set_raw_values", None)
    if set_raw is not None:  # from torch 2.15 on `patch` of some modules does not assign
        made.put(own_class, "_set_raw_values", _handing_on_raw(set_raw, hand_on))
    name = "reorderable_logging_functions"
    functions = getattr(theirs, name, None) if name in table else None  # elsewhere an alias: reading it imports torch._dynamo
    if isinstance(functions, set):
        made.put(theirs, name, _Functions(functions), functions)
    made.put(own_class, "__setattr__", assign_both)
    for name, ours in table.items():
        value = getattr(theirs, name, _NOT_THERE)
        if value is not _NOT_THERE and value != config.SETTINGS[ours].default:
            _forward(f"{theirs.__name__}.{name}", ours, value)


def _handing_on_raw(set_raw: Callable[..., Any], hand_on: Callable[[ModuleType, str, Any], None]) -> Callable[..., Any]:
    """`_set_raw_values` of a class of settings, which gives what undoes it: both hand the values on, as assignments do."""

    def set_and_hand_on(module: ModuleType, changes: Mapping[str, Any], **kwargs: Any) -> Callable[[], None]:
        undo: Callable[[], None] = set_raw(module, changes, **kwargs)

        def undo_and_hand_on() -> None:
            undo()
            for name in changes:
                hand_on(module, name, getattr(module, name))

        for name, value in changes.items():
            hand_on(module, name, value)
        return undo_and_hand_on

    return set_and_hand_on


#: Our setting -> what it is for values of torch's setting that ours does not know.
_OTHER_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "optimize_ddp": {"ddp_optimizer": True, "no_optimization": False},
}


def _forward(theirs: str, ours: str, value: Any) -> None:
    group, _, name = ours.rpartition(".")
    known = _OTHER_VALUES.get(ours, {}).get(value, value) if isinstance(value, str) else value
    try:
        setattr(getattr(config, group) if group else config, name, known)
    except errors.ConfigError as error:
        warnings.warn(f"{theirs} = {value!r} has no effect on fxjit: {error}", stacklevel=3)


def ignore_arguments(function: str, arguments: Mapping[str, Any]) -> None:
    """Says that arguments of torch.compile have no effect here. What is none of any torch is an error, as there."""
    for name in arguments:
        if surface.decision("torch.compile", name) is None:
            raise TypeError(f"{function.rpartition('.')[2]}() got an unexpected keyword argument '{name}'")
    if arguments:
        warnings.warn(f"fxjit ignores these arguments of {function}: {', '.join(arguments)}.", stacklevel=3)
