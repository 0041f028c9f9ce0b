"""CUDA graphs: a compiled graph's kernels are recorded once and then replayed, which costs one launch.

A recording is made at the third call with the same sizes. It reads and writes fixed memory, so each later call looks at
three things. Inputs that had the same address at each call so far (parameters, what a forward saved) are read where they
are, and the address is compared; all others are copied to the recording's own memory, and back where the graph writes to
them. Outputs are given out as they are, in the recording's memory, if nothing given out before is still alive; an output
that was found alive is cloned from then on. Where a call does not fit, the kernels are launched one by one: the result is
always right, and `counters["cudagraphs"]` and the log `cudagraphs` say why it was not a replay. All recordings for a stream
share one memory pool: each leaves its outputs in it, and the memory in between is free for the next.

The backend `cudagraphs` does this to the captured graph itself; `mode="reduce-overhead"` to what the native backend made.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fxjit import logs
from fxjit.counters import counters
from fxjit.schemas import name_of, writes

from .door import needs
from .graph.facts import placeholders_written

log = logs.artifact("cudagraphs")
WARM_UP_CALLS = 2
MAX_RECORDINGS = 16
# How often a recording is made again because an input moved: each is copied from its second move on, and what a forward saved
# moves when that is recorded again.
MAX_MOVES = 16
Run = Callable[[list[Any]], Any]


class Recorder(Protocol):
    """The recording interface. `record(run, places)` gives the replay callable, and the outputs, which each replay
    overwrites.

    A replay reads and writes the memory of `places`, whether or not those tensors are still there.
    """

    def record(self, run: Run, places: list[Any]) -> tuple[Callable[[], None], Sequence[Any]]: ...

    def busy(self) -> bool:
        """Whether another recording is under way on this thread's stream."""

    def stream(self) -> int:
        """The stream that a replay would be on now: what is recorded for one is not replayed on another."""


class CudaRecorder:
    """torch's graphs, one memory pool a stream: those that share memory must not run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def record(self, run: Run, places: list[Any]) -> tuple[Callable[[], None], Sequence[Any]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            pool = _pool(self.device, self.stream())
            torch.cuda.synchronize()
            # The outer context puts the stream back where ending a recording raises. Other threads may do as they please.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=pool.handle, stream=pool.side, capture_error_mode="thread_local"),
            ):
                outputs = run(list(places))
        return _Replay(graph, pool), outputs

    def busy(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> int:
        return torch.cuda.current_stream(self.device).cuda_stream


@dataclass(eq=False)
class _Pool:
    """The memory of what is replayed on a stream, and the stream of the same device that it is recorded on."""

    handle: Any
    side: Any


#: A pool goes with the last recording in it: torch gives its memory back then, and takes its handle no more.
_pools: weakref.WeakValueDictionary[tuple[torch.device, int], _Pool] = weakref.WeakValueDictionary()


def _pool(device: torch.device, stream: int) -> _Pool:
    found = _pools.get((device, stream))
    if found is None:
        found = _pools[device, stream] = _Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))
    return found


@dataclass(frozen=True, slots=True)
class _Replay:
    graph: Any
    pool: _Pool

    def __call__(self) -> None:
        self.graph.replay()


@dataclass(frozen=True, slots=True)
class _View:
    """An output that is in an input's memory: where in it."""

    input: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def of(self, args: list[Any]) -> torch.Tensor:
        base = args[self.input]
        return torch.as_strided(base, self.size, self.stride, base.storage_offset() + self.offset)


def _view_of(index: int, place: torch.Tensor, output: torch.Tensor) -> _View:
    if output.dtype is not place.dtype or output.is_conj() != place.is_conj() or output.is_neg() != place.is_neg():
        raise RuntimeError("an output is a view of an input as another type")
    return _View(index, output.shape, output.stride(), int(output.storage_offset() - place.storage_offset()))


@dataclass(slots=True)
class _Recording:
    """Fixed memory and what replays over it."""

    replay: Callable[[], None]
    outputs: list[Any]
    #: Inputs read at the address they had, and those copied to a place of the recording's.
    fixed: list[tuple[int, int]]
    copied: list[tuple[int, torch.Tensor]]
    #: Outputs that are an input, as it came or a view of it.
    passed: dict[int, int]
    views: dict[int, _View]
    storages: list[tuple[int, Any, int]] = field(default_factory=list)

    def alive(self) -> list[int]:
        """The outputs of earlier replays that are still referenced."""
        return [k for k, storage, unused in self.storages if _uses(storage) > unused]


@dataclass(slots=True)
class _Sizes:
    """The history of one set of input sizes."""

    calls: int = 0
    addresses: list[int] | None = None
    moving: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    cloned: set[int] = field(default_factory=set)
    recording: _Recording | None = None
    moves: int = 0
    given_up: bool = False


