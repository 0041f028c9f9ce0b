"""Entries on the disk: `keep` writes one that was compiled, `find` installs one that fits a frame. Skips are kept among them:
a frame that was given up runs as it stands where the guards of that trace hold.

A file has the entries of one code object under one key (key.py), newest first: guards with their sources, the new code, and
the recipe of its graph. An entry is installed if every object that it names is what it was, its guards hold for this very
frame, and its compiled graph is there; otherwise the frame is traced as usual. Entries with anything that data cannot say
faithfully are not written, and the log says why (`FXJIT_LOGS=cache`): in text, since an exception in a record of the log would
hold the frame's objects.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

import torch.fx

from fxjit import _C, config, events, generated, logs
from fxjit.backends.graph.recipe import only
from fxjit.backends.native.runtime import cc
from fxjit.backends.store.artifacts import FACTS, cached_facts, put_facts, shipped_facts
from fxjit.backends.store.graphs import entries_of_graph
from fxjit.counters import counters
from fxjit.errors import CppCompileError, is_foreign
from fxjit.frontend import entries
from fxjit.guards.constants import same_constant
from fxjit.guards.homes import home_of
from fxjit.guards.kinds import GuardSet, TensorIs
from fxjit.guards.source import Scope
from fxjit.guards.tensor_spec import TensorSpec, marks
from fxjit.guards.tree import build_tree
from fxjit.process_state import ResultOf
from fxjit.reasons import Explained
from fxjit.resume.deoptimization import SpeculativeGraph
from fxjit.skips import marks as marks_on_functions
from fxjit.skips import torch_replaced
from fxjit.tensor_shim import ensure as ensure_tensor_shim

from .codes import FrameCode, pack_code, read_code
from .graphs import keys_of, pack_graph, read_captured, read_graph
from .guards import (
    Sources,
    SourceTable,
    codes_found,
    codes_named,
    homes_named,
    marks_found,
    pack_guards,
    reaching,
    read_guards,
)
from .key import entries_key
from .objects import Changed, NotStorable, refer
from .objects import find as find_reference
from .record import Compiled, Skipped, Stored
from .values import pack, unpack

log = logs.artifact("cache")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame about to start, as the hook's callback is given it."""

    code: CodeType
    args: tuple[object, ...]
    closure: tuple[Any, ...] | None
    globals: dict[str, Any]
    builtins: dict[str, Any]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Payload:
    """What a stored entry tells explain: it has no trace to show."""

    guards: GuardSet
    arg_names: tuple[str, ...]
    freevars: tuple[str, ...]
    record: Stored
    graph: torch.fx.GraphModule | None = None
    deferred: Sequence[Any] = ()


def keep(code: CodeType, options: Any, record: Compiled | Skipped) -> None:
    """Writes the entry or the skip, where data can say all of it."""
    try:
        stored = packed_entry(code, options, record)
    except NotStorable as why:
        counters["cache"]["entry not kept"] += 1
        log.info("the entry of %s is not kept on the disk: %s", code.co_qualname, str(why))
        return
    known = cached_facts(stored.key)
    before = known["entries"] if isinstance(known, dict) and isinstance(known.get("entries"), list) else []
    others = [each for each in before if each != stored.packed]  # it may have been found, and not have fitted
    most = options.recompile_limit * entries.sharers(code, options)
    try:
        put_facts(stored.key, {"entries": [stored.packed, *others][:max(most, len(before))]})
    except Exception as problem:  # data as deep as Python's containers go, a function of files that the program replaced
        if is_foreign(problem):
            raise
        log.info("the entry of %s is not kept on the disk: %s", code.co_qualname, str(problem))
        return
    log.info("an entry of %s is kept on the disk (%s)", code.co_qualname, stored.key)


