"""Views whose base is written before they are used: eager refuses some at the use, in the program's handler."""

import itertools

import pytest
import torch

import fxjit

SEEN = []


def is_read(w, x):
    with torch.no_grad():
        w.add_(0.1)
    try:
        x = x + 1
    except RuntimeError as error:
        SEEN.append(str(error))
    return x


def is_read_again(w, x):
    before = x * 1
    with torch.no_grad():
        w.add_(0.1)
    try:
        before = before + x
    except RuntimeError as error:
        SEEN.append(str(error))
    return before


def is_written(w, x):
    with torch.no_grad():
        w.add_(0.1)
    try:
        x.mul_(2)
    except RuntimeError as error:
        SEEN.append(str(error))
    return w * 2


def is_viewed_before(w, x):
    part = x[:1]
    with torch.no_grad():
        w.add_(0.1)
    try:
        part = part + 1
    except RuntimeError as error:
        SEEN.append(str(error))
    return part.detach()


def is_asked(w, x):
    with torch.no_grad():
        w.add_(0.1)
    try:
        SEEN.append((x.requires_grad, x.shape, x.is_leaf, x.grad_fn is None))
    except RuntimeError as error:
        SEEN.append(str(error))
    return w + 1


def is_asked_again(w, x):
    before = x * 1
    with torch.no_grad():
        w.add_(0.1)
    try:
        SEEN.append((x.requires_grad, x.grad_fn is None))
    except RuntimeError as error:
        SEEN.append(str(error))
    return before


def of_the_frame_is_asked(w, x):
    with torch.no_grad():
        y = x[:]
        w.add_(0.1)
    try:
        SEEN.append((y.requires_grad, y.is_leaf))
    except RuntimeError as error:
        SEEN.append(str(error))
    return w + 1


def base_gets_a_history(w, x):
    w.mul_(TWO)
    SEEN.append((w.grad_fn is None, w.is_leaf, x.requires_grad, x.is_leaf))
    return x * 3


def was_written_before(w, x):
    try:
        x = x * 2
    except RuntimeError as error:
        SEEN.append(str(error))
    return x


def under_no_grad(view):
    def make(w):
        with torch.no_grad():
            return view(w)
    return make


def in_inference_mode(w):
    with torch.inference_mode():
        return w.expand(2, 3)[1]


TWO = torch.full((3,), 2.0, requires_grad=True)
BASES = {
    "leaf": lambda: torch.ones(3, requires_grad=True), "result": lambda: torch.ones(3, requires_grad=True) * 2,
    "plain": lambda: torch.ones(3),
}
VIEWS = {
    "itself": lambda w: w, "a view": lambda w: w[:2],
    "detached": lambda w: w.detach()[:2], "one of two": lambda w: w.split(2)[1],
    "without recording": under_no_grad(lambda w: w[:]), "one of two without": under_no_grad(lambda w: w.split(2)[1]),
    "in inference mode": in_inference_mode, "another": lambda w: torch.ones(3),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [
    is_read, is_read_again, is_written, is_viewed_before, is_asked, is_asked_again, of_the_frame_is_asked, base_gets_a_history,
    was_written_before])
@fxjit.config.patch(recompile_limit=99)
def test_views_of_every_kind_come_in_turn(program, backend):
    for order in (list(VIEWS), list(VIEWS)[::-1]):
        compiled = fxjit.compile(program, backend=backend)
        for base, view in itertools.product(BASES, order):
            ends = []
            for call in (program, compiled):
                w = BASES[base]()
                x = VIEWS[view](w)
                SEEN.clear()
                if program is was_written_before:
                    with torch.no_grad():
                        w.add_(0.1)
                try:
                    result = call(w, x).detach().tolist()
                except RuntimeError as error:
                    result = str(error)
                ends.append((result, w.detach().tolist(), *SEEN))
            assert ends[0] == ends[1], (base, view)
        fxjit.reset()
