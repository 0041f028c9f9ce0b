"""The settings of fxjit, one row each.

Everybody reads them as plain attributes (`config.recompile_limit`), users assign to them, and
`config.patch(recompile_limit=1)` is a context manager and a decorator. Each is readable from the environment as
`FXJIT_<NAME>` (`FXJIT_CPP_COMPILER` for `cpp.compiler`). An unknown name or a wrong type raises at once and says what
is near. This is the only file that looks at the environment.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import pwd
import shlex
import shutil
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from .errors import ConfigError, UnknownSetting, displayed, near

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table: what `describe()` and the documentation show."""

    name: str
    type: Any
    default: Any
    env: str
    doc: str
    in_cache_key: bool


@dataclass(frozen=True, slots=True)
class _Row:
    default: Any
    doc: str
    in_cache_key: bool
    choices: tuple[Any, ...]
    between: tuple[float, float] | None


def _row(default: T, doc: str, *, in_cache_key: bool = False, choices: tuple[Any, ...] = (),
         between: tuple[float, float] | None = None) -> T:
    """States a setting. `in_cache_key`: generated code depends on it, so it is part of the key of cached kernels. `between`:
    the least and the greatest number that it may be."""
    return cast(T, _Row(default, doc, in_cache_key, choices, between))


# What happens to a frame
disable: bool = _row(False, "Run everything eagerly: compiled callables call the function they were made from.")
suppress_errors: bool = _row(False, "A failure inside the compiler makes the frame run eagerly instead of raising.")
verbose: bool = _row(False, "Show our own part of a traceback with an error too.")
recompile_limit: int = _row(
    8, "Entries a code object may have before it runs eagerly, for each function or module compiled that runs it."
)
accumulated_recompile_limit: int = _row(256, "The same over all callables that share a code object.")
fail_on_recompile_limit_hit: bool = _row(False, "Raise RecompileLimitExceeded at the limit.")
error_on_recompile: bool = _row(False, "Raise RecompileError when a guard fails and code would be compiled again.")
guard_collectives: bool = _row(
    False, "Ranks exchange at each look-up whether an entry fits, and compile together where one has none that does."
)
compile_tensorless_frames: bool = _row(False, "Trace a frame that has no tensor among its arguments or in its graph.")
allow_empty_graphs: bool = _row(False, "Run new bytecode even where the graph came out empty.")
resume_in_loops: bool = _row(
    False, "Resume after a graph break in a loop, instead of running the frame eagerly: an iteration is compiled by itself. "
    "A `while` loop that decides on data, and a `for` loop that does and that such a decision may leave, or that is over "
    "numbers and tensors, are resumed there in any case."
)
nested_graph_breaks: bool = _row(
    True, "A graph break in a function that is called keeps the graphs of its callers whole: the rests of all go in one. Not "
    "where one of them is in a `try` block, in a `with` that stays entered, a loop (without resume_in_loops) or a generator: "
    "the call in the outermost function that can wait then runs as it stands, and what it calls is compiled by itself."
)
resume_in_try: bool = _row(
    False, "Resume after a graph break in a `try` block or in a `with` of any manager, instead of running the frame eagerly."
)
compile_around_blocks: bool = _row(
    False, "A graph break in a loop, a `try` block or a `with` that the frame cannot resume in leaves only that block to "
    "Python: what stands before it and behind it is compiled, instead of running the frame eagerly."
)
trace_unittest: bool = _row(False, "Trace unittest's own methods instead of passing them by.")

# Shapes and numbers
dynamic_shapes: bool = _row(True, "Sizes may become symbols at all.")
assume_static_by_default: bool = _row(True, "A size is a constant until it is seen to change.")
automatic_dynamic_shapes: bool = _row(True, "A size that changed between two calls becomes a symbol.")
dynamic_sources: str = _row(
    "", "Inputs, between commas, whose sizes (`:N`: that of dimension N) or integers are symbols from the first compile on, "
    "with `dynamic=False` and in parameters as well. A name is torch's, as L['x'], or x, or an expression for its beginning."
)
static_sources: str = _row("", "Inputs whose sizes and numbers are constants, in the same notation; it wins over the others.")
unbacked_sources: str = _row("", "Inputs whose sizes are known by what `torch._check` says alone, in the same notation.")
dynamic_values: str = _row("", "Sizes and integers, between commas, that are symbols wherever an input has them.")
specialize_int: bool = _row(False, "Python integers stay constants even when they change from call to call.")
specialize_float: bool = _row(False, "Python floats stay constants even when they change from call to call.")
capture_scalar_outputs: bool = _row(
    False, "Put `.item()` and its like in the graph, as symbols without a value. `fullgraph=True` does so in any case.")
