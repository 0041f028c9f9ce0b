"""From symbolic values to the bytecode that leaves their runtime objects on the stack.

entry.py runs it twice over everything a frame must be able to make again: once dry, to learn which values the graph
has to give out and which sources are read (`Plan`), and once for real. What a value needs beyond that it emits itself
(`Value.rebuild`, `fill`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.effects import Effects
from fxjit.frontend.values.base import NULL, Lazy, Value
from fxjit.frontend.values.traits import WrappedOutput
from fxjit.guards.source import CallSource, ConstSource, Source


@dataclass(slots=True)
class Plan:
    """The findings of the dry run."""

    #: Values that the graph gives out, in the order of its outputs.
    outputs: list[Value] = field(default_factory=list)
    #: Sources read, in the order of the first read.
    sources: dict[Source, None] = field(default_factory=dict)
    #: Objects that the new code holds.
    constants: list[object] = field(default_factory=list)


class Rebuilder:
    """Implements base.Rebuilder. `outputs` and `sources` map to the locals that hold them; the dry run has neither."""

    def __init__(self, asm: Asm, effects: Effects, outputs: Mapping[Value, str] | None = None,
                 sources: Mapping[Source, str] | None = None) -> None:
        self.asm = asm
        self.effects = effects
        self.plan = Plan()
        #: Locals made here; whoever goes on running the frame afterwards deletes them.
        self.temps: list[str] = []
        self._dry = outputs is None
        self._outputs = outputs or {}
        self._sources = sources or {}
        self._built: dict[Value, str] = {}
        #: Classes that were made again.
        self._classes: dict[int, str] = {}
        self._seen_outputs: set[Value] = set()

    def push(self, value: Value) -> None:
        """See base.Rebuilder."""
        if isinstance(value, Lazy) and value.realized is None:
            assert value.source is not None
            self._push_source(value.source)
            return
        value = value.realize()
        value = value if value.part_of is None else value.part_of
        if value is NULL:
            self.asm.push_null()
        elif value in self._built:
            self.asm.load_local(self._built[value])
        elif isinstance(value.source, CallSource) and value.is_constant() and value.as_constant() is None:
            self.asm.load_const(None)  # what has ended stays so
        elif value.source is not None:
            self._push_source(value.source)
        elif value.node is not None and not isinstance(value, WrappedOutput):
            self._push_output(value)
            if self.effects.stored_attrs(value) or getattr(value, "own_dict", None) is not None:
                self._keep(value)
        elif value.is_constant() and not issubclass(value.pytype(), (tuple, frozenset, slice)):
            value.rebuild(self)
        else:
            self._build(value)

    def _push_source(self, source: Source) -> None:
        if isinstance(source, ConstSource) and self._push_class(source.obj):
            return
        self.plan.sources.setdefault(source)
        held = self._sources.get(source)
        if held is not None:
            self.asm.load_local(held)
        else:
            source.load(self.asm)

    def _push_output(self, value: Value) -> None:
        if value not in self._seen_outputs:
            self._seen_outputs.add(value)
            self.plan.outputs.append(value)
        if self._dry:
            self.asm.load_const(None)
        else:
            self.asm.load_local(self._outputs[value])

    def _build(self, value: Value) -> None:
        """Built once, kept in a local: the same value pushed again is the same object."""
        value.rebuild(self)
        if value in self._built:  # something inside holds it, was made first, and made it
            self.asm.pop()
            self.asm.load_local(self._built[value])
            return
        self._keep(value, value.shell)

    def _keep(self, value: Value, unfinished: bool = True) -> None:
        """What is on top of the stack gets a local, and then what it refers to."""
        temp = self.asm.fresh_local("made")
        self.temps.append(temp)
        self._built[value] = temp
        self.asm.store_local(temp)
        self.asm.load_local(temp)
        if unfinished:
            value.fill(self)

    def push_const(self, obj: object) -> None:
        if not self._push_class(obj):
            self.asm.load_const(obj)

    def _push_class(self, obj: object) -> bool:
        """Pushes this run's own one in the place of a class that the trace made; whether `obj` is such a one."""
        maker = self.effects.made_classes.maker_of(obj)
        if maker is None:
            return False
        made = self._classes.get(id(obj))
        if made is None:
            made = self._classes[id(obj)] = self.asm.fresh_local("class")
            self.temps.append(made)
            self.asm.begin_call(maker)
            self.asm.call(0)
            self.asm.store_local(made)
        self.asm.load_local(made)
        return True

    def call(self, fn: Callable[..., object], *args: Value | object) -> None:
        self.asm.begin_call(fn)
        for arg in args:
            if isinstance(arg, Value):
                self.push(arg)
            else:
                self.push_const(arg)
        self.asm.call(len(args))