def packed_entry(code: CodeType, options: Any, record: Compiled | Skipped | Stored) -> Stored:
    """An entry, or a skip, of a code object as data, with its key. Raises NotStorable."""
    if isinstance(record, Stored):
        return record
    try:
        key = entries_key(code, options, record.state)
        here_alone = sorted(why for why in record.bound if isinstance(why, str))
        if here_alone:
            raise NotStorable(", ".join(here_alone))
        if options.guard_filter is not None or not config.guard_nn_modules:
            raise NotStorable("guards that the program does without")
        packed = _pack_skip(record) if isinstance(record, Skipped) else _pack(code, record)
        return Stored(key, {**packed, "home": record.home, "results": sorted(_pack_results(record.bound), key=repr)})
    except (Changed, CppCompileError) as why:
        raise NotStorable(str(why)) from None
    except NotStorable:
        raise
    except Exception as error:  # of the program's own objects and classes, which are asked for their names
        raise NotStorable(f"an object that raises {type(error).__name__} when it is looked at ({error})") from None


def _pack_skip(skipped: Skipped) -> dict[str, Any]:
    table, event = SourceTable(skipped.guards), skipped.event
    with table.leading():
        guards = pack_guards(skipped.guards, table, skipped.home)
    told = [dataclasses.astuple(event.why), None if event.cause is None else dataclasses.astuple(event.cause)]
    return {"sources": table.rows, "guards": guards, "arg_names": list(skipped.arg_names),
            "skip": [*told, _pack_stack(event.user_stack)]}


def _pack_found_by(guards: GuardSet, home: str) -> dict[str, Any]:
    """Those guards of them that data can say: what the others were about may be another in the next process."""
    said = GuardSet()
    for guard in guards:
        with contextlib.suppress(NotStorable, Changed):
            alone = GuardSet()
            alone.add(guard)
            pack_guards(alone, SourceTable(alone), home)
            said.add(guard)
    table = SourceTable(said)
    return {"sources": table.rows, "guards": pack_guards(said, table, home)}


def _pack_break(broke: events.GraphBreak) -> list[Any]:
    return [dataclasses.astuple(broke.why), _pack_stack(broke.user_stack)]


def _pack_stack(stack: Sequence[traceback.FrameSummary]) -> list[list[Any]]:
    return [[frame.filename, frame.lineno, frame.name] for frame in stack]


def _read_stack(packed: list[list[Any]]) -> tuple[traceback.FrameSummary, ...]:
    return tuple(traceback.FrameSummary(file, line, name) for file, line, name in packed)


def _pack(code: CodeType, compiled: Compiled) -> dict[str, Any]:
    recipe = None
    if compiled.graph is not None:
        recipe = only(compiled.recipes)
        if recipe is None:
            raise NotStorable("a graph that the store does not have")
    graph = None if recipe is None else pack_graph(recipe)
    table = SourceTable(compiled.guards)
    with table.leading():
        guards = pack_guards(compiled.guards, table, compiled.home)
        new_code = pack_code(compiled.new_code, FrameCode(code, compiled.graph, codes_named(compiled.guards, table)))
    return {"sources": table.rows, "guards": guards, "arg_names": list(compiled.arg_names), "code": new_code, "graph": graph,
            "broke": None if compiled.broke is None else _pack_break(compiled.broke),
            "found by": None if compiled.found_by is None else _pack_found_by(compiled.found_by, compiled.home),
            "speculative": None if compiled.speculative is None else _pack_speculative(compiled.speculative),
            "ops": list(compiled.ops), "compiler": cc.which() if any(keys_of(graph)) else None}


def _pack_speculative(graph: SpeculativeGraph) -> list[Any]:
    return [list(graph.written), None if graph.devices is None else sorted(map(pack, graph.devices), key=repr), graph.whole]


def _pack_results(bound: Collection[str | ResultOf]) -> Iterator[list[Any]]:
    for said in bound:
        if isinstance(said, ResultOf):
            yield [refer(said.function), *map(pack, (said.args, tuple(said.kwargs.items()), said.result))]