class Recorded:
    """A compiled graph that is recorded: takes the list of inputs and empties it, as the graph itself does."""

    _boxed_call = True

    def __init__(
        self, run: Run, name: str, written: frozenset[int], recorder: Recorder, varying: tuple[int, ...] = ()
    ) -> None:
        """`varying` are the positions of tensors whose sizes are not the same at every call."""
        self.run, self.name, self.written, self.recorder, self.varying = run, name, written, recorder, varying
        self.seen: dict[tuple[Any, ...], _Sizes] = {}
        self.numbers: list[int] | None = None
        self.lock = threading.Lock()

    def finish(self) -> Recorded:
        finish = getattr(self.run, "finish", None)
        if finish is not None:
            finish()
        return self

    def unboxed(self) -> Callable[..., tuple[Any, ...]]:
        return lambda *args: tuple(self(list(args)))

    def __call__(self, args: list[Any]) -> Any:
        if not self.lock.acquire(blocking=False):
            return self.plainly(args, "another thread is in the same graph")
        try:
            return self.call(args)
        finally:
            self.lock.release()

    def call(self, args: list[Any]) -> Any:
        if self.numbers is None:
            self.numbers = [k for k, each in enumerate(args) if not isinstance(each, torch.Tensor)]
        shapes = [(*args[k].shape, *args[k].stride()) for k in self.varying]
        key = (self.recorder.stream(), *[args[k] for k in self.numbers], *shapes)
        sizes = self.seen.get(key)
        if sizes is None:
            if len(self.seen) >= MAX_RECORDINGS:
                return self.plainly(args, f"there are {MAX_RECORDINGS} recordings of other sizes")
            sizes = self.seen[key] = _Sizes()
        if sizes.recording is None:
            return self.before_recording(args, sizes)
        return self.replayed(args, sizes, sizes.recording)

    def plainly(self, args: list[Any], why: str) -> Any:
        counters["cudagraphs"]["not replayed: " + why] += 1
        log.info("%s runs kernel by kernel: %s", self.name, why)
        return self.run(args)

    # The first calls

    def before_recording(self, args: list[Any], sizes: _Sizes) -> Any:
        if sizes.given_up:
            return self.run(args)
        if self.recorder.busy():
            return self.plainly(args, "another recording is under way")
        addresses = [each.data_ptr() if isinstance(each, torch.Tensor) else 0 for each in args]
        if sizes.addresses is not None:
            sizes.moving |= {k for k, (a, b) in enumerate(zip(sizes.addresses, addresses, strict=True)) if a != b}
        sizes.addresses = addresses
        sizes.calls += 1
        if sizes.calls <= WARM_UP_CALLS:
            return self.run(args)
        try:
            sizes.recording = self.record(args, sizes)
        except RuntimeError as error:
            sizes.given_up = True
            return self.plainly(args, f"it cannot be recorded: {str(error).splitlines()[0]}")
        counters["cudagraphs"]["recorded"] += 1
        return self.replayed(args, sizes, sizes.recording)

    def record(self, args: list[Any], sizes: _Sizes) -> _Recording:
        places = list(args)
        copied: list[tuple[int, torch.Tensor]] = []
        fixed: list[tuple[int, int]] = []
        for k, given in enumerate(args):
            if isinstance(given, torch.Tensor):
                if k in sizes.moving:
                    places[k] = _place_for(given)
                    copied.append((k, places[k]))
                else:
                    fixed.append((k, given.data_ptr()))
        with torch.no_grad():
            replay, outputs = self.recorder.record(self.run, places)
        passed: dict[int, int] = {}
        views: dict[int, _View] = {}
        for k, output in enumerate(outputs):
            if isinstance(output, torch.Tensor):
                same = next((i for i, place in enumerate(places) if place is output), None)
                shared = next((i for i, place in enumerate(places) if _shares(output, place)), None)
                if same is not None:
                    passed[k] = same
                elif shared is not None:
                    views[k] = _view_of(shared, places[shared], output)
        made = _Recording(replay, list(outputs), fixed, copied, passed, views)
        del outputs
        made.storages = [
            (k, storage, _uses(storage))
            for k, each in enumerate(made.outputs)
            if isinstance(each, torch.Tensor) and k not in passed and k not in views
            for storage in [each.untyped_storage()]
        ]
        return made

    # Later calls

    def replayed(self, args: list[Any], sizes: _Sizes, recording: _Recording) -> Any:
        alive = recording.alive()
        if alive:
            # Kept although clones are given out since: the memory is theirs, and the next recording has its own.
            if sizes.cloned.issuperset(alive):
                sizes.recording = None
            sizes.cloned.update(alive)
            return self.plainly(args, "what an earlier call gave is still in use")
        moved = [k for k, address in recording.fixed if args[k].data_ptr() != address]
        if moved:
            return self.after_move(args, sizes, moved)
        if self.recorder.busy():
            return self.plainly(args, "another recording is under way")
        with torch.no_grad():
            for k, place in recording.copied:
                place.copy_(args[k])
            recording.replay()
            for k, place in recording.copied:
                if k in self.written:
                    args[k].copy_(place)
            outputs = [self.given(k, each, args, sizes, recording) for k, each in enumerate(recording.outputs)]
        counters["cudagraphs"]["replayed"] += 1
        args.clear()
        return outputs

    def given(self, k: int, output: Any, args: list[Any], sizes: _Sizes, recording: _Recording) -> Any:
        if not isinstance(output, torch.Tensor):
            return output
        if k in recording.passed:
            return args[recording.passed[k]]
        if k in recording.views:
            return recording.views[k].of(args)
        return output.clone() if k in sizes.cloned else output.detach()

    def after_move(self, args: list[Any], sizes: _Sizes, moved: list[int]) -> Any:
        """Inputs that were thought to stay where they are do not: recorded anew, and copied if they move again."""
        sizes.moving.update(sizes.moved.intersection(moved))
        sizes.moved.update(moved)
        sizes.moves += 1
        sizes.recording = sizes.addresses = None
        sizes.given_up = sizes.moves > MAX_MOVES
        return self.plainly(args, "an input is no longer where it was")


