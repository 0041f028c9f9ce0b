"""From a frame to a compiled entry: every stage of the journey, named and in order.

The hook's callback (api.py) calls `compile_frame` for a frame that no entry fits. What comes out is an entry whose
guards were seen to hold on this very frame, or None: the frame then runs as it stands, for a reason that was logged
and counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import importlib
import itertools
import operator
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeGuard

import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fxjit import (
    _C,
    agreement,
    config,
    debug,
    events,
    first_calls,
    generated,
    logs,
    process_state,
    progress,
    torch_private,
)
from fxjit.backends.door import noted_results
from fxjit.backends.graph import recipe
from fxjit.backends.graph.buckets import split_by_ddp_bucket
from fxjit.backends.graph.steps import settings_of, split_by_step
from fxjit.backends.registry import checking_results, is_built_in, tells_writes
from fxjit.backends.tiers import Deferred, Offer, offered
from fxjit.counters import add_time
from fxjit.errors import (
    BackendCompilerFailed,
    BreakGraph,
    CompilerFailure,
    FxjitError,
    InternalError,
    RecompileError,
    RecompileLimitExceeded,
    RetraceFrame,
    SkipFrameSignal,
    is_foreign,
    leave_trace,
)
from fxjit.frontend import entries
from fxjit.frontend.attempts import preserved_state, trace_frame
from fxjit.frontend.dynamic import ShapePolicy, forget_tensors, history_of
from fxjit.frontend.fakes import quiet_fake_tensors, unguarded_convolutions
from fxjit.frontend.interp.where import users_stack_of
from fxjit.frontend.replaced_operators import torchs_own
from fxjit.frontend.result import Break, Return, SpeculationCheck, TraceResult
from fxjit.frontend.trace import Frame, Trace
from fxjit.frontend.values import overrides, used_up
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.overrides import without_torch_function
from fxjit.guards import ambient
from fxjit.guards.filtered import filtered
from fxjit.guards.homes import home_of
from fxjit.guards.kinds import AmbientIs, ConstIs, GuardSet, ShapeExpr
from fxjit.guards.modules import without_module_internals
from fxjit.guards.source import ClassItemSource, LocalSource, Scope
from fxjit.guards.tree import build_tree
from fxjit.guards.why import count_failures, explain_failure, holds_in
from fxjit.reasons import explain_reason
from fxjit.resume.deoptimization import SpeculativeGraph, UndoableGraph
from fxjit.resume.entry import StartsOver, assemble
from fxjit.resume.entry import plan as plan_new_code
from fxjit.resume.region import FEW_OPERATORS
from fxjit.resume.rescue import raising_code
from fxjit.skips import any_function_replaced, torch_replaced
from fxjit.skips.frames import is_handler_call
from fxjit.stored.record import Compiled, Skipped, Stored
from fxjit.stored.state import present
from fxjit.tensor_shim import ensure as ensure_tensor_shim

_graph_log = logs.artifact("graph_code")
_guards_log = logs.artifact("guards")
_bytecode_log = logs.artifact("bytecode")
_recompiles_log = logs.artifact("recompiles")


class Options(Protocol):
    """Arguments of `compile` (api.RegionOptions)."""

    chosen_backend: str | Callable[..., Any]
    backend: Callable[..., Any]
    backend_name: str
    tells_failures: bool
    guard_filter: Callable[[Any], Any] | None
    fullgraph: bool
    dynamic: bool | None
    recompile_limit: int
    limits_name: str


def compile_frame(options: Options, func: types.FunctionType, code: types.CodeType, args: tuple[object, ...],
                  closure: tuple[types.CellType, ...] | None, globals_: dict[str, Any],
                  builtins: dict[str, Any]) -> _C.Entry | None:
    """The entry for a frame about to start, stored on its code object; None: run the frame as it is."""
    frame = Frame(func, code, args, closure, globals_, builtins)
    if entries.waits_for_retry(code, options):
        return None
    if is_handler_call(args):
        entries.mark_skipped(code, None, "skip-signal-handler", recursive=True)
        events.report_skip(code, "skip-signal-handler", {})
        return None
    with entries.compiling(code, options) as alone:
        if not alone:
            return _made_by_another_thread(options, frame) if config.concurrent_compile == "wait" else None
        return _compile_within_limits(options, frame)


def raising_entry(code: types.CodeType, args: tuple[object, ...]) -> _C.Entry | None:
    """An entry that raises, run once by a resume function whose compile a signal handler ended; None where it is in no
    block, and the exception is raised in its caller."""
    raising = raising_code(code, code.co_varnames[:len(args)])
    return None if raising is None else _C.Entry(None, raising, _C.Interrupted)


def _made_by_another_thread(options: Options, frame: Frame) -> _C.Entry | None:
    """The entry that a thread stores that is compiling this code just now, if it fits this frame too."""
    if not entries.wait_for_other(frame.code, options):
        return None
    for entry in entries.of(frame.code, options):
        if entry.tree.check(frame.args, frame.closure, frame.globals, frame.builtins):
            return entry
    return None


def _compile_within_limits(options: Options, frame: Frame) -> _C.Entry | None:
    method = torch_replaced()
    if method is not None:
        _skip(options, frame, SkipFrameSignal("skip-torch-replaced", {"method": method}))
        return None
    known = [] if entries.settle(frame.code, options) else entries.of(frame.code, options)
    limit = options.recompile_limit * entries.sharers(frame.code, options)
    if len(known) > 1 and (len(known) >= limit or logs.enabled("recompiles")):
        known = _nearest_first(known, frame)
    why = [_why_not(entry, frame) for entry in known]
    if known and config.error_on_recompile:
        raise RecompileError(f"{_located(frame.code)} would be compiled again: " + "; ".join(why))
    if len(known) >= limit or entries.compiles_in_vain(frame.code, options) >= options.recompile_limit:
        _limit_reached(options, frame, options.limits_name, limit, why)
        return None
    if entries.compiles(frame.code) >= config.accumulated_recompile_limit:
        _limit_reached(options, frame, "config.accumulated_recompile_limit", config.accumulated_recompile_limit, why)
        return None
    if known:
        events.report_recompile(frame.code, why, len(known) + 1)
    events.report_frame_started(frame.code)
    relied_on: list[GuardSet] = []
    try:
        with (progress.compiling(frame.code), debug.compile_folder(frame.code), generated.noted() as texts,
              process_state.bound() as unsaid):
            entry = _compile(options, frame, relied_on)
            texts.holder = None if entry is None else entry.payload
            return entry
    except SkipFrameSignal as signal:
        _skip(options, frame, signal, relied_on, unsaid)
        return None
    except FxjitError as error:
        if config.suppress_errors and isinstance(error, CompilerFailure):
            wait = entries.mark_failed(frame.code, options)
            if wait == entries.FIRST_RETRY:
                _warn_suppressed(frame.code, error)
            events.report_skip(frame.code, "skip-compiler-error", {"error": _in_short(error), "retry": wait})
            return None
        if isinstance(error, CompilerFailure):
            error.add_note(f"It was compiled for {_located(frame.code)}.")
        raise


def _warn_suppressed(code: types.CodeType, error: FxjitError) -> None:
    warnings.warn(
        f"fxjit could not compile {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}), which runs eagerly because "
        f"config.suppress_errors is on: {type(error).__name__}: {_in_short(error)}", RuntimeWarning, stacklevel=2)


def _in_short(error: FxjitError) -> str:
    """The failure in one line: the backend's own error, where there is one."""
    if isinstance(error, BackendCompilerFailed):
        inner = error.inner_exception
        return f"{type(inner).__name__}: {_first_words(str(inner))}"
    return _first_words(str(error))