capture_dynamic_output_shape_ops: bool = _row(
    False, "Put operators whose output shape depends on data in the graph. `fullgraph=True` does so in any case.")

# What is traced
trace_numpy: bool = _row(True, "Trace NumPy functions as torch operators.")
capture_checks: bool = _row(
    True, "A branch on data whose other side raises or warns is no graph break: the graph tells whether the data takes that "
    "side, and then the call runs eagerly."
)
reorderable_functions: frozenset[Any] = _row(
    frozenset(), "Functions such as print whose calls may be made after the graph, in their order and with their arguments as "
    "they were, instead of breaking it. In the environment: print,logging.info."
)
capture_func_transforms: bool = _row(
    True, "Functions that torch.func transforms (`vmap`, `grad`...) become part of the graph; else a transform's call ends it."
)
trace_autograd_ops: bool = _row(
    False, "`backward()` becomes part of the graph: with it a training step is one graph, forward, backward and optimizer. "
    "Else such a call breaks the graph, and the backward of what was captured so far is compiled by itself. "
    "`torch.autograd.grad`, which leaves no gradient anywhere, is part of the graph in any case."
)
guard_nn_modules: bool = _row(
    True, "Guard what a trace read inside of modules. Off: only their tensors and `training`; programs that change anything "
    "else of a module run code that was compiled for what it was."
)
optimize_ddp: bool = _row(
    True, "Cut the graphs of modules in DistributedDataParallel at the boundaries of their buckets, so that the all-reduce of "
    "one bucket runs while the backward of the next computes. Off: all are reduced when the backward of a graph ends."
)
fallback_random: bool = _row(
    False, "Draw the same random numbers as eager on a GPU too, by ATen. On a CPU they always are.", in_cache_key=True
)
tiers: bool = _row(
    False, "The first call of a graph traces it and runs it as it was captured, while a helper process compiles it; its code "
    "is put in place between two calls. Native backend on the CPU; wait_for_compiles() waits for the end. Where torch's "
    "autograd does not run in a forked process (builds for CUDA), graphs with gradients stay as they were captured, with a "
    "warning."
)
background_budget: float = _row(
    600.0, "Seconds after which a graph that a helper process compiles stays as it was captured; 0: no limit."
)
concurrent_compile: str = _row(
    "eager", "What a thread does with a frame that another thread is compiling: run it as it is, or wait for the result.",
    choices=("eager", "wait"),
)
verify_guards: bool = _row(True, "Check that a frame's new guards hold on that very frame before they are kept.")
verify_guard_fast_path: bool = _row(
    False, "Compare each guard check that skips what has not changed with a full one, and raise where they differ."
)

# Finding mistakes
repro_after: str | None = _row(
    None,
    "Write a graph that its backend fails on as a script: the captured graph ('dynamo') or the ATen graphs ('aot').",
    choices=(None, "dynamo", "aot"),
)
repro_level: int = _row(
    2,
    "What repro_after writes: 1 the whole failing graph, 2 the smallest that fails alike, 3 every graph before it is "
    "compiled, 4 as 2 and for wrong results as well.",
    choices=(1, 2, 3, 4),
)
verify_correctness: bool = _row(False, "Run each new graph beside eager and raise AccuracyError where they differ.")
debug: bool = _row(False, "Write a folder for each compile: graphs, guards, bytecode, generated source, timing.")
debug_dir: str = _row("", "Where those folders go; setting it turns them on. Empty with `debug`: ./fxjit_debug.")
progress: float = _row(5.0, "Seconds after which a compile says on stderr what it is at; 0: it never does.")
report: str = _row("", "The folder that the page of the run is written to when the process ends; empty: no page.")
logs: str = _row("", "Logs to show, as set_logs takes them: 'graph_breaks,+guards'.")

