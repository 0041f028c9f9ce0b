"""Buffers of text and of bytes that compiled code makes: what is written is known while tracing."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
import torch

import fxjit


def state(value):
    """What a buffer is; everything else as it is."""
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return type(value), None if value.closed else value.__getstate__()[:-1]
    if isinstance(value, (tuple, list)):
        return [state(each) for each in value]
    return repr(value)


def write_and_read(x):
    with io.StringIO() as out:
        out.write("a")
        print("b", 1, x.shape, [2], file=out, sep="-", end="|")
        print(file=out)
        out.writelines(str(i) for i in range(3))
        text, at = out.getvalue(), out.tell()
        out.seek(1)
        rest = out.read(3), out.readline(), out.read()
    return x + len(text), text, at, rest, out.closed


def kept(x):
    text, raw = io.StringIO("one\ntwo\n", newline=None), io.BytesIO(b"one\ntwo")
    first = next(text), next(raw), list(raw)
    text.seek(0)
    text.write("ONE")
    raw.truncate(2)
    closed = io.StringIO()
    closed.close()
    return x * 2, first, text, raw, closed, [text], isinstance(text, io.TextIOBase), bool(text)


def messages(x):
    found = []
    buffer = io.StringIO("a")
    for attempt in (lambda: buffer.write(1), lambda: buffer.seek(-1), lambda: io.StringIO(1), lambda: io.BytesIO("a"),
                    lambda: io.StringIO(newline="x"), lambda: print(1, file=buffer, sep=2), buffer.fileno, buffer.close,
                    buffer.read, lambda: next(buffer), lambda: iter(buffer), buffer.__enter__, lambda: buffer.writelines([])):
        try:
            found.append(attempt())
        except (TypeError, ValueError, OSError) as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, found


def lines(x):
    total = []
    for line in io.StringIO("a\nbb\nccc"):
        total.append(len(line))
    return x * sum(total), total


def redirected(x):
    out, inner = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out):
        print("a", x.shape)
        with contextlib.redirect_stdout(inner):
            print("b", end="")
        print("c", file=None)
    return x + 1, out.getvalue(), inner.getvalue()


class Node:
    def __init__(self, name, children=()):
        self.name, self.children = name, children

    def text(self):
        with io.StringIO() as out:
            out.write(self.name)
            for child in self.children:
                out.write(child.text())
            return out.getvalue()


def recursive(x):
    return getattr(torch, Node("r", [Node("e"), Node("lu")]).text())(x)


@pytest.mark.parametrize("fn", [write_and_read, kept, lines, recursive, redirected])
def test_as_eager(fn):
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    before = sys.stdout
    for _ in range(2):
        assert state(compiled(torch.ones(3))) == state(fn(torch.ones(3)))
        assert sys.stdout is before


def test_errors():
    compiled = fxjit.compile(messages, backend="eager")
    assert state(compiled(torch.ones(3))) == state(messages(torch.ones(3)))


def test_each_call_makes_its_own():
    compiled = fxjit.compile(kept, backend="eager", fullgraph=True)
    first, second = compiled(torch.ones(3)), compiled(torch.ones(3))
    assert first[2] is not second[2] and first[2] is first[5][0]
    first[2].write("more")
    assert second[2].getvalue() == "ONE\ntwo\n"


def test_behind_a_break():
    def fn(x):
        out = io.StringIO()
        out.write("before")
        x = x + 1
        fxjit.graph_break()
        out.write(" after")
        return x * 2, out

    assert state(fxjit.compile(fn, backend="eager")(torch.ones(3))) == state(fn(torch.ones(3)))


def test_one_from_outside_is_written_to():
    def fn(x, out):
        out.write("a")
        print("b", file=out)
        return x + 1

    buffers = io.StringIO("c"), io.StringIO("c")
    fxjit.compile(fn, backend="eager")(torch.ones(3), buffers[0])
    fn(torch.ones(3), buffers[1])
    assert state(buffers[0]) == state(buffers[1])


def test_a_number_that_varies_is_written():
    def fn(x, n):
        out = io.StringIO()
        out.write(str(n))
        return x + n, out.getvalue()

    compiled = fxjit.compile(fn, backend="eager")
    for n in (1, 2, 3):
        assert state(compiled(torch.ones(3), n)) == state(fn(torch.ones(3), n))