def _first_words(text: str) -> str:
    """The first line, and what follows as long as that only announces it: compilers say where, then what."""
    said = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        said = f"{said} {line}".lstrip()
        if not line.endswith(":"):
            break
    return said


def _why_not(entry: _C.Entry, frame: Frame) -> str:
    """Which guard of an entry this frame fails, in words."""
    why = explain_failure(entry.tree, frame.arg_names, frame.code.co_freevars, frame.args, frame.closure, frame.globals,
                          frame.builtins)
    return why or agreement.why_together() or "its guards hold: another thread stored it just now"


def _nearest_first(known: Sequence[_C.Entry], frame: Frame) -> list[_C.Entry]:
    """The entries by how many of their guards the frame fails: the first is the one whose guard the user wants to see."""
    scope = Scope.of(frame.arg_names, frame.code.co_freevars, frame.args, frame.closure, frame.globals, frame.builtins)
    return sorted(known, key=lambda entry: count_failures(entry.tree, scope))


def _limit_reached(options: Options, frame: Frame, setting: str, limit: int, why: list[str]) -> None:
    because = why[0] if why else "what each was compiled for is gone"
    if config.fail_on_recompile_limit_hit or options.fullgraph:
        raise RecompileLimitExceeded(f"{_located(frame.code)} was compiled {limit} times ({setting}); the nearest entry "
                                     f"does not fit because {because}. {_against_recompiles(setting)}")
    entries.mark_limit(frame.code, options)
    if entries.first_time(frame.code, options, "skip-recompile-limit"):  # functions made anew that share the code begin anew
        _tell_limit(frame.code, setting, limit, because)
    events.report_skip(frame.code, "skip-recompile-limit", {"limit": limit, "setting": setting, "why": because})


