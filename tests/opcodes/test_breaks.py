"""Programs with graph breaks in odd places: what is on the stack, in cells, in blocks and in flight survives them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def cut(value=None):
    """A call that breaks the graph and gives its argument back."""
    fxjit.graph_break()
    return value


class Box:
    def __init__(self, value):
        self.value = value
        self.log = []

    def add(self, amount):
        self.value = self.value + amount
        cut()
        self.log.append(amount)
        return self

    @property
    def cut_value(self):
        return cut(self.value)


def in_expressions(x):
    return (x + 1) * cut(x) + [x, cut(x * 2)][1] - {"k": cut(3)}["k"] + (x, *cut((x, x)))[2]


def in_arguments(x):
    def inner(a, *rest, k, **more):
        return a + sum(rest) + k + more["z"]

    return inner(x, cut(1), 2, k=cut(3), **{"z": cut(x)})


def in_conditions(x):
    if cut(True) and (y := cut(x)) is not None:
        x = y + 1
    return x if cut(0) else x * 2


def in_subscripts(x):
    items = [x, x + 1, x + 2]
    items[cut(0)] = cut(x * 5)
    items[cut(1)] += 1
    return items, x[cut(0) : cut(2)]


def in_f_strings(x):
    return x + 1, f"{cut('a')}-{cut(3):>4}-{'b'}"


def in_displays(x):
    return {1: x, 2: cut(x)}, [1, cut(2), *cut([3])], {cut(1), 2}, (cut(1), cut(2))


def in_unpacking(x):
    a, (b, c) = cut((x, (1, 2)))
    first, *rest = cut([1, x, 3])
    return a + b, c, first, rest


def in_comparisons(x):
    return x, 1 < cut(2) < 3, cut(1) in [1, 2], cut(None) is None, not cut(0)


def in_attributes(x):
    box = Box(x)
    box.value = cut(x * 2)
    y = box.cut_value
    box.add(1).add(2)
    return y, box


def in_closures(x):
    total = x
    count = 0

    def add(amount):
        nonlocal total, count
        total = total + cut(amount)
        count += 1

    add(1)
    cut()
    add(x)
    return total, count


def returns_closures(x):
    n = 1
    cut()

    def read():
        return n

    def write(value):
        nonlocal n
        n = value

    cut()
    write(5)
    return x + 1, read()


def with_grad_mode(x):
    with torch.no_grad():
        y = x * 2
        cut()
        z = y + 1
    return y, z, torch.is_grad_enabled()


def with_null_context(x):
    with contextlib.nullcontext(3) as n, torch.no_grad():
        y = x * n
        cut()
        return y + 1


def in_a_user_context(x):
    @contextlib.contextmanager
    def manager(log):
        log.append("in")
        yield
        log.append("out")

    log = []
    with manager(log):
        y = x * 2
        cut()
        y = y + 1
    return y, log


def in_a_loop(x):
    for index in range(3):
        x = x + index
        cut()
    return x


def in_a_while_loop(x):
    n = 0
    while n < 3:
        x = x * 2
        n = cut(n + 1)
    return x


def in_a_try(x):
    try:
        y = x + 1
        cut()
        raise ValueError("v")
    except ValueError as error:
        return y, str(error)
    finally:
        cut()


def in_a_handler(x):
    try:
        raise KeyError("k")
    except KeyError:
        x = x + 1
        cut()
    return x * 2


def around_exceptions(x):
    cut()
    try:
        x = x + 1
        raise ValueError
    except ValueError:
        x = x * 2
    cut()
    return x


def in_a_comprehension(x):
    return [cut(x + i) for i in range(2)], {i: cut(i) for i in range(2)}


def in_a_generator(x):
    def gen():
        for i in range(3):
            cut()
            yield x + i

    return list(gen()), sum(cut(i) for i in range(3))


def after_a_generator_has_started(x):
    def gen():
        yield x + 1
        yield x + 2

    it = gen()
    first = next(it)
    cut()
    return first, next(it)


def with_iterators_alive(x):
    it = iter([1, 2, 3])
    first = next(it)
    pairs = zip([1, 2], [3, 4])
    next(pairs)
    cut()
    return x + first, list(it), list(pairs)


def with_a_partial_alive(x):
    import functools

    double = functools.partial(torch.mul, 2)
    method = [1, 2].append
    cut()
    method(3)
    return double(x), method.__self__


def with_shared_objects(x):
    shared = [x]
    a, b = {"s": shared}, (shared,)
    cut()
    shared.append(x + 1)
    return a["s"] is b[0], a, b


def with_a_cycle(x):
    node = {"x": x}
    node["self"] = node
    cut()
    return node["self"]["self"] is node, node["x"] + 1


def deleting_names(x):
    y = x + 1
    z = y * 2
    del y
    cut()
    try:
        return y  # noqa: F821
    except UnboundLocalError:
        return z


def recursive(x, n=3):
    if n == 0:
        return cut(x)
    return recursive(x + n, n - 1) * 2


def in_a_nested_call(x):
    def outer(y):
        def inner(z):
            z = z + 1
            cut()
            return z * 2

        return inner(y + 1) + 1

    return outer(x) + outer(x)


def through_star_args(x):
    def forward(fn, *args, **kwargs):
        return fn(*args, **kwargs)

    return forward(cut, x) + forward(lambda v, w=1: v + w, x, w=cut(2))


def branching(x):
    if x.sum() > 0:
        y = x + 1
    elif x.mean() < -1:
        y = x - 1
    else:
        y = x
    z = y if y.max() > 1 else -y
    return z * 2


def branching_with_a_stack(x):
    return [x, x + 1 if x.sum() > 0 else x - 1, 3], x * (2 if x.min() > 0 else 4)


PROGRAMS = [value for value in list(globals().values())
            if callable(value) and getattr(value, "__module__", None) == __name__ and value not in (cut, Box)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("sign", [1, -2])
def test_breaks(program, sign):
    assert_same_as_eager(program, torch.arange(1.0, 4.0) * sign, fullgraph=False)


def test_a_break_is_an_error_in_one_graph():
    with pytest.raises(fxjit.errors.Unsupported, match="graph_break"):
        fxjit.compile(in_a_nested_call, backend="eager", fullgraph=True)(torch.ones(3))