def _check_results(packed: Sequence[list[Any]]) -> None:
    """Asks the functions whose results the trace took for constants. Raises Changed."""
    for function, args, kwargs, result in packed:
        fn = find_reference(function)
        if not same_constant(fn(*unpack(args), **dict(unpack(kwargs))), unpack(result)):
            raise Changed(f"the result of {fn.__qualname__} is another one")


def _key_of(code: CodeType, options: Any) -> str | None:
    try:
        return entries_key(code, options)
    except (NotStorable, Changed) as why:
        log.info("no entry of %s is kept on the disk: %s", code.co_qualname, str(why))
        return None


def find(options: Any, frame: Frame) -> tuple[bool, _C.Entry | None]:
    """A stored entry that fits the frame, installed on its code object, or None where it was given up as it is now; False: the
    frame is to be traced."""
    try:
        return _find(options, frame)
    except Exception as problem:  # whatever the program made of Python's functions of files, the frame can be traced
        if is_foreign(problem):
            raise
        log.info("stored entries of %s cannot be looked for: %s: %s", frame.code.co_qualname, type(problem).__name__, problem)
        return False, None


def _find(options: Any, frame: Frame) -> tuple[bool, _C.Entry | None]:
    known = entries.of(frame.code, options)
    limit = options.recompile_limit * entries.sharers(frame.code, options)
    if torch_replaced() is not None or (known and (config.error_on_recompile or len(known) >= limit)):
        return False, None
    key = _key_of(frame.code, options)
    candidates = [] if key is None or not ensure_tensor_shim() else [*_candidates(key)]
    with entries.compiling(frame.code, options) if candidates else contextlib.nullcontext(False) as alone:
        for packed in candidates if alone else ():
            settled, entry = _install(options, frame, Stored(str(key), packed))
            if settled:
                counters["cache"]["skip hit" if entry is None else "entry hit"] += 1
                how = "runs as it stands, as before" if entry is None else "starts compiled"
                log.info("%s %s (%s)", frame.code.co_qualname, how, key)
                return True, entry
    counters["cache"]["entry miss"] += 1
    return False, None


def _candidates(key: str) -> Iterator[Any]:
    """Entries as data: those of artifacts that were loaded, then those of the cache, unless someone wants to see what a trace
    says. Those for one size come before those for any, as they do in the process that made them, and what a trace went through
    to its end before what gave up or broke, whose guards say less."""
    from_cache = config.store_entries and not _is_observed()
    for facts in (shipped_facts(key), cached_facts(key) if from_cache else None):
        if isinstance(facts, dict) and isinstance(facts.get("entries"), list):
            yield from sorted(facts["entries"], key=_order)


def _order(packed: Any) -> tuple[bool, int]:
    try:
        return "skip" in packed or packed["broke"] is not None, _varying(packed)
    except (KeyError, TypeError):  # a damaged file, of which `_install` says so
        return True, 0


def _varying(packed: Any) -> int:
    """How many tensors of an entry as data have a size that varies, and how many numbers do, of which it guards the type."""
    try:
        numbers = [["object", _reference(cls)] for cls in (int, float)]
        return sum(data[0] in numbers if kind == "TypeIs" else kind == "TensorIs" and _has_any(data[_SIZES])
                   for kind, _, *data in packed["guards"])
    except (KeyError, TypeError, ValueError, IndexError):  # a damaged file, of which `_install` says so
        return 0


_SIZES: Final = [each.name for each in dataclasses.fields(TensorSpec)].index("sizes")
_reference: Final = functools.cache(refer)


def _has_any(sizes: Any) -> bool:
    return isinstance(sizes, list) and None in sizes


#: Logs of what frames go through that are traced.
_STAGES: Final = ("graph_breaks", "recompiles", "guards", "graph_code", "graph", "bytecode", "trace", "dynamic", "aot_graphs",
                  "fusion", "output_code")


def _is_observed() -> bool:
    """Whether someone is told of breaks and graphs, or logs and pages show stages, of which a stored entry has none."""
    return events.is_listened_to() or bool(config.debug or config.debug_dir or config.report) or any(map(logs.enabled, _STAGES))


