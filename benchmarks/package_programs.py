"""The programs of `--packages`: uses of packages of plain Python that people keep around their models.

Each is what the package's first example does, with a model in it: events and state machines, expressions and parsers,
configuration and validation. `container_programs` has registries, pipelines, decorators, caches and containers,
`torch_package_programs` packages made of torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.library_programs import of_training
from benchmarks.programs import Arguments, Builder, Program

PACKAGES: dict[str, Builder] = {}
#: The packages of each, for the table.
USES: dict[str, str] = {}


#: What is registered by name in a place of the package's takes the next number.
_NUMBERS = itertools.count()


def package(*names: str) -> Callable[[Builder], Builder]:
    def sign_up(builder: Builder) -> Builder:
        PACKAGES[builder.__name__] = builder
        USES[builder.__name__] = ", ".join(names)
        return builder

    return sign_up


def layers(*sizes: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(one, other) for one, other in itertools.pairwise(sizes))


def rows_of(width: int = 8, name: str = "x") -> Callable[[int], Arguments]:
    return lambda batch: {name: torch.randn(batch, width)}


class Around(nn.Module):
    """A model whose forward is a function of it."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.way = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.way(self, *args, **kwargs)


def around(forward: Callable[..., Any], inputs: Callable[[int], Arguments] | None = None, **parts: Any) -> Program:
    return of_training(Around(forward, **parts), inputs or rows_of(), (4, 6, 8))


# -- states, events, rules ---------------------------------------------------------------------------------------------


@package("python-statemachine")
def phases_statemachine() -> Program:
    from statemachine import State, StateMachine

    class Phases(StateMachine):  # type: ignore[misc]
        warm = State(initial=True)
        steady = State()
        advance = warm.to(steady) | steady.to(steady)

        def on_enter_steady(self) -> None:
            self.rate = 0.5

    phases = Phases()

    def forward(self: Any, x: torch.Tensor) -> Any:
        scale = 0.1 if phases.current_state == phases.warm else phases.rate
        phases.advance()
        return self.linear(x) * scale, phases.current_state.id

    return around(forward, linear=nn.Linear(8, 4))


@package("pyee")
def events_pyee() -> Program:
    from pyee.base import EventEmitter

    emitter = EventEmitter()
    seen: list[float] = []
    emitter.on("hidden", lambda h, step: seen.append(float(step) + h.shape[0]))

    def forward(self: Any, x: torch.Tensor) -> Any:
        for step, layer in enumerate(self.layers):
            x = layer(x).relu()
            emitter.emit("hidden", x, step=step)
        return x, list(seen)

    return around(forward, layers=layers(8, 16, 4))


