"""Symbolic sizes and numbers of a frame's inputs, and the ShapeEnv that they belong to.

trace.py consults `ShapePolicy` when a tensor or an int becomes a graph input. A size is static at first; where a later
compile of the same code meets another size at the same source, that dimension becomes a symbol (automatic dynamic
shapes), unless the options or a mark (`fxjit.mark_dynamic`, `mark_static`) decide. `FrameHistory` is the memory
between compiles of one code object.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fxjit import config, logs, torch_compat, torch_private
from fxjit.errors import ConstraintViolationError
from fxjit.fake_execution import DATA_DEPENDENT, python_dispatcher
from fxjit.first_calls import Layout
from fxjit.frontend.named_sources import decided, may_vary
from fxjit.frontend.replaced_operators import replaced, torchs_own
from fxjit.frontend.views_of_parts import faked
from fxjit.guards.kinds import ConstIs, TensorIs
from fxjit.guards.modules import is_of_object
from fxjit.guards.shapes import our_source, torch_source
from fxjit.guards.source import AttrSource, ItemSource
from fxjit.guards.tensor_spec import marks
from fxjit.tensor_wrappers import flattened, inner_tensors, is_ragged, is_wrapper

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        RelaxedUnspecConstraint,
        ShapeEnv,
        StatefulSymbolicContext,
        SubclassSymbolicContext,
    )
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    from fxjit.frontend.interp.restart import BreakPoints
    from fxjit.guards.kinds import Guard
    from fxjit.guards.source import Source
else:
    SLoc = torch_private.optional("torch._guards.SLoc")
    DimDynamic = torch_private.optional("torch.fx.experimental.symbolic_shapes.DimDynamic")
    RelaxedUnspecConstraint = torch_private.optional("torch.fx.experimental.symbolic_shapes.RelaxedUnspecConstraint")
    ShapeEnv = torch_private.get_or("torch.fx.experimental.symbolic_shapes.ShapeEnv", object)
    StatefulSymbolicContext = torch_private.optional("torch.fx.experimental.symbolic_shapes.StatefulSymbolicContext")
    SubclassSymbolicContext = torch_private.optional("torch.fx.experimental.symbolic_shapes.SubclassSymbolicContext")
    int_oo = torch_private.optional("torch.utils._sympy.numbers.int_oo")
    ValueRanges = torch_private.optional("torch.utils._sympy.value_ranges.ValueRanges")

_log = logs.artifact("dynamic")
#: Symbols stand for machine words; bigger ints are constants.
_WORD: Final = 1 << 62


@dataclass(slots=True)
class FrameHistory:
    """Observations of earlier compiles of one code object, by source name: sizes and strides with None where they varied."""

    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    strides: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    numbers: dict[str, object] = field(default_factory=dict)
    varying_numbers: set[str] = field(default_factory=set)
    #: Numbers that are constants: the last one met, and how often another had been met before.
    flags: dict[str, tuple[object, int]] = field(default_factory=dict)
    #: Floats that vary, and are constants all the same.
    fixed_floats: set[str] = field(default_factory=set)
    #: Views of wrappers whose place in their base would be numbers that nobody outside of the trace has.
    fixed_views: set[str] = field(default_factory=set)
    #: Off once a backend decided on a random number computed before the graph runs, or failed on one.
    random_inputs: bool = True
    #: Off once a leaf of autograd's graph that a trace made was seen outside of the graph.
    leaves: bool = True
    #: Off once a graph wrote to an input that was set to require a gradient before it ran.
    sets_before: bool = True
    #: Off once a part of a class that a trace made was seen outside.
    makes_classes: bool = True
    #: Off once an input that a trace wrote to was left with a graph that a backward pass of the trace had used up.
    backward_passes: bool = True
    #: Off once a backend failed on sizes that vary: torch has operators that are at a loss with them.
    sizes_vary: bool = True
    #: Whether the frame was traced once more because a guard did not hold on it.
    retraced: bool = False
    #: How often an exception left the frame before any operator.
    raised: int = 0
    #: Off once code that a helper process compiled could not take the place of the captured graph.
    background: bool = True

    def merge_sizes(self, name: str, seen: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Record sizes met now; gives the sizes with None in every dimension that has varied."""
        merged = self.sizes[name] = _merged(self.sizes.get(name), seen)
        return merged

    def merge_strides(self, name: str, seen: tuple[int, ...]) -> tuple[int | None, ...]:
        """The same for strides."""
        merged = self.strides[name] = _merged(self.strides.get(name), seen)
        return merged

    def learn(self, guards: Iterable[Guard]) -> None:
        """As an entry's trace would have recorded: the entry was compiled by another process."""
        for guard in guards:
            if isinstance(guard, TensorIs):
                name = guard.source.name
                self.sizes[name] = _merged(self.sizes.get(name), guard.spec.sizes)
                self.strides[name] = _merged(self.strides.get(name), guard.spec.strides)
            elif isinstance(guard, ConstIs) and type(guard.value) in (int, float):
                self.varies(guard.source.name, guard.value)

    def meet(self, source: Source, given: object) -> None:
        """As a trace would have recorded of what a call was given that ran eagerly (first_calls.given)."""
        if isinstance(given, Layout):
            self.merge_sizes(source.name, given.sizes)
            self.merge_strides(source.name, given.strides)
        elif isinstance(given, (int, float)):
            self.varies(source.name, given)
        elif isinstance(given, (list, dict)):
            for key, each in given.items() if isinstance(given, dict) else enumerate(given):
                self.meet(ItemSource(source, key), each)

    def varies(self, name: str, number: object) -> bool:
        """Record a number met now; True once two different ones were met."""
        if name in self.numbers and self.numbers[name] != number:
            self.varying_numbers.add(name)
        self.numbers[name] = number
        return name in self.varying_numbers

    def stays(self, name: str, flag: object) -> bool:
        """Record a flag met now; False once it has changed twice."""
        before, changes = self.flags.get(name, (flag, 0))
        changes += flag != before
        self.flags[name] = flag, changes
        return changes < 2


