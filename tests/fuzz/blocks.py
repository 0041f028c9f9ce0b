"""Random functions out of nested loops, `try` statements, `with` blocks, closures, graph breaks and mutations:
`write(random)` gives the source of a module with `program(x, y, items, n)`.

Everything that happens is written down in `log`. `may(k)` is not traced and raises where `k == n`, so that one program,
called with several `n`, takes several ways. `cut(v)` breaks the graph and gives `v` back; `note(v)` is a call that may be
put off (`config.reorderable_functions`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

PREAMBLE = '''
import contextlib
import functools
import sys
import traceback

import torch

import fxjit

log = []
notes = []


class Mine(Exception):
    pass


ERRORS = [ValueError, KeyError, Mine, IndexError, TypeError]


@fxjit.disable
def may(k, n):
    log.append(("may", k))
    if k == n:
        raise ERRORS[k % 5]("may", k)
    return k


def cut(value=None):
    fxjit.graph_break()
    return value


def note(*values):
    notes.append([str(value.tolist() if isinstance(value, torch.Tensor) else value) for value in values])


def lines(error):
    """What a handler sees of the way that an exception took; of a NameError without the lines, which are not CPython 3.11's
    from one call to the next: warm, it joins loads to the store before, and raises on its line."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.name, None if isinstance(error, NameError) else frame.lineno) for frame in frames]


def state():
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()


class Box:
    def __init__(self, value):
        self.value = value


class Ends(Box):
    """Somebody sees when it goes."""

    def __del__(self):
        log.append(("end", self.value))


class Held(Box):
    """Breaks, and may raise, while it is made."""

    def __init__(self, value, k, n):
        super().__init__(value + k)
        fxjit.graph_break()
        self.value = self.value * 2 + may(k, n)


class Loud(Box):
    """Breaks, and may raise, in what operators and attributes ask of it."""

    __match_args__ = ("value", "n")

    def __init__(self, value, n):
        super().__init__(value)
        self.n = n

    def __getattr__(self, name):
        log.append(("getattr", name))
        if name == "missing":
            raise AttributeError(name)
        return cut(self.n)

    def __eq__(self, other):
        return cut(may(self.n % 3, self.n) == other)

    def __bool__(self):
        log.append("bool")
        return cut(self.n > 3)

    def __add__(self, other):
        with torch.no_grad():
            return cut(self.value + other)

    def __radd__(self, other):
        try:
            return self.value - cut(other)
        finally:
            log.append(("radd", state()))

    def __getitem__(self, k):
        if k > 2:
            raise IndexError(k)
        return cut(k) + may(k, self.n)

    def __len__(self):
        return cut(2)

    def __contains__(self, k):
        fxjit.graph_break()
        return k == self.n

    @property
    def doubled(self):
        return cut(self.value * 2)

    def __call__(self, *args, **named):
        log.append((len(args), sorted(named)))
        fxjit.graph_break()
        return args[0] if args else named.get("x", self.value)


def gathers(first, *rest, scale=1, **named):
    """Arguments of every kind."""
    log.append((len(rest), scale, list(named)))
    total = first * scale
    for each in rest:
        total = total + each
    fxjit.graph_break()
    return total + sum(named.values())


def keeps(held, x):
    """Holds what nobody else does over a break, and past its last use."""
    log.append(held.value)
    x = cut(x + 1)
    log.append("kept")
    return x


def around(fn):
    @functools.wraps(fn)
    def wrapper(*args, **named):
        log.append(("before", fn.__name__))
        try:
            return fn(*args, **named)
        finally:
            fxjit.graph_break()
            log.append(("after", fn.__name__))
    return wrapper


@around
def wrapped(x, k, n=0):
    return cut(x + k) + may(k, n)


def recurses(x, k, n):
    if k <= 0:
        return cut(x)
    try:
        return recurses(x + 1, k - 1, n) * may(k, n)
    except KeyError as error:
        log.append(lines(error))
        return x


def delegates(x, k, n):
    try:
        got = yield from yields(x, k, n)
    except Mine as error:
        log.append(("thrown in", error.args))
        got = None
    yield cut(got)
    return k


def deep(x, k, n):
    x = x + k
    try:
        x = middle(x, k, n) * 2
    except KeyError as error:
        log.append(("deep", error.args, type(error.__context__)))
        x = cut(x)
    return x + 1


def middle(x, k, n):
    with torch.no_grad():
        x = inner(x * 2, k, n)
    return cut(x - 1)


def inner(x, k, n):
    log.append(("inner", state()))
    x = x + may(k, n)
    fxjit.graph_break()
    if k == n - 1:
        raise KeyError(k)
    return x * 3