# The native backend
cache_dir: str = _row("", "Where compiled kernels are kept; empty: a folder in the user's cache folder.")
disk_cache: bool = _row(True, "Look compiled kernels up on the disk.")
cache_graphs: bool = _row(
    True, "Keep on the disk what whole graphs became, too, so that the next process does not lower and schedule them again."
)
store_entries: bool = _row(
    True, "Keep compiled entries on the disk, guards and new bytecode with the graphs, so that the next process that runs the "
    "same code neither traces nor lowers it."
)
cache_size_mb: int = _row(2048, "The size above which the oldest kernels leave the disk cache.")
small_graphs_as_captured: bool = _row(
    True, "Run a training graph as it was captured where a compiled autograd node would cost more than the few operators do.",
    in_cache_key=True,
)
memory_budget: float = _row(
    1.0, "Of the memory for what a training graph keeps for its backward, the share it may use, from 0 to 1: below 1 the graph "
    "computes more of it again, as torch's activation_memory_budget, which holds too where it is less.", in_cache_key=True,
    between=(0.0, 1.0),
)
kept_memory_mb: int = _row(
    1024, "Megabytes of freed memory that the process keeps for later calls instead of returning them to the system (glibc's "
    "mallopt, at the first compiled graph of a process); 0, or a variable MALLOC_..._ in the environment: glibc's allocator is "
    "left as it is.", between=(0, 2047),
)
large_pages: bool = _row(
    True, "Ask the system for large pages (2 MB) where weights lie that products of few rows read often, as decoding does, if "
    "`/sys/kernel/mm/transparent_hugepage/enabled` is not `never`. Read when a graph is built, for all of the process.",
)
compile_budget: float = _row(
    60.0, "Seconds of processor time that compiling one graph may take before it is left to ATen, operator by operator, with "
    "one line in the log; 0: no limit.", in_cache_key=True,
)
freezing: bool = _row(
    False, "Where no gradients are recorded, calculate what depends on parameters and buffers of modules alone once, and lay "
    "weights out as products read them fastest, which takes their memory a second time. It is done again when one of them "
    "was written to or replaced. A write that counts no version (through `parameter.data`, by NumPy) is not noticed: call "
    "`fxjit.reset()` behind it.", in_cache_key=True,
)
bucket_collectives_mb: float = _row(
    0.0, "Megabytes of tensors up to which a graph's all_reduce, all_gather_into_tensor and reduce_scatter_tensor that do not "
    "need each other's results are one call; 0: each is a call. All ranks have to compile the same graphs.", in_cache_key=True,
)
measure_machine: bool = _row(
    True, "Measure the processor's speeds once (two seconds at most, in a thread of its own, from ten seconds after the first "
    "graph is compiled), keep them on the disk, and decide by them in later processes what is fused, what is ATen's, and what "
    "threads share. Off, under deterministic algorithms and in process groups of torch.distributed: decided by constants. Off "
    "and under deterministic algorithms float16 and bfloat16 are calculated in these, however slow this processor is at them.",
    in_cache_key=True,
)
num_threads: int = _row(0, "Threads that C++ kernels run on; 0: as many as torch.get_num_threads() says.")


class Group:
    """Settings of one target, read as `config.cpp.compiler`."""

    def __init__(self, prefix: str) -> None:
        object.__setattr__(self, "_prefix", prefix)

    def __setattr__(self, name: str, value: Any) -> None:
        _assign(f"{self._prefix}.{name}", value)  # type: ignore[attr-defined]  # set in __init__ past __setattr__

    def __getattr__(self, name: str) -> Any:
        raise _unknown(f"{self.__dict__.get('_prefix', 'config')}.{name}")