def _merged(before: tuple[int | None, ...] | None, seen: tuple[int | None, ...]) -> tuple[int | None, ...]:
    if before is None or len(before) != len(seen):
        return seen
    return tuple(new if old == new else None for old, new in zip(before, seen, strict=True))


#: By id, with a weak reference that drops the row: codes compare by value, and equal-looking code is another frame.
_histories: dict[int, tuple[ref[CodeType], FrameHistory]] = {}


def history_of(code: CodeType) -> FrameHistory:
    """The memory of `code`, made at its first compile and dropped with it."""
    key = id(code)
    known = _histories.get(key)
    if known is None or known[0]() is not code:
        known = _histories[key] = (ref(code, functools.partial(_forget, key)), FrameHistory())
    return known[1]


def _forget(key: int, dead: ref[CodeType]) -> None:
    known = _histories.get(key)
    if known is not None and known[0] is dead:
        del _histories[key]


def forget_histories() -> None:
    """`fxjit.reset()`."""
    _histories.clear()
    forget_answers()


def forget_answers() -> None:
    """torch's caches of queries about each ShapeEnv: they keep the answers, and with them the ShapeEnv, for good."""
    for method in vars(ShapeEnv).values():
        forget = getattr(method, "cache_clear", None)
        if forget is not None:
            forget()


class _Environment(ShapeEnv):
    """torch's, but for what it notes for its logs: where each symbol and each fact came from, outside of torch's own files. To
    know those it imports `torch.export` and much of `torch._inductor`; and our reasons have stacks of our own."""

    #: Whether operators may make symbols of what is known only when the graph runs, if the environment was made so.
    reads_data = True
    #: Those of the trace, whose blocks may say so as well.
    break_points: BreakPoints | None = None

    @property
    def allow_scalar_outputs(self) -> bool:
        in_block = self.break_points is not None and self.break_points.blocks_with_scalars > 0
        return self.reads_data and (in_block or super().allow_scalar_outputs)

    @property
    def allow_dynamic_output_shape_ops(self) -> bool:
        return self.reads_data and super().allow_dynamic_output_shape_ops

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> tuple[SLoc, str]:
        return SLoc(framework_loc or "", None), ""  # torch 2.11 has no text for None