def plain_depth(x, k):
    return plain_middle(x + k) + k


def plain_middle(x):
    y = x * 2
    y = [cut(y) for _ in range(2)][1]
    return y + x


def yields(x, k, n):
    try:
        for i in range(3):
            x = x + may(k + i, n)
            yield x
            if i == k:
                x = cut(x)
    except GeneratorExit:
        log.append("closed early")
        raise
    finally:
        log.append(("drained", state()))


class Manager:
    def __init__(self, name, swallow=False, breaks=False, fails=None):
        self.name, self.swallow, self.breaks, self.fails = name, swallow, breaks, fails

    def __enter__(self):
        log.append(("in", self.name))
        if self.breaks:
            fxjit.graph_break()
        return self

    def __exit__(self, kind, error, trace):
        log.append(("out", self.name, kind, None if error is None else error.args, state()))
        if self.breaks:
            fxjit.graph_break()
        if self.fails is not None:
            raise self.fails("exit")
        return self.swallow


@contextlib.contextmanager
def generated(name, swallow=None):
    log.append(("begin", name))
    try:
        yield name
    except swallow or ():
        log.append(("swallowed", name))
    finally:
        log.append(("end", name, state()))


@contextlib.contextmanager
def quiet():
    with torch.no_grad():
        yield


def stacked(name):
    stack = contextlib.ExitStack()
    stack.callback(log.append, ("closed", name))
    stack.enter_context(Manager(name))
    return stack

