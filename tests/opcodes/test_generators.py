"""Generators: yield, send, throw, close, yield from, generator expressions."""

from __future__ import annotations

import inspect

import torch
from tests.differential import assert_same_as_eager

import fxjit


def count(n):
    for index in range(n):
        yield index


def averager():
    total, n, result = 0.0, 0, None
    while True:
        value = yield result
        if value is None:
            return "done"
        total, n = total + value, n + 1
        result = total / n


def guarded(log):
    try:
        yield 1
        yield 2
    except ValueError as error:
        log.append(("caught", error.args))
        yield 3
    finally:
        log.append("closed")


def delegating(log):
    result = yield from guarded(log)
    log.append(("result", result))
    got = yield from averager()
    yield got


def test_iteration():
    def program(x):
        total = x
        for index in count(4):
            total = total + index
        return total, list(count(3)), sum(count(4)), tuple(i * 2 for i in count(3)), max(count(3))

    assert_same_as_eager(program, torch.ones(3))


def test_next_and_its_default():
    def program(x):
        it = count(2)
        first, second, third = next(it), next(it), next(it, "none")
        try:
            next(it)
        except StopIteration as stop:
            value = stop.value
        return x + first, second, third, value

    assert_same_as_eager(program, torch.ones(3))


def test_send():
    def program(x):
        it = averager()
        next(it)
        means = [it.send(2.0), it.send(4.0)]
        try:
            it.send(None)
        except StopIteration as stop:
            return x + 1, means, stop.value

    assert_same_as_eager(program, torch.ones(3))


def test_throw_and_close():
    def program(x, log):
        it = guarded(log)
        next(it)
        thrown = it.throw(ValueError("v"))
        rest = list(it)
        other = guarded(log)
        next(other)
        other.close()
        return x + 1, thrown, rest, next(other, "end")

    assert_same_as_eager(program, torch.ones(3), [])


def test_yield_from():
    def program(x, log):
        it = delegating(log)
        items = [next(it), next(it), next(it)]
        items.append(it.send(4.0))
        items.append(it.send(8.0))
        items.append(it.send(None))
        thrown = delegating(log)
        next(thrown)
        items.append(thrown.throw(ValueError("x")))
        thrown.close()

        def flat(nested):
            for item in nested:
                if isinstance(item, list):
                    yield from flat(item)
                else:
                    yield item

        return x + 1, items, list(flat([1, [2, [3]], 4]))

    assert_same_as_eager(program, torch.ones(3), [])


def test_stop_iteration_in_a_body():
    def bad():
        yield 1
        raise StopIteration("x")

    def program(x):
        try:
            list(bad())
        except RuntimeError as error:
            return x + 1, str(error), type(error.__cause__)

    assert_same_as_eager(program, torch.ones(3))


def test_tensors_through_generators():
    def layers(x):
        for scale in (1, 2, 3):
            x = x * scale
            yield x

    def program(x):
        outs = list(layers(x))
        return outs, sum(y.sum() for y in outs), [a + b for a, b in zip(layers(x), outs)]

    assert_same_as_eager(program, torch.ones(3))


def test_unpacking_a_generator():
    def program(x):
        a, b, c = count(3)
        first, *rest = count(4)
        return x + a, b, c, first, rest, [*count(2)], {**{str(i): i for i in count(2)}}

    assert_same_as_eager(program, torch.ones(3))


def test_an_unstarted_generator_is_returned():
    import fxjit

    def program(x):
        return x + 1, (x * i for i in range(3))

    y, made = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert [item.tolist() for item in made] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_a_started_generator_is_left_to_python():
    import fxjit

    def program(x):
        it = count(5)
        first = next(it)
        return x + first, it

    y, it = fxjit.compile(program, backend="eager")(torch.ones(2))
    assert torch.equal(y, torch.ones(2))
    assert list(it) == [1, 2, 3, 4]


def test_an_abandoned_generator_runs_its_finally():
    def program(x, log):
        for item in guarded(log):
            x = x + item
            break
        return x

    assert_same_as_eager(program, torch.ones(3), [], fullgraph=False)


def shares(xs, by=2, *more, scale=1.0, **named):
    def times(x):
        return x / by * scale

    for x in (*xs, *more, *named.values()):
        yield times(x)


def test_one_that_is_given_and_has_not_begun():
    def program(made, x):
        total = x
        for each in made:
            total = total + each
        return total, list(made), next(made, "over")

    def rows(x):
        return shares(x, 4, x[0] * 3, scale=0.5, last=x[1])

    for make in (rows, lambda x: (row + 1 for row in x), lambda x: (row for row in [x, x * 2])):
        assert_same_as_eager(program, make=lambda make=make: (make(torch.arange(6.0).reshape(2, 3)), torch.ones(3)), graphs=1)


def test_one_that_is_given_is_used_up_for_who_gave_it():
    def program(made, x):
        return x + next(made) + sum(made)

    def caller(compiled):
        made = count(4)
        return compiled(made, torch.ones(2)), list(made), inspect.getgeneratorstate(made)

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert repr(caller(program)) == repr(caller(compiled))


def test_one_that_is_given_and_left_in_the_middle():
    log = []

    def program(made, x):
        first = next(made)
        return x + first, made

    def caller(fn):
        result, made = fn(guarded(log), torch.ones(2))
        return result, next(made), [made.close(), list(log), log.clear()]

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert repr(caller(program)) == repr(caller(compiled))


def test_one_that_is_given_in_each_state():
    def program(made, x):
        return [x + each for each in made]

    compiled = fxjit.compile(program, backend="eager")
    for taken in (0, 1, 0, 3, 4, 0):
        results = []
        for fn in (program, compiled):
            made = count(3)
            for _ in range(taken):
                next(made, None)
            results.append((fn(made, torch.ones(2)), next(made, "over")))
        assert repr(results[0]) == repr(results[1])


def test_others_of_its_code_and_other_arguments():
    def program(made, x):
        return [x * each for each in made]

    cells = [3]
    assert_same_as_eager(program, make=lambda: (count(2), torch.ones(2)), calls=2)
    compiled = fxjit.compile(program, backend="eager")
    for make in (lambda: count(2), lambda: count(3), lambda: shares([2, 4]), lambda: shares([2, 4], 4),
                 lambda: (each + cells[0] for each in (1, 2))):
        assert repr(program(make(), torch.ones(2))) == repr(compiled(make(), torch.ones(2)))
        cells[0] += 1


def test_one_is_live_at_a_break_before_it_began():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def program(x):
        parameters, buffers, shifted = module.parameters(), module.buffers(), (each + 1 for each in x)
        x = x.sin()
        fxjit.graph_break()
        total = x.sum() + sum(each.sum() for each in shifted)
        for parameter, other in zip(parameters, module.parameters()):
            total = total + (parameter * other).sum()
        return total + sum(buffer.sum() for buffer in buffers)

    assert_same_as_eager(program, torch.ones(2, 2), fullgraph=False, graphs=2, breaks=1)


def test_one_that_ends_in_an_except_block():
    """GeneratorExit runs none of the program's code there."""
    def caught(x):
        try:
            yield x + 1
        except ValueError as error:
            yield x * len(str(error))
        except RuntimeError:
            yield x - 1

    def program(x):
        made, other = caught(x), caught(x)
        results = [next(made), next(other), made.throw(ValueError("abc")), other.throw(RuntimeError)]
        return sum(results)

    assert_same_as_eager(program, torch.ones(2), fullgraph=True, breaks=0)