class ShapePolicy:
    """The shape environment of one trace and the decisions about its inputs. `dynamic` is compile()'s option."""

    def __init__(self, history: FrameHistory, dynamic: bool | None, break_points: BreakPoints) -> None:
        self.history = history
        #: Where the program has put something in the place of torch's own functions.
        self.replaced = replaced()
        self.shape_env: Any = None  # where the feature is off
        if torch_private.is_on("sizes that vary", thoroughly=True):
            torch_compat.import_of_shapes()
            self.shape_env = _Environment(allow_scalar_outputs=break_points.captures_scalars,
                                          allow_dynamic_output_shape_ops=break_points.captures_shapes)
            self.shape_env.break_points = break_points
        else:  # each size, and each number, is compiled by itself
            history.sizes_vary = history.random_inputs = False
        self._may_vary = config.dynamic_shapes and history.sizes_vary
        self.dynamic = dynamic if self._may_vary else False
        self.fake_mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=False)
        self.contexts: list[tuple[torch.Tensor, StatefulSymbolicContext]] = []
        self.floats: list[SymbolicFloat] = []
        self._guards_seen = 0  # of the environment's, that are about no random number
        #: Symbols of random numbers computed before the graph runs: nobody may decide on them.
        self.random_symbols: set[Any] = set()
        self.unbacked = False  # whether sizes of an input are known by what torch._check says of them alone
        self.symbols = False  # whether sizes or integers of inputs are symbols
        self._marked: list[tuple[str, int, int, Any]] = []  # (name, dimension, size now, symbolic size)

    def fake(self, tensor: torch.Tensor, source: Source) -> tuple[torch.Tensor, frozenset[int]]:
        """The fake tensor of an input, and the dimensions that are symbols in it."""
        with torchs_own(self.replaced):
            return self._fake(tensor, source)

    def _fake(self, tensor: torch.Tensor, source: Source) -> tuple[torch.Tensor, frozenset[int]]:
        if self.shape_env is None or source.name in self.history.fixed_views:
            return faked(tensor, lambda given: self.fake_mode.from_tensor(given, static_shapes=True)), frozenset()
        marked = marks(tensor, "_dynamo_dynamic_indices")
        context = self._context(tensor, source)
        fake: torch.Tensor
        if tensor.dim() == 0 and not is_wrapper(tensor):
            # Without sizes there is nothing to be a symbol; torch would make one of the number in it, which nothing guards.
            fake = faked(tensor, lambda given: self.fake_mode.from_tensor(given, source=torch_source(source),
                                                                          static_shapes=True))
        else:
            fake = faked(tensor, lambda given: self.fake_mode.from_tensor(given, source=torch_source(source),
                                                                          symbolic_context=context))
        self.shape_env.pending_fresh_unbacked_symbols.clear()  # those of mark_unbacked are the input's own
        for each in flattened(fake):
            if each.dim() == 0:
                each.item_memo = None  # type: ignore[attr-defined]  # contents are no fact of the trace: nothing guards them
        self.contexts.append((tensor, context))
        self._note_marks(tensor, fake, source, marked)
        symbolic = frozenset(dim for dim, size in enumerate(fake.shape) if isinstance(size, torch.SymInt)
                             and size.node.maybe_as_int() is None)
        if symbolic:
            self.symbols = True
            _log.info("%s: dimensions %s are symbols", source.name, sorted(symbolic))
        return fake, symbolic

    def has_unknown_numbers(self, fake: torch.Tensor) -> bool:
        """Whether sizes of a view's fake tensor, or what was assumed of them, are about numbers that nothing outside gives."""
        env = self.shape_env
        if env is None:
            return False
        everything = (number for each in flattened(fake) for number in (*each.shape, *each.stride(), each.storage_offset()))
        numbers = [number.node.expr for number in everything if isinstance(number, torch.SymInt)]
        open_ = [guard.expr for guard in env.guards if env._maybe_evaluate_static(
            guard.expr, axioms=(), size_oblivious=getattr(guard, "size_oblivious", False)) is None]
        symbols = {symbol for expr in (*numbers, *open_) for symbol in env.simplify(expr).free_symbols}
        return not all(any(map(our_source, env.var_to_sources.get(symbol, ()))) for symbol in symbols)

    def fake_of_shape(self, tensor: torch.Tensor, source: Source, shape: Sequence[Any]) -> torch.Tensor:
        """The fake tensor of an input that is made before the graph runs; `shape` has its sizes, those that follow from numbers
        which vary as what they are in terms of these."""
        varies = [isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None for size in shape or tensor.shape]
        if not varies or self.shape_env is None:
            fixed: torch.Tensor = self.fake_mode.from_tensor(tensor, static_shapes=True)
            return fixed
        where = torch_source(source)
        context = StatefulSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in varies],
            dynamic_strides=[DimDynamic.INFER_STRIDE] * len(varies), constraint_sizes=[None] * len(varies), tensor_source=where)
        context.shape_env_to_source_to_symbol_cache[id(self.shape_env)] = {
            f"{where.name}.size()[{dim}]": size.node.expr  # by torch's name of the size
            for dim, (size, each) in enumerate(zip(shape or tensor.shape, varies, strict=True)) if each}
        fake: torch.Tensor = self.fake_mode.from_tensor(tensor, source=where, symbolic_context=context)
        self.contexts.append((tensor, context))
        return fake

    def _context(self, tensor: torch.Tensor, source: Source, *, inner: bool = False) -> StatefulSymbolicContext:
        """Which sizes of a tensor, and of the inner tensors of a wrapper, are symbols."""
        dims = self._dims(tensor, source, inner)
        marked = marks(tensor, "_dynamo_dynamic_indices")
        said: dict[str, Any] = {
            "dynamic_sizes": dims,
            "dynamic_strides": self._strides(tensor, source, dims),
            "constraint_sizes": [RelaxedUnspecConstraint(warn_only=False) if dim in marked else None
                                 for dim in range(tensor.dim())],
            "tensor_source": torch_source(source),
        }
        if not is_wrapper(tensor):
            return StatefulSymbolicContext(**said)
        contexts: dict[str, Any] = {name: self._context(each, AttrSource(source, name), inner=True)
                                    for name, each in inner_tensors(tensor)}
        said |= torch_compat.taken(SubclassSymbolicContext, track_outer_size_stride=not tensor.is_nested)  # from torch 2.13 on
        return SubclassSymbolicContext(**said, inner_contexts=contexts)

    @contextlib.contextmanager
    def reading_data(self, wanted: bool) -> Iterator[None]:
        """Whether operators run inside make symbols of what is known only when the graph runs."""
        env = self.shape_env
        if env is None:
            yield
            return
        before, env.reads_data = env.reads_data, wanted
        try:
            yield
        finally:
            env.reads_data = before

    def run(self, operator: Callable[[], Any], captures: bool) -> Any:
        """The fake result of a call, without symbols of what is known only when the graph runs where that can be; `captures`:
        with them where not."""
        try:
            return operator()
        except DATA_DEPENDENT:
            # torch's decomposition of a composite operator may do without what its C++ looks at.
            with contextlib.suppress(*DATA_DEPENDENT) if captures else contextlib.nullcontext(), python_dispatcher():
                return operator()
        with self.reading_data(True):
            return operator()

    def release(self) -> None:
        """Let go of the frame's tensors, and of the ShapeEnv: it goes with the entry, or now."""
        self.contexts.clear()
        forget_tensors(self.fake_mode)
        forget_answers()

    def _note_marks(self, tensor: torch.Tensor, fake: torch.Tensor, source: Source, marked: frozenset[int]) -> None:
        for dim in sorted(marked):
            self._marked.append((source.name, dim, tensor.shape[dim], fake.shape[dim]))
        ranges: Any = marks(tensor, "_dynamo_dynamic_range")
        for limits in ranges:
            size = fake.shape[limits.dim]
            expr = size.node.expr if isinstance(size, torch.SymInt) else None
            if expr is not None and expr.is_Symbol:
                low = 2 if limits.min is None else max(limits.min, 2)
                high = int_oo if limits.max is None else limits.max
                if not low <= tensor.shape[limits.dim] <= high:
                    raise ConstraintViolationError(
                        f"Dimension {limits.dim} of {source.name} was marked with sizes from {limits.min or 0} to "
                        f"{'any' if limits.max is None else limits.max}, and has {tensor.shape[limits.dim]}.")
                self.shape_env._update_var_to_range(expr, ValueRanges(low, high))

    def check_marks(self) -> None:
        """Raises where a size marked dynamic came out as a constant. Called when trace and backend are done."""
        for name, dim, now, size in self._marked:
            value = size if isinstance(size, int) else size.node.maybe_as_int()
            if value is None or (isinstance(size, int) and now in (0, 1)):
                continue  # sizes 0 and 1 are always constants, and the next one varies
            what = f"{name}.size({dim}) was marked dynamic, but it can only be compiled as the constant {value}: "
            if isinstance(size, int):
                why = "something fixed it before the trace"
            else:
                symbol = size.node._expr
                decided = [str(guard.expr).replace(str(symbol), f"{name}.size({dim})") for guard in self.shape_env.guards
                           if symbol in guard.expr.free_symbols]
                why = "the program decides on " + (" and ".join(decided[:3]) or f"{name}.size({dim}) == {value}")
            raise ConstraintViolationError(
                f"{what}{why}. Change the program so that it works for other sizes, or use fxjit.maybe_mark_dynamic"
                f"({name}, {dim}) to allow a constant, or fxjit.mark_static to ask for one."
            )

    def _dims(self, tensor: torch.Tensor, source: Source, inner: bool) -> list[DimDynamic]:
        sizes = tuple(None if is_ragged(size) else size for size in tensor.shape)
        static = [DimDynamic.DUCK if size is None else DimDynamic.STATIC for size in sizes]  # a ragged size is no number
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        fixed_all = is_parameter or self.dynamic is False
        if fixed_all and not (self._may_vary and may_vary(source, sizes, is_parameter)):
            return static
        merged = self.history.merge_sizes(source.name, sizes)
        forced = marks(tensor, "_dynamo_dynamic_indices") | marks(tensor, "_dynamo_weak_dynamic_indices")
        if inner:  # a jagged tensor's mark on the sum of its ragged sizes
            forced |= marks(tensor, "_dynamo_propagated_dynamic_indices")
        named = {way: {dim for dim, size in enumerate(sizes) if size is not None and decided(source, size, dim) == way}
                 for way in ("static", "dynamic", "unbacked")}
        marked = marks(tensor, "_dynamo_dynamic_indices")
        fixed = marks(tensor, "_dynamo_static_indices") | (named["static"] - marked)
        unbacked = marks(tensor, "_dynamo_unbacked_indices") | (named["unbacked"] - fixed - marked)
        if fixed_all:
            fixed, forced = frozenset(range(len(sizes))) - named["dynamic"] - unbacked, frozenset()
        self.unbacked = self.unbacked or bool(unbacked)
        automatic = config.automatic_dynamic_shapes and self.dynamic is None
        return [
            DimDynamic.DUCK if sizes[dim] is None
            else DimDynamic.UNBACKED if dim in unbacked
            else DimDynamic.STATIC if dim in fixed
            else DimDynamic.DYNAMIC if dim in forced or dim in named["dynamic"]
            else DimDynamic.DUCK if self.dynamic or not config.assume_static_by_default
            or (automatic and merged[dim] is None)
            else DimDynamic.STATIC
            for dim in range(len(sizes))
        ]

    def _strides(self, tensor: torch.Tensor, source: Source, dims: list[DimDynamic]) -> list[DimDynamic]:
        """A stride that varied and does not follow from the sizes, as that of `ids[:, -1:]` while `ids` grows, is a symbol."""
        inferred = [DimDynamic.INFER_STRIDE] * len(dims)
        automatic = config.automatic_dynamic_shapes and self.dynamic is None
        if tensor.is_nested or not automatic or tensor.layout is not torch.strided or isinstance(tensor, torch.nn.Parameter):
            return inferred
        sizes, strides = tensor.shape, tensor.stride()
        merged = self.history.merge_strides(source.name, strides)
        spans = {1, *(size * stride for size, stride in zip(sizes, strides, strict=True))}
        return [DimDynamic.DYNAMIC if merged[dim] is None and stride > 1 and stride not in spans and size > 1 else inferred[dim]
                for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True))]

    def number_is_symbolic(self, number: int | float, source: Source) -> bool:
        """Whether a number of the frame's inputs becomes a symbol: it varied between compiles, or dynamic=True."""
        is_float = isinstance(number, float)
        said = decided(source, number) if self._may_vary else None
        if said == "static" or (said is not None and not is_float):
            return said != "static" and -_WORD < number < _WORD
        if self.dynamic is False or (config.specialize_float if is_float else config.specialize_int):
            return False
        varied = self.history.varies(source.name, number)
        if is_float:
            # Infinities and NaN are no numbers to sympy, and its zero has no sign.
            usable = math.isfinite(number) and number != 0.0 and source.name not in self.history.fixed_floats
            return varied and usable and config.automatic_dynamic_shapes
        if not -_WORD < number < _WORD:
            return False
        given = source.root.is_local_root and not is_of_object(source)
        return (bool(self.dynamic) and given) or (varied and config.automatic_dynamic_shapes)

    def foresee(self, number: int | float, source: Source) -> bool:
        """Takes a number for one that varies, before another was met. False: that is known, or it is no symbol all the same."""
        known = source.name in self.history.varying_numbers
        self.history.varying_numbers.add(source.name)
        return not known and self.number_is_symbolic(number, source)

    def symbolic_int(self, number: int, source: Source) -> Any:
        """A SymInt with hint `number` for an int input."""
        where = torch_source(source)
        self.symbols = True
        symbol = self.shape_env.create_unspecified_symbol(number, source=where, dynamic_dim=DimDynamic.DYNAMIC)
        return self.shape_env.create_symintnode(symbol, hint=number, source=where)

    def symbolic_float(self, number: float, source: Source) -> SymbolicFloat:
        """A float input. Graphs take it as a tensor, so that backends need to know no other kind of number."""
        where = torch_source(source)
        symbol = self.shape_env.create_unspecified_symbol(number, source=where, dynamic_dim=DimDynamic.DYNAMIC)
        made = SymbolicFloat(source.name, str(symbol), float_tensor(number),
                             self.shape_env.create_symfloatnode(symbol, hint=number, source=where))
        self.floats.append(made)
        return made

    def random_number(self, number: int | float, source: Source, bounds: tuple[Any, Any] | None) -> SymbolicFloat | Any:
        """The stand-in for a random number computed before the graph runs: a SymInt, or a float input."""
        made = self.symbolic_float(number, source) if isinstance(number, float) else self.symbolic_int(number, source)
        value = made.value if isinstance(made, SymbolicFloat) else made
        self.random_symbols |= value.node.expr.free_symbols
        if bounds is not None and type(number) is int and bounds[0] < bounds[1]:
            self.shape_env._update_var_to_range(value.node.expr, ValueRanges(*bounds))
        return made

    def decided_on_random(self) -> bool:
        """Whether an operator or the backend relied on more of a random number than that it is one, since the last call."""
        if not self.random_symbols:
            return False
        known, self._guards_seen = self._guards_seen, len(self.shape_env.guards)
        return any(self.random_symbols & guard.expr.free_symbols for guard in self.shape_env.guards[known:])

    def promises_nothing(self) -> bool:
        """Whether nothing that a backend decides is an error, or takes another trace, at this very call: no size was marked by
        the user, and no input is a random number."""
        return not (self.random_symbols or self._marked or self.unbacked)

    def fix_floats(self) -> bool:
        """The backend failed: from now on the numbers it got as variables are constants. False: there were none."""
        if self.random_symbols:
            self.history.random_inputs = False
        pass_of_torch = sys.modules.get("torch.fx.passes._tensorify_python_scalars")
        state = getattr(pass_of_torch, "TensorifyState", None)
        # AOTAutograd says which of them it can make no tensors of; what else went wrong may be due to any of them.
        named = set() if state is None else set(state.force_specializations)
        if state is not None:
            state.clear()
        fixed = {number.name for number in self.floats if not named or number.symbol in named}
        self.history.fixed_floats |= fixed
        return bool(fixed or self.random_symbols)

    def fix_sizes(self) -> bool:
        """The backend failed: each size is compiled by itself from now on. False: none varied, or the user marked one."""
        if not self.symbols or self._marked or self.unbacked:
            return False
        self.history.sizes_vary = False
        return True


def forget_tensors(mode: FakeTensorMode) -> None:
    """Drops a fake mode's weak references to tensors. torch.utils.swap_tensors refuses tensors that have one, so that a
    module whose parameters are converted so could not be converted once it was compiled."""
    describer = mode.fake_tensor_converter.meta_converter.describer
    describer.lookup_tensor.clear()
    describer.lookup_storage.clear()


@dataclass(frozen=True, slots=True)
class SymbolicFloat:
    """A float of the frame's inputs that varies: where it is, its symbol, and the tensor that a graph gets for it."""

    name: str
    symbol: str
    tensor: torch.Tensor
    value: Any  # a SymFloat

    def fake(self, mode: FakeTensorMode) -> torch.Tensor:
        """The fake tensor of `tensor` in `mode`, whose `item()` is the symbol."""
        fake = mode.from_tensor(self.tensor, static_shapes=True)
        fake.item_memo = self.value
        return fake


def float_tensor(number: float) -> torch.Tensor:
    """The graph input for a float that varies."""
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")