def _install(options: Any, frame: Frame, stored: Stored) -> tuple[bool, _C.Entry | None]:
    """As `find`, of one entry."""
    code = frame.code
    try:
        if marks_on_functions.breaks_are_errors() and _breaks(stored.packed):
            raise Changed("it ends at a break, which is an error here")
        entry: _C.Entry | None = None
        if "skip" in stored.packed:
            _read_skip(options, frame, stored)
        else:
            with generated.noted() as texts:
                entry = _read_entry(options, frame, stored)
                texts.holder = entry.payload
        events.count_frame()
        return True, entry
    except (Changed, NotStorable) as why:
        log.info("a stored entry of %s does not fit: %s", code.co_qualname, str(why))
    except Exception as problem:  # whatever the file says, the frame can be traced
        log.info("a stored entry of %s cannot be read: %s: %s", code.co_qualname, type(problem).__name__, str(problem))
    return False, None


def _breaks(packed: dict[str, Any]) -> bool:
    """Whether an entry, or a skip, as data came of a trace that a break ended."""
    return (packed["skip"][1] if "skip" in packed else packed["broke"]) is not None


def _read_entry(options: Any, frame: Frame, stored: Stored) -> _C.Entry:
    """Installs it. Raises Changed."""
    code, packed = frame.code, stored.packed
    if packed["compiler"] is not None and cc.compiler() is not None and packed["compiler"] != cc.which():
        raise Changed("its kernels are of another compiler")
    if packed["speculative"] is not None and not entries.speculates(code):
        raise Changed("it speculates on a branch that often goes the other way")
    if packed["found by"] is not None:  # else the trace of this frame may come further
        with _checked(frame, {**packed, **packed["found by"], "results": []}):
            pass
    with _checked(frame, packed) as (guards, tree, codes):
        graph: Callable[..., Any] | None = None
        if packed["graph"] is not None:
            graph = _C.DisabledFunction(read_graph(packed["graph"]), opaque=True, range=f"fxjit: {code.co_qualname}")
        if graph is not None and packed["speculative"] is not None:
            written, devices, whole = packed["speculative"]
            graph = _C.DisabledFunction(SpeculativeGraph(
                graph, tuple(written), None if devices is None else frozenset(map(unpack, devices)), code.co_qualname,
                entries.gives_up_speculation(code, options), whole), opaque=True)
        new_code, ops = read_code(packed["code"], FrameCode(code, graph, codes)), tuple(packed["ops"])
    entry = _C.Entry(tree, new_code, Payload(guards, tuple(packed["arg_names"]), code.co_freevars, stored))
    entries.add(code, options, entry, guards.weakly_held())
    if packed["broke"] is not None:
        why, stack = packed["broke"]
        events.tell_break(events.GraphBreak(_explained(why), _read_stack(stack), code.co_qualname))
    shown = read_captured(packed["graph"]) if packed["graph"] is not None and events.is_listened_to() else None
    events.report_frame_compiled(events.FrameCompiled(code, shown, tuple(guards), len(ops), ops))
    return entry


@contextlib.contextmanager
def _checked(frame: Frame, packed: dict[str, Any]) -> Iterator[tuple[GuardSet, _C.GuardTree, dict[int, CodeType]]]:
    """The guards, seen to hold on the frame, and the code of functions that they name; inside, what the frame leads to is
    found. Raises Changed."""
    names, free = tuple(packed["arg_names"]), frame.code.co_freevars
    scope = Scope.of(names, free, frame.args, frame.closure, frame.globals, frame.builtins)
    sources = Sources(packed["sources"])
    homes = {packed["home"], home_of(frame.globals)}
    if len(homes) > 1 and not homes.isdisjoint(homes_named([packed["sources"], packed["guards"]])):
        raise Changed("its frame had the globals of another module")
    with reaching(sources, scope):
        guards = read_guards(packed["guards"], sources, scope)
        tree = build_tree(guards, names, free)
        tuple(sources)  # all of them are still there
        if not tree.check(frame.args, frame.closure, frame.globals, frame.builtins):
            failure = tree.first_failure(frame.args, frame.closure, frame.globals, frame.builtins)
            raise Changed("a guard does not hold" if failure is None else failure[1].describe())
        asked = {marks_on_functions.Mark.ASSUME_CONSTANT} if packed["results"] else set()
        if marks_found(packed["guards"], sources, scope) - {None, *asked}:
            raise Changed("a function of it is marked")
        _check_promises(guards, scope)
        _check_results(packed["results"])
        yield guards, tree, codes_found(packed["guards"], sources, scope)