class Cpp(Group):
    compiler: str = _row("", "The C++ compiler; empty: $CXX, then g++, c++, clang++.", in_cache_key=True)
    fast_math: bool = _row(False, "Allow reassociation and drop NaN and infinity rules.", in_cache_key=True)
    simd: bool = _row(True, "Vectorise kernels, calling libmvec.", in_cache_key=True)
    openmp: bool = _row(True, "Run kernels on several threads.", in_cache_key=True)
    require: bool = _row(False, "Raise when no compiler works or it refuses a kernel, instead of ATen doing all operators.")
    extra_flags: str = _row("", "Flags added to the compiler's command.", in_cache_key=True)
    own_products: bool = _row(
        True, "Multiply matrices of float32 by fxjit's own kernels, of vectors or of tiles, where these were measured to be "
        "faster than the BLAS that ATen calls, and few rows of bfloat16.", in_cache_key=True,
    )
    own_convolutions: bool = _row(
        True, "Convolve images of float32 that are channels last by fxjit's own kernels where these were measured to be about "
        "as fast as ATen's.", in_cache_key=True,
    )
    own_recurrent: bool = _row(True, "Run `nn.LSTM`, `nn.GRU` and `nn.RNN` of float32 by fxjit's own kernels.")
    own_attention: bool = _row(
        True, "Run `scaled_dot_product_attention` of float32, bfloat16 and float16 on a processor by fxjit's own kernels.",
        in_cache_key=True,
    )


class Triton(Group):
    cudagraphs: bool = _row(False, "Replay compiled graphs as CUDA graphs.", in_cache_key=True)
    max_autotune: bool = _row(False, "Measure the block sizes of every GPU kernel, however small.", in_cache_key=True)
    autotune: bool = _row(True, "Measure block sizes for kernels that move much memory, once, and keep the choice on the disk.")
    compile_processes: int = _row(0, "Processes that compile Triton kernels; 0: as many as processors, at most 8.")
    interpret: bool = _row(
        False,
        "Render CPU graphs in Triton too and run them in its interpreter, slowly: to test kernels without a GPU.",
        in_cache_key=True,
    )


cpp: Cpp = Cpp("cpp")
triton: Triton = Triton("triton")

ALIASES: Mapping[str, str] = {
    "cache_size_limit": "recompile_limit",
    "accumulated_cache_size_limit": "accumulated_recompile_limit",
    "fail_on_cache_limit_hit": "fail_on_recompile_limit_hit",
}
SETTINGS: dict[str, Setting] = {}
_CHOICES: dict[str, tuple[Any, ...]] = {}
_BETWEEN: dict[str, tuple[float, float]] = {}
_listeners: list[Callable[[str, Any], None]] = []
_PUBLIC_FUNCTIONS = frozenset({"patch", "to_dict", "cache_key", "describe", "reset", "on_change"})


class patch(contextlib.ContextDecorator):
    """Sets settings for the length of a `with` block or of a decorated function: by keyword, by a dict, or one by name.

    `patch(recompile_limit=1)`, `patch("cpp.fast_math", True)`, `patch({"cpp.fast_math": True})`.
    """

    def __init__(self, *args: Any, **changes: Any) -> None:
        if len(args) == 2 and isinstance(args[0], str):
            changes = {args[0]: args[1], **changes}
        elif len(args) == 1 and isinstance(args[0], Mapping):
            changes = dict(args[0]) | changes
        elif args:
            raise ConfigError("config.patch takes keywords, a dict, or a name and a value.")
        self.changes = {_canonical(name): _checked(_canonical(name), value) for name, value in changes.items()}
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> patch:
        self._before.append({name: _get(name) for name in self.changes})
        for name, value in self.changes.items():
            _assign(name, value)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for name, value in self._before.pop().items():
            _assign(name, value)


def to_dict() -> dict[str, Any]:
    """Every setting's value now, by name."""
    return {name: _get(name) for name in SETTINGS}


def cache_key() -> tuple[tuple[str, Any], ...]:
    """The settings that generated code depends on: part of the key of every cached kernel."""
    return tuple((name, _get(name)) for name, setting in SETTINGS.items() if setting.in_cache_key)


def describe() -> Iterator[Setting]:
    """The rows, in order: for documentation and `python -m fxjit doctor`."""
    yield from SETTINGS.values()