def _located(code: types.CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _against_recompiles(setting: str) -> str:
    """What helps whatever it is that changes; the guard's own hint says what helps there."""
    return (f"What takes ever new values is best passed as a tensor, or used outside of the compiled function; where it takes "
            f"a few more, raise fxjit.{setting}. FXJIT_LOGS=recompiles shows why each was compiled.")


def _tell_limit(code: types.CodeType, setting: str, limit: int, because: str) -> None:
    """Said once: a function that every call compiles anew costs more than it saves, and then runs eagerly. In the log, not as
    Python's warning, which would be an error to a program that runs under `-W error`, and nothing is wrong with it."""
    _recompiles_log.warning(
        "fxjit compiled %s %d times (%s), and runs it eagerly where none of that fits. This call needed one more "
        "because %s. %s", _located(code), limit, setting, because, _against_recompiles(setting))


def _skip(options: Options, frame: Frame, signal: SkipFrameSignal, relied_on: Sequence[GuardSet] = (),
          bound: Iterable[str | process_state.ResultOf] = ()) -> None:
    """The frame cannot be compiled in part: it runs as it stands, now and (unless a module becomes another by that) later;
    what it calls is still compiled."""
    cause, user_stack = None, signal.user_stack
    broke = signal.__cause__
    if options.fullgraph and _is_users_error(broke):
        _tell_of_users_error(frame, broke)
        return
    if signal.reason != "skip-lazy-module" and (options.fullgraph or (isinstance(broke, BreakGraph) and broke.is_error)):
        reason = (broke.because or broke) if isinstance(broke, BreakGraph) else signal
        raise events.unsupported(reason.reason, reason.context, reason.user_stack)
    if isinstance(broke, BreakGraph):
        cause, user_stack = explain_reason(broke.reason, **broke.context), broke.user_stack or user_stack
    event = events.report_skip(frame.code, signal.reason, signal.context, user_stack, cause=cause)
    if signal.reason not in _SKIPPED_ONLY_NOW:
        entries.mark_skipped(frame.code, options, signal.reason)
        for guards in relied_on:
            _keep_skip(options, frame, guards, event, bound)


def _keep_skip(options: Options, frame: Frame, guards: GuardSet, event: events.FrameSkipped,
               bound: Iterable[str | process_state.ResultOf]) -> None:
    """For the disk and for artifacts: what the next process is spared to trace."""
    record = Skipped(guards, frame.arg_names, event, [*bound], present(), home_of(frame.globals))
    entries.note_skip(frame.code, options, record)
    if config.store_entries:
        importlib.import_module("fxjit.stored.entries").keep(frame.code, options, record)  # heavy


_SKIPPED_ONLY_NOW = ("skip-lazy-module", "skip-python-replaced", "skip-torch-replaced", "skip-raises")


def _is_users_error(broke: object) -> TypeGuard[BreakGraph]:
    """The program itself raised: under `fullgraph` the call runs eagerly, once, and raises what it raises."""
    return isinstance(broke, BreakGraph) and broke.reason == "opcode-uncaught"


def _raises_for_now(trace: Trace, broke: BreakGraph) -> bool:
    """Whether an exception leaves the frame before any operator, and did so a few times at most: an entry that breaks there
    would not be guarded by why it was raised, and calls that raise nothing would run by it, in two graphs for one."""
    if not _is_users_error(broke) or config.allow_empty_graphs or not trace.graph_is_empty:
        return False
    trace.policy.history.raised += 1
    return trace.policy.history.raised <= _RAISES_RETRACED


#: How often a frame that raises before any operator is traced for nothing.
_RAISES_RETRACED = 8


def _tell_of_users_error(frame: Frame, broke: BreakGraph) -> None:
    """Counted and logged like any break: a call that then does not raise was given up, and must not be so in silence."""
    events.report_break(broke.reason, broke.context, broke.user_stack, function=frame.code.co_qualname)


def _compile(options: Options, frame: Frame, relied_on: list[GuardSet]) -> _C.Entry | None:
    """Trace, give the graph to the backend, write the new bytecode, build the guards, store the entry."""
    ensure_tensor_shim()
    seconds: dict[str, float] = {}
    name, history = frame.code.co_qualname, history_of(frame.code)
    for arg_name, given in zip(frame.arg_names, first_calls.given(frame.code, options), strict=False):
        history.meet(LocalSource(arg_name), given)
    for known in entries.of(frame.code, options):
        if isinstance(known.payload.record, Stored):
            history.learn(known.payload.guards)
    with _stage("trace", name, seconds):
        result, trace = _guard_internal_errors(frame, lambda: trace_frame(frame, history, options.dynamic, relied_on,
                                                                          whole=options.fullgraph))
    try:
        entry: _C.Entry | None = _guard_internal_errors(frame, lambda: _finish(options, frame, result, trace, seconds))
        return entry
    except RetraceFrame:
        pass
    finally:
        trace.release()
    return _compile(options, frame, relied_on)


def _finish(options: Options, frame: Frame, result: TraceResult, trace: Trace,
            seconds: dict[str, float]) -> _C.Entry | None:
    """From a finished trace to a stored entry; what only its end looked at may still show that there can be none."""
    try:
        return _make_entry(options, frame, result, trace, seconds)
    except RecursionError as error:  # containers nested as deep as Python goes
        size = len(frame.code.co_code)
        leave_trace(SkipFrameSignal("skip-too-big", {"function": frame.code.co_qualname, "size": size}), error)
    except BreakGraph as signal:
        leave_trace(SkipFrameSignal(signal.reason, signal.context, signal.user_stack), signal)


def _make_entry(options: Options, frame: Frame, result: TraceResult, trace: Trace,
                seconds: dict[str, float]) -> _C.Entry | None:
    name = frame.code.co_qualname
    end = result.end
    if isinstance(end, Break) and options.fullgraph and _is_users_error(end.reason):
        _tell_of_users_error(frame, end.reason)
        return None
    if isinstance(end, Break) and (options.fullgraph or end.reason.is_error):
        told = end.reason.because or end.reason
        raise events.unsupported(told.reason, told.context, told.user_stack)
    if isinstance(end, Break) and _raises_for_now(trace, end.reason):
        leave_trace(SkipFrameSignal("skip-raises", {"function": name, **end.reason.context}), end.reason)
    with _stage("plan", name, seconds):
        plan = plan_new_code(result)
        if not _is_as_eager_outside(trace, plan.outputs, result.speculated is not None):
            leave_trace(RetraceFrame("a leaf of autograd's graph, or a graph that is used up, is seen outside"))
        if not result.effect_log.made_classes.are_hidden(plan.constants):
            trace.policy.history.makes_classes = False
            leave_trace(RetraceFrame("a part of a class that the trace made is seen outside"))
        used_up_at = used_up.detached(trace, plan.outputs)
        speculated = result.speculated
        graph = result.graph.finish(plan.outputs if speculated is None else [*plan.outputs, speculated.flag])
    if isinstance(end, Break) and end.skip is not None and _captures_little(graph):
        leave_trace(SkipFrameSignal(*end.skip, end.reason.user_stack), end.reason)
    if _nothing_captured(result, graph):
        _captured_nothing(options, frame, None if trace.has_symbols else result.guards)
        return None
    compiled, speculative, stored, recipes = None, None, list[weakref.ref[_C.Entry]](), list[recipe.AnyRecipe | None]()
    backend = options.chosen_backend
    as_captured: list[bool] = []
    offer = _offer_for(options, frame.code, stored)
    if graph is not None:
        allowed = offered(offer) if _may_defer(options, frame.code, trace) else contextlib.nullcontext()
        with (_stage("backend", name, seconds), process_state.queried() as states, allowed, recipe.noted() as recipes,
              torchs_own(trace.policy.replaced),
              events.listen(lambda event: as_captured.append(True) if isinstance(event, events.RunsAsCaptured) else None)):
            compiled, backend = _call_backend(options, graph, result, trace)
        # A compile that is under way says only at its end which states its code depends on.
        known = is_built_in(options.chosen_backend) and not offer.deferred
        for state in sorted(states if known else process_state.QUERYABLE):
            result.guards.add(AmbientIs(state, ambient.read(state)))
        if speculated is not None and compiled is not None:
            speculative = _speculative(options, frame.code, compiled, graph, speculated)
            compiled = _C.DisabledFunction(speculative, opaque=True)
        if used_up_at and compiled is not None:
            compiled = _C.DisabledFunction(used_up.UsedUp(compiled, graph, used_up_at), opaque=True)
    result.finish_trace()
    with _stage("bytecode", name, seconds):
        reported = options.tells_failures or not isinstance(backend, str)
        # Where inputs are set before the graph, the user's code would find them so.
        starts_over, undoing = ("never", None) if graph is None or reported or trace.leaves.sets_inputs else _starting_over(
            result, graph, backend, bool(as_captured))
        new_code = assemble(result, plan, compiled, starts_over=starts_over, undoing=undoing)
    with _stage("guards", name, seconds):
        relied_on = result.guards
        result = dataclasses.replace(result, guards=_wanted_guards(options, frame, result))
        tree = build_tree(result.guards, result.arg_names, frame.code.co_freevars)
        result.rng_steps.recheck.check = tree.check
    if trace.policy.unbacked and _breaks_a_promise(tree, frame):
        return None
    if not _holds_on_own_frame(tree, frame, trace.policy):
        wait = entries.mark_failed(frame.code, options)
        what = "what its guards look at changed while it was compiled, or fxjit guards it wrongly"
        events.report_skip(frame.code, "skip-compiler-error", {"error": what, "retry": wait})
        return None
    _C.safe_point()
    broke = None
    if isinstance(end, Break):
        broke = events.break_event(end.reason.reason, end.reason.context, end.reason.user_stack, function=name)
    unsaid = [*process_state.bound_by(), *_not_as_data(options)]
    if used_up_at:
        unsaid.append("results whose autograd graph is used up")
    record = Compiled(relied_on, result.arg_names, new_code, compiled, recipes, unsaid, _calls_of(graph), present(),
                      home_of(frame.globals), speculative, broke, None if broke is None else _found_by(frame, trace))
    entry = _C.Entry(tree, new_code, _Payload(result, graph, offer.deferred, record))
    stored.append(weakref.ref(entry))
    entries.add(frame.code, options, entry, relied_on.weakly_held())
    offer.once_exchanged(functools.partial(_keep_entry, weakref.ref(frame.code), weakref.ref(options), weakref.ref(entry)))
    _report(frame, result, graph, new_code, seconds, broke)
    return entry


def _is_as_eager_outside(trace: Trace, outputs: Sequence[Value], speculates: bool) -> bool:
    """Whether what the program sees of autograd's graph, in what the graph gives and in the inputs that it wrote to, is as in
    eager: no leaf that the trace made, and of the inputs none whose graph is used up, or that was set before the graph and
    cannot be. If not, the next trace makes none."""
    inputs = [node.meta["example_value"] for node in trace.builder.graph.find_nodes(op="placeholder")]
    history = trace.policy.history
    seen = [*(getattr(output, "fake", None) for output in outputs), *inputs]
    leaf_seen, graph_seen = not trace.leaves.stay_inside(seen), used_up.is_written_to(trace, inputs)
    history.leaves &= not leaf_seen
    history.backward_passes &= not graph_seen
    set_before = not trace.leaves.sets_inputs or (trace.leaves.inputs_are_read_only() and not speculates)
    history.sets_before &= set_before
    return not leaf_seen and not graph_seen and set_before


def _keep_entry(code_ref: weakref.ref[types.CodeType], options_ref: weakref.ref[Any], entry_ref: weakref.ref[_C.Entry]) -> None:
    """For the disk, once its compiled code is in place: by then it may be gone."""
    code, options, entry = code_ref(), options_ref(), entry_ref()
    if config.store_entries and code is not None and options is not None and entry is not None:
        importlib.import_module("fxjit.stored.entries").keep(code, options, entry.payload.record)  # heavy


def _found_by(frame: Frame, trace: Trace) -> GuardSet | None:
    """What the attempts relied on that found the break, as far as it holds on the frame that the entry is for: the guards that
    an entry on the disk has beside its own; None where there are none."""
    if not config.store_entries:
        return None
    found = GuardSet()
    scope = Scope.of(frame.arg_names, frame.code.co_freevars, frame.args, frame.closure, frame.globals, frame.builtins)
    for guard in itertools.chain.from_iterable(trace.found_by):
        if guard not in trace.guards and holds_in(guard, scope):
            found.add(guard)
    return found if len(found) else None


def _not_as_data(options: Options) -> Iterator[str]:
    """Why the entry is none of those that stored/ knows how to say."""
    if options.chosen_backend not in ("native", "fxjit", "eager"):
        yield f"the backend {options.backend_name}, whose code has no form on the disk"
    elif options.tells_failures:
        yield "a setting that checks the backend"


def _wanted_guards(options: Options, frame: Frame, result: TraceResult) -> GuardSet:
    """The guards but those that the program does without, by a setting or by a function of its own."""
    guards = result.guards
    if config.guard_nn_modules and options.guard_filter is None:
        return guards
    scope = Scope.of(frame.arg_names, frame.code.co_freevars, frame.args, frame.closure, frame.globals, frame.builtins)
    if not config.guard_nn_modules:
        guards = without_module_internals(guards, scope)
    if options.guard_filter is None:
        return guards
    return filtered(guards, options.guard_filter, scope, with_tensors=is_built_in(options.chosen_backend))


def _speculative(options: Options, code: types.CodeType, compiled: Callable[..., Any], graph: torch.fx.GraphModule,
               speculated: SpeculationCheck) -> SpeculativeGraph:
    """The graph for new code that goes on with the user's where the data is not as the trace took it to be."""
    written = _positions(speculated.undo.written, graph)
    devices = _input_devices(graph) if speculated.undo.draws else None
    give_up = entries.gives_up_speculation(code, options)
    return SpeculativeGraph(
        compiled, written, devices, code.co_qualname, give_up, speculated.undo.whole, settings_of(graph.graph))


def _starting_over(result: TraceResult, graph: torch.fx.GraphModule, backend: str | Callable[..., Any],
                   as_captured: bool) -> tuple[StartsOver, UndoableGraph | None]:
    """Whether the user's code runs from its beginning where the graph fails, and what calls the graph for that. A graph that
    tells whether it wrote to its inputs is not called by anything that copies them, unless effects would be lost. Large inputs
    are copied where the graph runs as it was captured, which has no other way back, and looks something up."""
    tells = tells_writes(backend) and not as_captured
    as_written = as_captured or backend in ("eager", "eager_noexcept")
    if result.repeatable:
        return "always", None
    if result.speculated is not None:
        return "never", None
    plan, restart = result.undoable, result.restart
    if plan is not None and plan.large and not (as_written and restart is not None and restart.looks_up):
        plan = None
    # The state of a GPU's generator cannot be read while a CUDA graph is captured.
    can_draw = all(each.type == "cpu" for each in _input_devices(graph))
    if plan is not None and (result.effects or not tells) and (can_draw or not plan.draws):
        return "always", UndoableGraph(_positions(plan.written, graph), plan.draws, whole=plan.whole)
    if not tells_writes(backend) or restart is None:
        return "never", None
    if not restart.draws:
        return "if unwritten", None
    if can_draw and restart.looks_up:
        return "if unwritten", UndoableGraph((), draws=True, if_unwritten=True)
    return "never", None


def _positions(inputs: Sequence[torch.fx.Node], graph: torch.fx.GraphModule) -> tuple[int, ...]:
    return tuple(at for at, node in enumerate(graph.graph.find_nodes(op="placeholder")) if node in inputs)


def _input_devices(graph: torch.fx.GraphModule) -> frozenset[torch.device]:
    fakes = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
    return frozenset(fake.device for fake in fakes if isinstance(fake, torch.Tensor))


def _offer_for(options: Options, code: types.CodeType, entry: list[weakref.ref[_C.Entry]]) -> Offer:
    """The offer to defer the graphs of a frame. The entry is informed once it exists; it holds the deferred work, and is
    dropped where its code cannot be exchanged."""
    code_ref, key_ref = weakref.ref(code), weakref.ref(options)

    def refused(background: bool) -> None:
        known, key, stored = code_ref(), key_ref(), entry[0]() if entry else None
        if known is not None and key is not None and stored is not None:
            history_of(known).background = background
            entries.owe(known, key, stored)

    return Offer(code.co_qualname, refused)


def _may_defer(options: Options, code: types.CodeType, trace: Trace) -> bool:
    """Whether a compile in the background can say all that one in the foreground says in this call, to listeners as well."""
    if events.is_listened_to():
        return False
    native = options.chosen_backend in ("native", "fxjit") and not options.tells_failures
    return config.tiers and native and history_of(code).background and trace.policy.promises_nothing()


class _Payload:
    """Data of an entry for explain and the debug folder."""

    def __init__(self, result: TraceResult, graph: torch.fx.GraphModule | None, deferred: list[Deferred],
                 record: Compiled) -> None:
        #: Its graphs that were given to helper processes.
        self.deferred = deferred
        self.guards = result.guards
        self.arg_names = result.arg_names
        self.freevars = result.code.freevars
        self.graph = graph
        #: For the disk and for artifacts.
        self.record = record


def _nothing_captured(result: TraceResult, graph: torch.fx.GraphModule | None) -> bool:
    """A frame that ran to its end and put nothing in a graph, or nothing but arithmetic on Python's numbers, gains nothing from
    new bytecode."""
    return not config.allow_empty_graphs and isinstance(result.end, Return) and _is_empty(graph)


def _is_empty(graph: torch.fx.GraphModule | None) -> bool:
    return graph is None or all(map(_is_arithmetic, graph.graph.nodes))


def _captures_little(graph: torch.fx.GraphModule | None) -> bool:
    """Whether calling a graph for what stands before a region saves nothing."""
    nodes = () if graph is None else graph.graph.nodes
    return len([node for node in nodes if node.op.startswith("call_") and not _is_arithmetic(node)]) < FEW_OPERATORS


def _is_arithmetic(node: torch.fx.Node) -> bool:
    if node.op == "output":
        return True
    if not isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return node.op == "placeholder" or (node.op == "call_function" and node.target in _ARITHMETIC)


_ARITHMETIC = frozenset(getattr(operator, name) for name in operator.__all__)


def _captured_nothing(options: Options, frame: Frame, guards: GuardSet | None) -> None:
    """The frame is passed by from now on. One that the user compiled is reported, and traced for some other calls before."""
    event = events.skip_event(frame.code, "skip-nothing-captured", {})
    events.tell_empty(event, entries.is_users(frame.code, options))
    if guards is not None:
        _keep_skip(options, frame, guards, event, process_state.bound_by())
    entries.count_empty(frame.code, options, options.recompile_limit)


def _stage(stage: str, name: str, seconds: dict[str, float]) -> Any:
    return _Stage(stage, name, seconds)


class _Stage:
    """Times one stage of one compile, for compile_times and for the frame's event."""

    def __init__(self, stage: str, name: str, seconds: dict[str, float]) -> None:
        self.stage, self.name, self.seconds = stage, name, seconds

    def __enter__(self) -> None:
        _C.safe_point()
        progress.stage(self.stage)
        self.start = perf_counter()

    def __exit__(self, *exc: object) -> None:
        spent = perf_counter() - self.start
        self.seconds[self.stage] = spent
        add_time(self.stage, self.name, spent)


def _guard_internal_errors(frame: Frame, run: Callable[[], Any]) -> Any:
    """Our own mistakes are reported as such, with the place in the user's program where they happened."""
    try:
        return run()
    except (FxjitError, SkipFrameSignal, RecursionError, RetraceFrame):
        raise
    except Exception as error:  # anything else is a bug of ours
        if is_foreign(error):
            raise
        if (name := any_function_replaced()) is not None:
            leave_trace(SkipFrameSignal("skip-python-replaced", {"name": name}), error)
        stack = users_stack_of(error)
        where = f"{frame.code.co_filename}:{stack[0].lineno if stack else frame.code.co_firstlineno}"
        inner = "".join(f", in {each.name} ({each.filename}:{each.lineno})" for each in stack[1:])
        raise InternalError(
            f"fxjit made a mistake while compiling {frame.code.co_qualname} ({where}){inner}: {type(error).__name__}: {error}\n"
            "Set fxjit.config.suppress_errors = True to run such frames eagerly, and please report this with the traceback."
        ) from error


@contextlib.contextmanager
def _tracing(mode: FakeTensorMode, contexts: Sequence[tuple[torch.Tensor, Any]]) -> Iterator[None]:
    """torch's TracingContext, in which AOTAutograd finds the fake mode and the symbols among the sizes of inputs."""
    kind = torch_private.get_or("torch._guards.TracingContext", None)
    entered = torch_private.get_or("torch._guards.tracing", None)
    if kind is None or entered is None:
        yield
        return
    context = kind(mode)
    for tensor, symbolic in contexts:
        context.tensor_to_context[tensor] = symbolic
    try:
        with entered(context):
            yield
    finally:
        context.tensor_to_context.clear()


def _call_backend(options: Options, graph: torch.fx.GraphModule, result: TraceResult,
                  trace: Trace) -> tuple[Callable[..., Any], str | Callable[..., Any]]:
    """The backend's callable for the graph, and whose it is: that of one of ours, which somebody's backend called and gave on.
    It sees fake inputs through TracingContext where it wants them."""
    if logs.enabled("graph_code"):
        _graph_log.info("%s\n%s", result.code.code.co_qualname, graph.print_readable(print_output=False))
    env = trace.policy.shape_env
    if env is not None and env.deferred_runtime_asserts:
        # What torch._check promised of numbers that only a run knows is looked at when it runs.
        torch_private.get("torch.fx.passes.runtime_assert.insert_deferred_runtime_asserts")(
            graph, env, result.code.code.co_qualname)
    examples = [item.example for item in result.graph.inputs]
    mode = FakeTensorMode(shape_env=env)
    known = [number.fake(mode) for number in trace.policy.floats]  # found by their tensors during their lifetime
    try:
        with preserved_state(), quiet_fake_tensors(), unguarded_convolutions(), _tracing(mode, trace.policy.contexts):
            makers: list[str | Callable[..., Any]] = []
            compile_part = functools.partial(_run_backend, options, makers)
            compiled = split_by_step(graph, examples, compile_part, whole=options.chosen_backend == "eager")
            if compiled is not None:  # none of its parts knows what those before it wrote
                compiled = without_torch_function(compiled) if overrides.inlined_in(graph) else compiled
                makers.append("eager" if is_built_in(options.chosen_backend) else options.chosen_backend)
            else:
                compiled = split_by_ddp_bucket(graph, examples, compile_part)
                if compiled is not None:
                    makers.append(options.chosen_backend)
            compiled = compiled or compile_part(graph, examples)
    except FxjitError:
        raise
    except Exception as error:  # a backend may be anybody's
        if is_foreign(error):
            raise
        if is_built_in(options.chosen_backend) and (name := any_function_replaced()) is not None:
            leave_trace(SkipFrameSignal("skip-python-replaced", {"name": name}), error)
        if trace.policy.fix_floats():
            leave_trace(RetraceFrame("a backend failed"))
        if is_built_in(options.chosen_backend) and trace.policy.fix_sizes():
            _recompiles_log.warning(
                "The graph of %s could not be compiled for sizes that vary (%s: %s): each size is compiled by itself.",
                result.code.code.co_qualname, type(error).__name__, str(error).partition("\n")[0])
            leave_trace(RetraceFrame("a backend failed"))
        raise BackendCompilerFailed(options.backend_name, error) from error
    finally:
        known.clear()
        forget_tensors(mode)
    if trace.policy.decided_on_random():
        trace.policy.history.random_inputs = False
        leave_trace(RetraceFrame("the backend decided on a random number"))
    # What the backend calls while it runs is not the user's program: the hook does not look at it.
    return _C.DisabledFunction(compiled, opaque=True, range=f"fxjit: {result.code.code.co_qualname}"), makers[-1]


def _run_backend(options: Options, makers: list[str | Callable[..., Any]], graph: torch.fx.GraphModule,
                 example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Calls the backend with a graph; the results of a backend that is not ours are counted. `makers` is given whose it is."""
    progress.graph()
    results: Any = graph.graph.output_node().args[0]
    outputs = len(results)  # now: the backend may change the graph
    inlined = overrides.inlined_in(graph)
    if inlined or options.chosen_backend == "eager":
        recipe.note(None if inlined else recipe.Recipe(graph))
    with noted_results() as noted:
        compiled: Any = (without_torch_function(options.backend) if inlined else options.backend)(graph, list(example_inputs))
    if not callable(compiled):
        raise BackendCompilerFailed(options.backend_name, TypeError(
            f"a backend must return a callable, not {type(compiled).__name__}"))
    maker = next((name for result, name in noted if result is compiled), options.chosen_backend)
    makers.append(maker)
    compiled = without_torch_function(compiled) if inlined else compiled
    unchecked = is_built_in(maker) or not outputs
    return compiled if unchecked else checking_results(compiled, options.backend_name, outputs)


def _breaks_a_promise(tree: Any, frame: Frame) -> bool:
    """Whether torch._check is about to fail in this frame: then it runs as it stands, and says so itself."""
    failure = tree.first_failure(frame.args, frame.closure, frame.globals, frame.builtins)
    return failure is not None and isinstance(failure[1], ShapeExpr)


def _holds_on_own_frame(tree: Any, frame: Frame, policy: ShapePolicy) -> bool:
    """Guards that do not hold on the frame they were made from would recompile for ever: a mistake of ours, unless another
    thread may have changed something meanwhile, the compile itself counted something (AOTAutograd registers hooks), or the
    program's own code did that the compile ran on fake tensors (a table by types, filled where a type is first met): the frame
    is traced once more, and finds what was changed."""
    if not config.verify_guards or tree.check(frame.args, frame.closure, frame.globals, frame.builtins):
        policy.history.retraced = False
        return True
    failure = tree.first_failure(frame.args, frame.closure, frame.globals, frame.builtins)
    if failure is not None and _is_other_number(failure[1], frame):
        if policy.foresee(failure[1].value, failure[1].source):
            leave_trace(RetraceFrame("a number of a class changed while the frame was compiled"))
        return False
    if not policy.history.retraced:
        policy.history.retraced = True
        leave_trace(RetraceFrame("what a guard looks at changed while the frame was compiled"))
    if threading.active_count() > 1:
        return False
    what = failure[1].describe() if failure is not None else "unknown"
    raise InternalError(f"a guard of {frame.code.co_qualname} does not hold on the frame it was made from: {what}")


def _is_other_number(guard: Any, frame: Frame) -> bool:
    """Whether a guard is about a number of a class, where another one is now than the trace found."""
    if not isinstance(guard, ConstIs) or type(guard.value) not in (int, float) or not isinstance(guard.source, ClassItemSource):
        return False
    scope = Scope.of(frame.arg_names, frame.code.co_freevars, frame.args, frame.closure, frame.globals, frame.builtins)
    return not guard.holds(guard.source.fetch(scope))


def _calls_of(graph: torch.fx.GraphModule | None) -> tuple[str, ...]:
    """The names of the operators in a graph."""
    return () if graph is None else tuple(node.name for node in graph.graph.nodes if node.op.startswith("call_"))


def _report(frame: Frame, result: TraceResult, graph: torch.fx.GraphModule | None, new_code: types.CodeType,
            seconds: dict[str, float], broke: events.GraphBreak | None) -> None:
    if broke is not None:
        events.tell_break(broke)
    if logs.enabled("guards"):
        lines = "\n".join(f"  {guard.describe()}" for guard in result.guards)
        _guards_log.info("%s\n%s", frame.code.co_qualname, lines)
    if logs.enabled("bytecode"):
        _bytecode_log.info("%s before\n%s\nafter\n%s", frame.code.co_qualname, dis.Bytecode(frame.code).dis(),
                           dis.Bytecode(new_code).dis())
    calls = _calls_of(graph)
    compiled = events.FrameCompiled(frame.code, graph, tuple(result.guards), len(calls), calls, seconds)
    debug.write_compile(compiled, new_code)
    events.report_frame_compiled(compiled)