def _place_for(given: torch.Tensor) -> torch.Tensor:
    """Memory like the input's, strides and all."""
    made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
    return made.copy_(given.detach())


def _uses(storage: Any) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))  # type: ignore[attr-defined]  # not in the stubs


def _shares(output: torch.Tensor, place: Any) -> bool:
    return (
        isinstance(place, torch.Tensor)
        and output.numel() > 0
        and output.untyped_storage().data_ptr() == place.untyped_storage().data_ptr()
    )


# What can be recorded


def recorded(compiled: Run, gm: torch.fx.GraphModule, name: str) -> Run:
    """The compiled ATen graph with recordings, or as it is, and why."""
    why = why_not(gm)
    if why is not None:
        counters["cudagraphs"]["not recorded: " + why] += 1
        log.info("%s is not recorded: %s", name, why)
        return compiled
    (device,) = devices_of(gm)
    return Recorded(compiled, name, placeholders_written(gm), CudaRecorder(device), varying_inputs(gm))


def devices_of(gm: torch.fx.GraphModule) -> set[torch.device]:
    leaves = (leaf for node in gm.graph.nodes for leaf in tree_leaves(node.meta.get("val")))
    return {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}


def why_not(gm: torch.fx.GraphModule) -> str | None:
    """Why a graph of ATen operators cannot be recorded."""
    devices = devices_of(gm)
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return f"its tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}"
    for node in gm.graph.nodes:
        if node.meta.get("unbacked_bindings"):
            return f"{node.target} has a size that depends on numbers in a tensor"
        tags = getattr(node.target, "tags", ())
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            return f"{node.target} waits for numbers in a tensor"
    return None


def varying_inputs(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """The positions of the tensors among the inputs that have a symbol for a size or a stride."""
    metas = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    return tuple(
        k for k, meta in enumerate(metas)
        if isinstance(meta, torch.Tensor) and meta.layout is torch.strided
        and any(isinstance(each, torch.SymInt) for each in (*meta.shape, *meta.stride()))
    )  # fmt: skip


# The backend of that name


@needs("CUDA graphs")
def cudagraphs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph as a callable that records and replays; falls back to eager by name where that is not possible."""
    why = _captured_why_not(gm, example_inputs)
    if why is not None:
        counters["cudagraphs"]["eager: " + why] += 1
        warnings.warn(f"backend 'cudagraphs' runs this graph eagerly: {why}.", RuntimeWarning, stacklevel=2)
        return gm.forward
    device = next(each.device for each in example_inputs if isinstance(each, torch.Tensor))
    return recording_of(gm, CudaRecorder(device))


def recording_of(gm: torch.fx.GraphModule, recorder: Recorder) -> Callable[..., Any]:
    """The captured graph, recorded; a call that needs gradients runs eagerly. Tensors' shapes are part of the key."""
    specs: list[Any] = []
    by_shape: dict[tuple[Any, ...], Recorded] = {}

    def run(args: list[Any]) -> list[Any]:
        outputs, spec = tree_flatten(gm.forward(*args))
        specs[:] = [spec]
        return outputs

    def call(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
            return gm.forward(*args)
        key = tuple(map(_input_key, args))
        if key not in by_shape:
            if len(by_shape) >= MAX_RECORDINGS:
                return gm.forward(*args)
            by_shape[key] = Recorded(run, "graph", frozenset(), recorder)
        return tree_unflatten(by_shape[key](list(args)), specs[0])

    return call


def _input_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, tuple(value.shape), value.stride()
    return type(value), value


def _captured_why_not(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    devices = {each.device for each in example_inputs if isinstance(each, torch.Tensor)}
    if not devices:
        return "it has no tensor inputs"
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        return f"its inputs are on {', '.join(sorted(map(str, devices)))}"
    for node in gm.graph.nodes:
        if writes(node):
            return f"it calls {name_of(node.target)}, which writes to a tensor"
    return None