def reset(name: str | None = None) -> None:
    """Gives one setting, or every one, the value it had when the process started."""
    for each in [_canonical(name)] if name is not None else list(SETTINGS):
        _assign(each, _from_environment(SETTINGS[each]))


def on_change(listener: Callable[[str, Any], None]) -> None:
    """Calls `listener(name, value)` after each assignment; for what is derived from a setting."""
    if not callable(listener):
        raise ConfigError(f"fxjit.config.on_change: expected a function of a name and a value, not {displayed(listener)}.")
    _listeners.append(listener)


def environment(name: str, default: str = "") -> str:
    """An environment variable that is not a setting of ours (CXX, XDG_CACHE_HOME, ...)."""
    return os.environ.get(name, default)


def command(text: str) -> tuple[str, ...] | None:
    """The program that a setting or variable names, found, with arguments that stand behind it (`ccache g++`); None where
    there is no such program."""
    whole = shutil.which(text) if text else None
    if whole is not None:
        return (whole,)
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation that does not end
        return None
    path = shutil.which(words[0]) if words else None
    return None if path is None else (path, *words[1:])


def cache_folder() -> Path:
    """Where compiled kernels are kept: `cache_dir`, or `fxjit` in the user's cache folder. It may not exist yet. ConfigError
    where that needs a home folder and there is none."""
    chosen: str = globals()["cache_dir"]
    if chosen:
        folder = _with_home("cache_dir", chosen)
        return folder if folder.is_absolute() else Path.cwd() / folder  # a process may be in no folder any more
    base = os.environ.get("XDG_CACHE_HOME") or ""
    given = _with_home("cache_dir", base) if base else Path()
    return (given if given.is_absolute() else _with_home("cache_dir", "~/.cache")) / "fxjit"


def debug_folder() -> Path:
    """Where what is written for people to look at goes: `debug_dir`, or ./fxjit_debug."""
    return _with_home("debug_dir", globals()["debug_dir"] or "fxjit_debug")


def _with_home(name: str, path: str) -> Path:
    """The path, with `~` for the folder in HOME or else the one that the system has for the user, and `~name` for another's."""
    home, _, rest = path.partition("/")
    if not home.startswith("~"):
        return Path(path)
    try:
        if home == "~":
            found = Path(os.environ.get("HOME", ""))
            return (found if found.is_absolute() else Path(pwd.getpwuid(os.getuid()).pw_dir)) / rest
        return Path(home).expanduser() / rest
    except (KeyError, RuntimeError):
        raise ConfigError(
            f"fxjit.config.{name}: there is no home folder that {path!r} could be in. Set HOME, or a path without ~."
        ) from None


def set_environment(**changes: str) -> None:
    """Variables for libraries that read the environment of this process (the demo gives torch.compile an empty cache)."""
    os.environ.update(changes)


def child_environment(**changes: str) -> dict[str, str]:
    """The environment to start a compiler or another process with."""
    return {**os.environ, **changes}


def _canonical(name: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"fxjit.config: the name of a setting is text, not {displayed(name)}.")
    name = ALIASES.get(name, name)
    if name not in SETTINGS:
        raise _unknown(name)
    return name


def _unknown(name: str) -> UnknownSetting:
    known = [*SETTINGS, *ALIASES]
    short = {each.rpartition(".")[2]: each for each in known}
    where = f" It is called {short[name]!r}." if name in short else ""
    hint = where or f" {near(name, known)}".rstrip()
    return UnknownSetting(f"fxjit.config has no setting {displayed(name)}.{hint}")


def _holder(name: str) -> tuple[dict[str, Any], str]:
    group, _, attribute = name.rpartition(".")
    return (globals()[group].__dict__ if group else globals()), attribute


def _get(name: str) -> Any:
    holder, attribute = _holder(name)
    return holder[attribute]


def _assign(name: str, value: Any) -> None:
    name = _canonical(name)
    holder, attribute = _holder(name)
    holder[attribute] = value = _checked(name, value)
    for listener in _listeners:
        listener(name, value)


