"""Random programs of nested state managers: autocast, gradient modes and default devices, left early and resumed in.

`program(seed)` gives the text of a function `program(x, w)`. Each writes down what state it saw, and stops at places (a break
of the graph, an exception, a return, a jump out of a loop) that lie inside blocks.
"""

from __future__ import annotations

import random

HEAD = """
import contextlib
import torch
import torch.nn.functional as F
import fxjit


def state(x):
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(), torch.empty(0).device.type, x.dtype,
            x.requires_grad)


@torch.no_grad()
def without_gradients(x, w):
    return x @ w + 1


@torch.autocast("cpu", dtype=torch.bfloat16)
def in_bfloat16(x, w):
    return F.linear(x, w).relu()


@contextlib.contextmanager
def both(dtype, on):
    with torch.autocast("cpu", dtype=dtype), torch.set_grad_enabled(on):
        yield


def nested(x, w):
    with torch.autocast("cpu", enabled=False):
        return x.float() @ w


class Lock:
    def __enter__(self):
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *problem):
        torch._C._set_grad_enabled(self.before)


"""
MANAGERS = (
    'torch.autocast("cpu")', 'torch.autocast("cpu", dtype=torch.bfloat16)', 'torch.autocast("cpu", dtype=torch.float16)',
    'torch.autocast("cpu", enabled=False)', 'torch.autocast("cpu", cache_enabled=False)',
    'torch.amp.autocast("cpu", enabled=flag)', "torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(flag)",
    "torch.set_grad_enabled(not flag)", 'torch.device("cpu")', "both(torch.bfloat16, flag)", "both(torch.float16, False)",
    "contextlib.nullcontext()", 'torch.no_grad(), torch.autocast("cpu")', "torch.inference_mode(False)", "Lock()",
    "torch.autograd.set_grad_enabled(True)",
)  # fmt: skip
STEPS = (
    "x = x @ w", "x = F.linear(x, w)", "x = x.relu() + 1", "x = x.float()", "x = x * 2", "x = without_gradients(x, w)",
    "x = in_bfloat16(x, w)", "x = nested(x, w)", "x = torch.softmax(x, -1)", "x = F.layer_norm(x, (4,))", "y = x.sum()",
    "x = x + torch.ones(4)", "seen.append(state(x))", "seen.append(state(x))", "x = x.to(w.dtype)", "fxjit.graph_break()",
    "x = torch.addmm(torch.zeros(4), x, w)", "x = x.detach()",
)  # fmt: skip


def program(seed: int) -> str:
    rng = random.Random(seed)
    lines = ["def program(x, w, flag):", "    seen = []", "    y = x.sum()"]
    lines += block(rng, 1, 0, False)
    return HEAD + "\n".join([*lines, "    return x, y, seen", ""])


def block(rng: random.Random, depth: int, level: int, in_loop: bool) -> list[str]:
    pad, lines = "    " * depth, []
    for _ in range(rng.randint(2, 4)):
        kind = rng.random() if level < 3 else rng.uniform(0.62, 1)
        if level < 3 and kind < 0.45:
            lines.append(f"{pad}with {rng.choice(MANAGERS)}:")
            lines += block(rng, depth + 1, level + 1, in_loop)
        elif level < 3 and kind < 0.52:
            lines.append(f"{pad}for turn in range({rng.randint(1, 2)}):")
            lines += block(rng, depth + 1, level + 1, True)
        elif level < 3 and kind < 0.58:
            lines += [f"{pad}try:", *block(rng, depth + 1, level + 1, in_loop)]
            lines += [f"{pad}    raise ValueError(len(seen))"] * (rng.random() < 0.6)
            lines += [f"{pad}except ValueError as problem:", f"{pad}    seen.append((str(problem), state(x)))"]
        elif level < 3 and kind < 0.62:
            lines += [f"{pad}if {rng.choice(('flag', 'not flag', 'y.dtype is torch.float32', 'x.requires_grad'))}:",
                      *block(rng, depth + 1, level + 1, in_loop)]  # fmt: skip
        elif kind < 0.635 and level:
            lines.append(f"{pad}if {rng.choice(('flag', 'not flag'))}:")
            lines.append(f"{pad}    {'break' if in_loop and rng.random() < 0.5 else 'return x, y, seen, state(x)'}")
        elif kind < 0.70:
            lines += [f"{pad}with contextlib.ExitStack() as stack:", f"{pad}    stack.enter_context({single(rng)})",
                      f"{pad}    {rng.choice(STEPS)}", f"{pad}    seen.append(state(x))"]  # fmt: skip
        else:
            lines.append(pad + rng.choice(STEPS))
    return lines


def single(rng: random.Random) -> str:
    return rng.choice([each for each in MANAGERS if "), " not in each])