def _check_promises(guards: GuardSet, scope: Scope) -> None:
    """A trace checks what the program promised of sizes (`mark_dynamic`, `maybe_mark_dynamic`), and says where that does not
    hold: a size out of its range, or one that is to vary and is a constant of the entry. Raises Changed. The guards hold."""
    for guard in guards:
        if not isinstance(guard, TensorIs):
            continue
        tensor = guard.source.fetch(scope)
        for dim in marks(tensor, "_dynamo_dynamic_indices"):
            if guard.spec.sizes[dim] not in (None, 0, 1):
                raise Changed(f"{guard.source.name}.size({dim}) is marked dynamic and a constant of the entry")
        ranges: Any = marks(tensor, "_dynamo_dynamic_range")
        for limits in ranges:
            low, high, size = limits.min, limits.max, tensor.shape[limits.dim]
            if (low is not None and size < low) or (high is not None and size > high):
                raise Changed(f"{guard.source.name}.size({limits.dim}) is {size}, out of the range that it was marked with")


def _read_skip(options: Any, frame: Frame, stored: Stored) -> None:
    """Gives the frame up as before: with the mark and the report. Raises Changed."""
    code = frame.code
    with _checked(frame, stored.packed):
        pass
    why, cause, stack = stored.packed["skip"]
    explained, broke = _explained(why), None if cause is None else _explained(cause)
    event = events.FrameSkipped(code, explained, _read_stack(stack), broke)
    entries.note_skip(code, options, stored)
    if explained.id == "skip-nothing-captured":
        events.tell_empty(event, entries.is_users(code, options))
        entries.count_empty(code, options, options.recompile_limit)
    else:
        events.tell_skip(event)
        entries.mark_skipped(code, options, explained.id)


def _explained(told: list[Any]) -> Explained:
    name, reason, explanation, hints, context = told
    return Explained(name, reason, explanation, tuple(hints), context)


@dataclass(frozen=True, slots=True)
class Saved:
    """All that is compiled under some options, as entries of the store, by name; and what is not among them."""

    entries: dict[str, bytes]
    #: The functions that have a stored entry.
    functions: tuple[str, ...]
    #: Functions of which an entry has no form on the disk, each with why.
    left_out: tuple[tuple[str, str], ...]


def saved(options: Any) -> Saved:
    """The entries of this process under `options`, with their graphs and libraries."""
    by_key: dict[str, list[Any]] = {}
    found: dict[str, bytes] = {}
    functions, left_out = list[str](), list[tuple[str, str]]()
    compiled = [(code, entry.payload.record) for code, entry in entries.under(options)]
    for code, record in (*compiled, *entries.skips_under(options)):
        try:
            stored = packed_entry(code, options, record)
            for graph in keys_of(stored.packed.get("graph")):
                found.update(entries_of_graph(graph))
        except (NotStorable, LookupError) as why:
            left_out.append((code.co_qualname, str(why)))
            continue
        by_key.setdefault(stored.key, []).append(stored.packed)
        if "skip" not in stored.packed:
            functions.append(code.co_qualname)
    found.update((f"{key}{FACTS}", json.dumps({"entries": packed}).encode()) for key, packed in by_key.items())
    return Saved(found, tuple(functions), tuple(left_out))