def _checked(name: str, value: Any) -> Any:
    """The value, or ConfigError: an int passes for a float, a bool never passes for a number."""
    setting = SETTINGS[name]
    accepted = typing.get_args(setting.type) or (setting.type,)
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise ConfigError(f"fxjit.config.{name} must be one of {', '.join(map(repr, choices))}, not {displayed(value)}.")
    least, greatest = _BETWEEN.get(name, (None, None))
    if least is not None and greatest is not None and type(value) in (int, float) and not least <= value <= greatest:
        raise ConfigError(f"fxjit.config.{name} must be from {least:g} to {greatest:g}, not {displayed(value)}.")
    if typing.get_origin(setting.type) is frozenset:
        return _callables(name, value)
    if type(value) in accepted:
        return value
    if float in accepted and type(value) is int:
        return float(value)
    if str in accepted and isinstance(value, os.PathLike):
        return os.fspath(value)
    wanted = " or ".join("None" if each is type(None) else each.__name__ for each in accepted)
    raise ConfigError(f"fxjit.config.{name} must be {wanted}, not {type(value).__name__} ({displayed(value)}). {setting.doc}")


def _callables(name: str, value: Any) -> frozenset[Any]:
    if isinstance(value, (set, frozenset, list, tuple)) and all(callable(each) for each in value):
        return frozenset(value)
    raise ConfigError(f"fxjit.config.{name} must be a set of functions, not {displayed(value)}. {SETTINGS[name].doc}")


_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})


def _from_environment(setting: Setting) -> Any:
    text = os.environ.get(setting.env)
    if text is None:
        return setting.default
    if typing.get_origin(setting.type) is frozenset:
        return frozenset(_named(setting, name.strip()) for name in text.split(",") if name.strip())
    accepted = typing.get_args(setting.type) or (setting.type,)
    if bool in accepted:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ConfigError(f"{setting.env}={text!r}: expected 1 or 0.")
    for number in (int, float):
        if number in accepted:
            try:
                return number(text)
            except ValueError:
                raise ConfigError(f"{setting.env}={text!r}: expected a number.") from None
    if type(None) in accepted and text.lower() in {"", "none"}:
        return None
    return text


def _named(setting: Setting, name: str) -> Any:
    """The object of a dotted name; one without dots is a builtin's."""
    try:
        return pkgutil.resolve_name(name if "." in name else f"builtins.{name}")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting.env}: {displayed(name)} names nothing that can be imported ({error}).") from None


def _collect() -> None:
    """Reads the rows above into SETTINGS and puts each setting's first value in its place."""
    module = sys.modules[__name__]
    places: list[tuple[str, dict[str, Any], Mapping[str, Any], Any]] = [("", globals(), globals(), module)]
    for group in ("cpp", "triton"):
        kind = type(globals()[group])
        places.append((f"{group}.", globals()[group].__dict__, kind.__dict__, kind))
    for prefix, holder, rows, owner in places:
        for attribute, kind in typing.get_type_hints(owner, {**globals()}).items():
            row = rows.get(attribute)
            if not isinstance(row, _Row):
                continue
            name = prefix + attribute
            env = "FXJIT_" + name.replace(".", "_").upper()
            setting = SETTINGS[name] = Setting(name, kind, row.default, env, row.doc, row.in_cache_key)
            if row.choices:
                _CHOICES[name] = row.choices
            if row.between is not None:
                _BETWEEN[name] = row.between
            holder[attribute] = _checked(name, _from_environment(setting))
    known = {setting.env for setting in SETTINGS.values()}
    for variable in os.environ:
        if variable.startswith("FXJIT_") and variable not in known:
            warnings.warn(f"fxjit has no setting {variable}. {near(variable, known)}", stacklevel=2)


class _ConfigModule(types.ModuleType):
    """The module type that checks `fxjit.config.name = value`; reading stays a plain module attribute."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS or name in ALIASES:
            _assign(name, value)
        elif name.startswith("__") or isinstance(value, types.ModuleType):
            super().__setattr__(name, value)
        else:
            raise _unknown(name)

    def __getattr__(self, name: str) -> Any:
        if name in ALIASES:
            return _get(ALIASES[name])
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(name)

    def __dir__(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in SETTINGS} | set(ALIASES) | _PUBLIC_FUNCTIONS)


_collect()
sys.modules[__name__].__class__ = _ConfigModule