@package("pypubsub")
def events_pubsub() -> Program:
    from pubsub import pub

    shapes: list[Any] = []

    def listener(hidden: torch.Tensor, name: str) -> None:
        shapes.append((name, tuple(hidden.shape)))

    topic = f"layers{next(_NUMBERS)}"
    pub.subscribe(listener, topic)

    def forward(self: Any, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            pub.sendMessage(topic, hidden=x, name=type(layer).__name__)
        return x, list(shapes), listener

    program = around(lambda self, x: forward(self, x)[:2], layers=layers(8, 16, 4))
    program.fn.listener = listener  # pubsub holds its listeners weakly
    return program


@package("reactivex")
def stream_reactivex() -> Program:
    import reactivex
    from reactivex import operators as ops

    def forward(self: Any, x: torch.Tensor) -> Any:
        found: list[torch.Tensor] = []
        reactivex.from_iterable(list(x.split(1))).pipe(
            ops.map(lambda row: self.linear(row).relu()), ops.scan(lambda total, row: total + row)
        ).subscribe(found.append)
        return torch.cat(found)

    return around(forward, linear=nn.Linear(8, 4))


@package("automata-lib")
def automaton_gate() -> Program:
    from automata.fa.dfa import DFA

    even = DFA(
        states={"even", "odd"}, input_symbols={"a", "r"}, initial_state="even", final_states={"even"},
        transitions={"even": {"a": "odd", "r": "even"}, "odd": {"a": "even", "r": "odd"}},
    )

    def forward(self: Any, x: torch.Tensor) -> Any:
        for turn, word in enumerate(("aa", "ara", "ar", "rr")):
            x = self.layers[turn % 2](x)
            x = x.relu() if even.accepts_input(word) else x.tanh()
        return x

    return around(forward, layers=layers(8, 8, 8))


@package("portion")
def intervals_portion() -> Program:
    import portion

    schedule = portion.IntervalDict({portion.closedopen(0, 2): 0.1, portion.closedopen(2, 5): 1.0, portion.closed(5, 9): 0.5})

    def forward(self: Any, x: torch.Tensor) -> Any:
        total = x.new_zeros(x.shape[0], 4)
        for depth in range(3):
            total = total + self.linear(x) * schedule[depth * 2]
        inside = portion.closed(0, 3) & portion.open(2, 8)
        return total, 2.5 in inside, str(inside)

    return around(forward, linear=nn.Linear(8, 4))


# -- expressions and parsers -------------------------------------------------------------------------------------------


@package("simpleeval")
def expression_simpleeval() -> Program:
    from simpleeval import SimpleEval

    evaluator = SimpleEval(functions={"tanh": torch.tanh, "relu": torch.relu})

    def forward(self: Any, x: torch.Tensor) -> Any:
        evaluator.names = {"x": self.linear(x), "gain": 2.0}
        return evaluator.eval("tanh(x) * gain + relu(x - 0.5)")

    return around(forward, linear=nn.Linear(8, 4))


@package("pyparsing")
def grammar_pyparsing() -> Program:
    import pyparsing as pp

    number = pp.pyparsing_common.number()
    name = pp.Word(pp.alphas)
    block = pp.Group(name("kind") + pp.Optional(pp.Suppress("(") + number("size") + pp.Suppress(")")))
    grammar = pp.DelimitedList(block, delim=">")

    def forward(self: Any, x: torch.Tensor) -> Any:
        for part in grammar.parse_string("linear > relu > scale(3) > linear > tanh"):
            if part.kind == "linear":
                x = self.linear(x)
            elif part.kind == "scale":
                x = x * part.size
            else:
                x = getattr(torch, part.kind)(x)
        return x

    return around(forward, linear=nn.Linear(8, 8))


@package("parsimonious")
def grammar_parsimonious() -> Program:
    from parsimonious.grammar import Grammar
    from parsimonious.nodes import NodeVisitor

    grammar = Grammar(
        r"""
        sum = product ("+" product)*
        product = name ("*" name)*
        name = ~"[a-z]"
        """
    )

    class Compute(NodeVisitor):  # type: ignore[misc]
        def __init__(self, values: dict[str, torch.Tensor]) -> None:
            self.values = values

        def visit_sum(self, node: Any, children: Any) -> Any:
            first, rest = children
            for _, each in rest:
                first = first + each
            return first

        def visit_product(self, node: Any, children: Any) -> Any:
            first, rest = children
            for _, each in rest:
                first = first * each
            return first

        def visit_name(self, node: Any, children: Any) -> torch.Tensor:
            return self.values[node.text]

        def generic_visit(self, node: Any, children: Any) -> Any:
            return children

    tree = grammar.parse("a*b+c*a")

    def forward(self: Any, x: torch.Tensor) -> Any:
        return Compute({"a": self.linear(x), "b": x.sigmoid(), "c": x.tanh()}).visit(tree)

    return around(forward, linear=nn.Linear(8, 8))


@package("ply")
def tokens_ply() -> Program:
    from ply import lex

    class Lexer:
        tokens = ("NAME", "NUMBER", "OP")
        t_NAME = r"[a-z]+"
        t_OP = r"[+*]"
        t_ignore = " "

        def t_NUMBER(self, t: Any) -> Any:
            r"\d+"
            t.value = int(t.value)
            return t

        def t_error(self, t: Any) -> None:
            t.lexer.skip(1)

    lexer = lex.lex(module=Lexer())

    def forward(self: Any, x: torch.Tensor) -> Any:
        lexer.input("relu 2 + tanh 3")
        total = torch.zeros_like(x)
        current = x
        for token in lexer:
            if token.type == "NAME":
                current = getattr(torch, token.value)(self.linear(x))
            elif token.type == "NUMBER":
                total = total + token.value * current
        return total

    return around(forward, linear=nn.Linear(8, 8))


@package("construct")
def bytes_construct() -> Program:
    from construct import Array, Float32l, Int8ub, Struct, this

    record = Struct("count" / Int8ub, "values" / Array(this.count, Float32l))
    stored = record.build({"count": 4, "values": [0.5, 1.0, -2.0, 0.25]})

    def forward(self: Any, x: torch.Tensor) -> Any:
        parsed = record.parse(stored)
        return self.linear(x) * torch.tensor(list(parsed["values"])), parsed.count

    return around(forward, linear=nn.Linear(8, 4))


@package("parse")
def names_parse() -> Program:
    import parse

    pattern = parse.compile("layer{index:d}.{kind:w}={scale:g}")

    def forward(self: Any, x: torch.Tensor) -> Any:
        for line in ("layer0.relu=2.0", "layer1.tanh=0.5"):
            found = pattern.parse(line)
            x = getattr(torch, found["kind"])(self.layers[found["index"]](x)) * found["scale"]
        return x

    return around(forward, layers=layers(8, 16, 4))


# -- configuration and validation --------------------------------------------------------------------------------------


@package("yacs")
def config_yacs() -> Program:
    from yacs.config import CfgNode

    config = CfgNode()
    config.MODEL = CfgNode({"DEPTH": 2, "ACT": "gelu", "SCALE": 0.5})
    config.freeze()

    def forward(self: Any, x: torch.Tensor) -> Any:
        local = config.clone()
        local.defrost()
        local.merge_from_list(["MODEL.SCALE", 2.0])
        for _ in range(config.MODEL.DEPTH):
            x = getattr(nn.functional, config.MODEL.ACT)(self.linear(x)) * local.MODEL.SCALE
        return x

    return around(forward, linear=nn.Linear(8, 8))


@package("dotmap", "flatten-dict")
def config_dotmap() -> Program:
    from dotmap import DotMap
    from flatten_dict import flatten, unflatten

    config = DotMap({"model": {"depth": 2, "scale": 0.5}, "names": ["a", "b"]})

    def forward(self: Any, x: torch.Tensor) -> Any:
        out = DotMap()
        for depth in range(config.model.depth):
            x = self.linear(x) * config.model.scale
            out.hidden[config.names[depth]] = x.mean()
        flat = flatten(out.toDict(), reducer="dot")
        return x, flat, unflatten(flat, splitter="dot")

    return around(forward, linear=nn.Linear(8, 8))


@package("schema")
def validated_schema() -> Program:
    from schema import And, Optional, Or, Schema, Use

    rules = Schema({"depth": And(int, lambda n: n > 0), "scale": Use(float),
                    Optional("act", default="relu"): Or("relu", "tanh")})

    def forward(self: Any, x: torch.Tensor) -> Any:
        config = rules.validate({"depth": 2, "scale": "0.5"})
        for _ in range(config["depth"]):
            x = getattr(torch, config["act"])(self.linear(x)) * config["scale"]
        return x

    return around(forward, linear=nn.Linear(8, 8))


@package("param")
def parameterized_param() -> Program:
    import param

    class Scaling(param.Parameterized):  # type: ignore[misc]
        gain = param.Number(default=1.0, bounds=(0, 10))
        act = param.Selector(objects=["relu", "tanh"])
        steps = param.Integer(default=0)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return getattr(torch, self.act)(x) * self.gain

    scaling = Scaling(gain=2.0)

    def forward(self: Any, x: torch.Tensor) -> Any:
        scaling.gain = 0.5 if scaling.gain > 1 else 2.0
        return scaling(self.linear(x)), scaling.steps

    return around(forward, linear=nn.Linear(8, 4))


@package("dataclasses-json", "typing-inspect")
def config_dataclasses_json() -> Program:
    from dataclasses import dataclass, field

    from dataclasses_json import dataclass_json

    @dataclass_json
    @dataclass
    class Layer:
        scale: float = 1.0
        act: str = "relu"

    @dataclass_json
    @dataclass
    class Config:
        layers: list[Layer] = field(default_factory=list)

    config = Config([Layer(2.0, "tanh"), Layer(0.5)])

    def forward(self: Any, x: torch.Tensor) -> Any:
        for layer, each in zip(self.layers, config.layers, strict=True):
            x = getattr(torch, each.act)(layer(x)) * each.scale
        return x, config.to_dict()

    return around(forward, layers=layers(8, 16, 4))


@package("jmespath")
def queries_jmespath() -> Program:
    import jmespath

    query = jmespath.compile("blocks[?enabled].{name: name, scale: scale}")
    config = {"blocks": [{"name": "relu", "scale": 2.0, "enabled": True}, {"name": "tanh", "scale": 1.0, "enabled": False},
                         {"name": "sigmoid", "scale": 0.5, "enabled": True}]}

    def forward(self: Any, x: torch.Tensor) -> Any:
        for each in query.search(config):
            x = getattr(torch, each["name"])(self.linear(x)) * each["scale"]
        return x

    return around(forward, linear=nn.Linear(8, 8))


@package("lenses")
def updates_lenses() -> Program:
    from lenses import lens

    def forward(self: Any, x: torch.Tensor) -> Any:
        state = {"hidden": [x, self.linear(x)], "step": 1}
        state = lens["hidden"].Each().modify(torch.tanh)(state)
        state = lens["step"].set(2)(state)
        return lens["hidden"][1].get()(state) * state["step"], state["hidden"][0]

    return around(forward, linear=nn.Linear(8, 4))


@package("deepdiff")
def compared_deepdiff() -> Program:
    from deepdiff import DeepDiff

    before = {"depth": 2, "scale": 0.5, "act": "relu"}

    def forward(self: Any, x: torch.Tensor) -> Any:
        after = dict(before, scale=2.0, act="tanh")
        changed = DeepDiff(before, after)["values_changed"]
        x = self.linear(x)
        for path in sorted(changed):
            value = changed[path]["new_value"]
            x = x * value if isinstance(value, float) else getattr(torch, value)(x)
        return x

    return around(forward, linear=nn.Linear(8, 8))