'''

ERRORS = ("ValueError", "KeyError", "Mine", "IndexError", "TypeError")
CAUGHT = (*ERRORS, "Exception", "(ValueError, Mine)", "LookupError")


class Writer:
    """Writes one function."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.budget = random.randint(5, 16)
        self.fresh = 0
        self.loops = 0
        self.functions = 0
        self.in_handler = False

    # -- pieces --------------------------------------------------------------------------------------------------

    def chance(self, percent: int) -> bool:
        return self.random.randint(0, 99) < percent

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def number(self) -> int:
        return self.random.randint(0, 7)

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def tensor(self) -> str:
        k = self.number()
        text = self.pick("x", "y", "x", "y", f"(x + {k})", f"(y * {k})", "(x - y)", "(x @ y)", "torch.relu(x)", "x.clone()",
                         "box.value", "(x * 2 + y)", "y.detach()")
        return f"cut({text})" if self.chance(6) else text

    def condition(self) -> str:
        k = self.number()
        return self.pick(f"n > {k}", f"n == {k}", f"n in ({k}, {self.number()})", "len(items) > 2", f"items[-1] != {k}",
                         f"x.sum() > {k - 3}", "cut(True)", "torch.is_grad_enabled()")

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, depth: int, size: int) -> None:
        wrote = len(self.lines)
        for _ in range(self.random.randint(1, size)):
            if self.budget <= 0:
                break
            self.statement(depth)
        if len(self.lines) == wrote:
            self.emit(depth, self.pick("pass", f"may({self.number()}, n)", f"log.append({self.number()})"))

    def statement(self, depth: int) -> None:
        self.budget -= 1
        if depth > 5 or self.chance(50):
            self.simple(depth)
        else:
            self.random.choice((self.if_, self.for_, self.while_, self.try_, self.try_, self.try_, self.with_, self.with_,
                                self.with_, self.function, self.generator, self.match, self.class_, self.sends))(depth)

    def simple(self, depth: int) -> None:
        k = self.number()
        options = [
            f"x = {self.tensor()}", f"y = {self.tensor()} + {k}", f"x = x + {self.tensor()}", "fxjit.graph_break()",
            "fxjit.graph_break()", f"may({k}, n)", f"may({k}, n)", f"log.append({k})", "log.append(state())",
            "log.append(type(sys.exc_info()[1]))", f"items.append({k})", f"items[0] = {k}", f"items[-1] += may({k}, n)",
            f"x.add_({k})", "y.mul_(2)", f"box.value = {self.tensor()}", "log.append(x.clone())", "note(x, items)",
            f"note({k}, y)", f"x, y = y, cut({self.tensor()})", "log.append(list(items))", "x.zero_()", "box.value.add_(1)",
            f"table[{k}] = x", f"y = table.get({k}, y)", f"x = {self.tensor()}.to(torch.float64).to(torch.float32)",
            f"z = {self.tensor()}",
            "x = x + z", f"z = {self.tensor()}", "y = z.clone()", "del z" if self.chance(20) else "z = z + 1",
            f"x = deep(x, {k}, n)", f"y = plain_depth(y, {k})", f"box = Held(x, {k}, n)", f"x = x + next(yields(y, {k}, n))",
            f"x = sum(yields(x, {k}, n))", f"y = sum([cut(v) * {k} for v in (x, y)])", "log.append([may(v, n) for v in items])",
            f"table = {{v: x + v for v in items[:{k}]}}", f"items = [v for v in items if cut(v) != {k}]",
            "log.append([(lambda: x + v)() for v in items])", f"log.append(any(cut(v) == {k} for v in items))",
        ]  # fmt: skip
        if self.chance(35):
            options = self.of_objects(k)
        if self.chance(6):
            options = ["del x", "del y; y = x", f"del box; box = Box(x + {k})", "del items[0]", "del table"]
        if self.chance(6):
            options = [f"last = Ends({k})", f"last = Ends({k}); cut()", "last = None", f"last = [Ends({k})]; cut()",
                       "last = 0; del last", f"keeps(Ends({k}), cut(x))", f"y = keeps(Ends(may({k}, n)), y)"]
        if self.chance(25):
            options = [f"if n == {k}: raise {self.pick(*ERRORS)}({k})", f"if n > {k}: return x, y, 'early'",
                       "x = x[7]", f"assert n != {k}", "{}[n]"]
            if self.loops:
                options += [f"if n == {k}: break", f"if n > {k}: continue", "break", "continue"] * 2
            if self.in_handler:
                options += ["raise", f"raise {self.pick(*ERRORS)}({k})"] * 2
        self.emit(depth, self.pick(*options))

    def of_objects(self, k: int) -> list[str]:
        """Calls of every kind, operators of the user's classes, expressions that jump, generators that are handed values."""
        loud, t = f"Loud({self.tensor()}, n)", self.tensor()
        return [
            f"x = gathers(x, y, *items[:{k}], scale=2)", f"y = gathers(*(x, y), **{{'a': {k}, 'b': cut(2)}})",
            f"x = gathers(x, *[cut(v) for v in items], scale=may({k}, n))", f"x = wrapped(x, {k}, n=n)",
            f"x = wrapped(k={k}, x=x)", f"y = recurses(y, {k % 4}, n)", f"x = x + {loud}", f"x = {loud} + y",
            f"log.append({loud} == {k})", f"y = {loud}.doubled", f"log.append({loud}.other)", f"y = {loud}(x, *items, k={k})",
            f"x = {loud}(x=y)", f"log.append([v for v in {loud}])", f"log.append({k} in {loud})", f"log.append(len({loud}))",
            f"y = y if {loud} else x", f"x = x if {loud} and n else {t}", f"log.append(getattr({loud}, 'missing', {k}))",
            f"log.append(0 < may({k}, n) < cut(n) < 9)", f"x = y if cut(n) > {k} else {t}",
            f"log.append((w := may({k}, n)) + w)", "first, *others = items; log.append((first, cut(others)))",
            f"a, (b, *c) = {k}, cut([x, y]); y = b + a; log.append(len(c))", f"box.value += cut({k})",
            f"table.setdefault({k}, cut(x)); items[:2] = [cut(v) + may({k}, n) for v in items[:2]]",
            f"items[may(0, n)] += cut({k})", f"log.append(f'{{may({k}, n)}} {{cut(n)!r:>4}}')",
            "log.append({v: cut(w) for v, w in enumerate(items)})", "log.append(sorted({cut(v) for v in items}))",
            "log.append(sorted(items, key=lambda v: -cut(v)))",
            "log.append([v + w for v in items[:2] for w in items if v != cut(w)])",
            f"log.append(list(map(lambda v: cut(v) + may({k}, n), items[:2])))", f"assert cut(n != {k}), may(1, n)",
            "x = functools.reduce(lambda a, b: cut(a + b), items, x)", f"x = functools.partial(gathers, x, scale={k})(y)",
            f"y = sum(v for v in delegates(y, {k}, n) if v is not None)",
            "log.append(sys.exc_info()[1] and lines(sys.exc_info()[1]))",
            f"(lambda v={k}, *, w=cut(2): log.append((v, w)))()", "shared = x; cut(); y = y + shared",
        ]  # fmt: skip

    def if_(self, depth: int) -> None:
        self.emit(depth, f"if {self.condition()}:")
        self.block(depth + 1, 2)
        if self.chance(40):
            self.emit(depth, "else:")
            self.block(depth + 1, 2)

    def for_(self, depth: int) -> None:
        self.emit(depth, f"for {self.name('i')} in {self.pick('range(2)', '[1, 2]', 'list(items)[:2]', 'range(3)')}:")
        self.loop(depth)

    def while_(self, depth: int) -> None:
        name = self.name("w")
        self.emit(depth, f"{name} = 0")
        self.emit(depth, f"while {name} < {self.pick('1', '2', '3')}:")
        self.emit(depth + 1, f"{name} += 1")
        self.loop(depth)

    def loop(self, depth: int) -> None:
        self.loops += 1
        self.block(depth + 1, 3)
        self.loops -= 1
        if self.chance(15):
            self.emit(depth, "else:")
            self.block(depth + 1, 1)

    def try_(self, depth: int) -> None:
        self.emit(depth, "try:")
        self.block(depth + 1, 3)
        handlers = self.random.randint(0, 2)
        for _ in range(handlers):
            name = self.name("e")
            bound = self.chance(60)
            self.emit(depth, f"except {self.pick(*CAUGHT)}{f' as {name}' if bound else ''}:")
            if bound:
                self.emit(depth + 1, self.pick(
                    f"log.append(({name}.args, type({name}.__context__)))", f"raise Mine(1) from {name}",
                    f"raise Mine({self.number()}) from None", f"raise {name}", f"{name}.__cause__ = Mine(7); raise",
                    f"log.append((type({name}.__cause__), {name}.__suppress_context__)); del {name}",
                    f"log.append(type({name}))", f"x = cut(x); log.append(repr({name}))", f"log.append(lines({name}))",
                    f"{name}.add_note('note'); cut(); log.append({name}.__notes__)",
                    f"raise Mine(lines({name})) from ValueError({self.number()})"))
            before, self.in_handler = self.in_handler, True
            self.block(depth + 1, 2)
            self.in_handler = before
        if handlers and self.chance(30):
            self.emit(depth, "else:")
            self.block(depth + 1, 1)
        if not handlers or self.chance(35):
            self.emit(depth, "finally:")
            self.block(depth + 1, 2)
            if self.chance(20):
                leave = ["return x, y, 'finally'", f"if n == {self.number()}: return y, x, 'finally'", "return cut((x, y))"]
                leave += ["break", "continue", f"if n > {self.number()}: break"] if self.loops else []
                self.emit(depth + 1, self.pick(*leave))

    def generator(self, depth: int) -> None:
        """A generator over the names here, drained, left early, or closed."""
        if self.functions > 1:
            self.simple(depth)
            return
        name = self.name("g")
        with self.inside_function():
            self.emit(depth, f"def {name}(x, y):")
            self.block(depth + 1, 2)
            self.emit(depth + 1, "yield x")
            self.block(depth + 1, 2)
            self.emit(depth + 1, "yield y")
        made = f"{name}(x, y)"
        item = self.name("v")
        use = self.pick("drain", "first", "loop", "close")
        if use == "drain":
            self.emit(depth, f"log.append([type({item}) for {item} in {made}])")
        elif use == "first":
            self.emit(depth, f"y = next({made}, y)")
        elif use == "close":
            self.emit(depth, f"{item} = {made}; y = next({item}, y); {item}.close()")
        else:
            self.emit(depth, f"for {item} in {made}:")
            self.emit(depth + 1, f"y = y + {item} if isinstance({item}, torch.Tensor) else y")
            self.loop(depth)

    def match(self, depth: int) -> None:
        k = self.number()
        subject = self.pick("items", "(n, items)", "Loud(x, n)", "table", "n", "cut(Box(n))",
                            f"{{'n': n, 'k': {k}}}")
        self.emit(depth, f"match {subject}:")
        cases = [f"{k}", f"[{k}, *_]", "[first, *rest]", "(m, [_, last])", f"Loud(value, {k})", f"Box(value={k})",
                 "{'n': held, **others}", f"[_, {k} | 1 as held, *_] if cut(held)", f"int() if may({k}, n)", "str() | None"]
        for case in self.random.sample(cases, self.random.randint(1, 3)):
            self.emit(depth + 1, f"case {case}:")
            self.block(depth + 2, 2)
        if self.chance(50):
            self.emit(depth + 1, "case _:")
            self.block(depth + 2, 1)

    def class_(self, depth: int) -> None:
        """A class of its own, whose method is called, over the names here."""
        if self.functions > 1:
            self.simple(depth)
            return
        name, k = self.name("C"), self.number()
        self.emit(depth, f"class {name}({self.pick('Box', 'Loud', 'Held')}):")
        self.emit(depth + 1, self.pick(f"level = {k}", f"level = may({k}, n)", "level = cut(n)"))
        with self.inside_function():
            self.emit(depth + 1, "def __init__(self, value):")
            self.emit(depth + 2, self.pick("self.value, self.n = value, n", "super().__init__(value, n)",
                                            "Box.__init__(self, value)"))
            self.emit(depth + 1, "def method(self, x, y):")
            self.block(depth + 2, 3)
            self.emit(depth + 2, self.pick("return self.value + x", "return self.level", "return cut(self).value"))
        made = self.name("o")
        self.emit(depth, f"{made} = {name}({self.tensor()}).method(x, y)")
        self.emit(depth, f"y = {made} + y")

    def sends(self, depth: int) -> None:
        """A generator that is handed values and exceptions in the middle of blocks of its own."""
        if self.functions > 1:
            self.simple(depth)
            return
        name, made, k = self.name("g"), self.name("h"), self.number()
        with self.inside_function():
            self.emit(depth, f"def {name}(x, y):")
            self.emit(depth + 1, self.pick("try:", f"with {self.manager()}:"))
            opened = self.lines[-1].strip()
            self.block(depth + 2, 2)
            self.emit(depth + 2, "x = (yield x)")
            self.block(depth + 2, 2)
            if opened == "try:":
                self.emit(depth + 1, self.pick(f"except {self.pick(*CAUGHT)}:", "finally:"))
                self.block(depth + 2, 2)
            self.emit(depth + 1, "yield y")
        self.emit(depth, f"{made} = {name}(x, y)")
        self.emit(depth, f"y = next({made})")
        self.emit(depth, self.pick(f"log.append(type({made}.send(y)))", f"x = {made}.throw({self.pick(*ERRORS)}({k}))",
                                   f"{made}.close()", f"del {made}", f"{made} = None", f"may({k}, n)"))

    @contextmanager
    def inside_function(self) -> Iterator[None]:
        """What is written meanwhile stands in no loop and no handler of the code around it."""
        before = self.loops, self.in_handler
        self.loops, self.in_handler = 0, False
        self.functions += 1
        yield
        self.functions -= 1
        self.loops, self.in_handler = before

    def manager(self) -> str:
        k = self.number()
        return self.pick(
            f"Manager({k})", f"Manager({k}, True)", f"Manager({k}, breaks=True)", f"Manager({k}, fails=Mine)",
            f"generated({k})", f"generated({k}, {self.pick(*ERRORS)})", "quiet()", "torch.no_grad()", "torch.enable_grad()",
            f"contextlib.suppress({self.pick(*ERRORS)})", f"stacked({k})", "contextlib.nullcontext(2)",
            "contextlib.ExitStack()", "torch.autocast('cpu', enabled=False)",
            "torch.set_grad_enabled(False)", "torch.random.fork_rng()",
            "torch.profiler.record_function('here')",
        )  # fmt: skip

    def with_(self, depth: int) -> None:
        managers = self.manager()
        if self.chance(30):
            managers += f", {self.manager()}"
        if self.chance(25):
            managers += f" as {self.name('m')}"
        self.emit(depth, f"with {managers}:")
        self.block(depth + 1, 3)

    def function(self, depth: int) -> None:
        """A function of its own, or a closure over the names here."""
        if self.functions > 1:
            self.simple(depth)
            return
        name = self.name("f")
        closure = self.chance(50)
        held = self.name("c")
        if closure and self.chance(40):
            self.emit(depth, f"{held} = {self.tensor()}")
        else:
            held = ""
        with self.inside_function():
            self.emit(depth, f"def {name}({'' if closure else 'x, y'}):")
            if closure:
                self.emit(depth + 1, f"nonlocal x, y{', ' + held if held else ''}")
            self.block(depth + 1, 3)
            if held:
                self.emit(depth + 1, self.pick(f"del {held}", f"{held} = {held} + 1", f"{held} = cut({held})"))
            self.emit(depth + 1, "return x")
        result = self.name("r")
        self.emit(depth, f"{result} = {name}({'' if closure else 'x, y'})")
        self.emit(depth, f"y = {result} if isinstance({result}, torch.Tensor) else y")
        if held:
            self.emit(depth, f"y = y + {held}")

    def write(self) -> str:
        self.emit(0, "def program(x, y, items, n):")
        self.emit(1, "global shared")
        self.emit(1, "box, table = Box(x), {}")
        if self.chance(85):
            self.emit(1, "z = x - y")
        while self.budget > 0:
            self.statement(1)
        self.emit(1, "log.append((state(), type(sys.exc_info()[1])))")
        self.emit(1, "return x, y, box.value, table")
        return PREAMBLE + "\n".join(self.lines) + "\n"


def write(random: Random) -> str:
    """The source of a module with a function `program(x, y, items, n)`."""
    return Writer(random).write()
