"""One frame from bytecode to kernel: a page that runs.

    python docs/tour.py

Each part shows one stage of fxjit on the same small function, calls the code that does the work, and asserts what it says.
docs/architecture.md names the files; this page has their results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import fxjit
from fxjit.backends.native.replay.bisect import bisect
from fxjit.backends.native.replay.record import read_record
from fxjit.backends.native.replay.stages import graph_text, replay
from fxjit.frontend.bytecode import decode

SCALE = 2.0


def f(x: torch.Tensor, flip: bool) -> torch.Tensor:
    """The frame: a global, a Python branch, three tensor operators."""
    y = x.sin() * SCALE
    if flip:
        y = -y
    return y.sum(-1)


def part(title: str, text: object = "") -> None:
    print(f"\n---- {title} ----\n{text}".rstrip())


# -- 1. Bytecode ---------------------------------------------------------------------------------------------------
#
# CPython compiled `f` to a code object. While `fxjit.compile(f)` runs, a frame evaluator in C sees each frame before its first
# instruction, and asks Python about the ones that have no compiled entry yet. The first thing Python does is to decode: every
# supported Python's opcodes become one vocabulary, jumps become indices, the exception table becomes handlers.

code = decode(f.__code__)
part("1. the instructions, in the canonical vocabulary", "\n".join(map(str, code.instructions)))
names = [instruction.opname for instruction in code.instructions]
assert "BINARY_OP" in names and "POP_JUMP_IF_FALSE" in names and names[-1] == "RETURN_VALUE"


# -- 2. The captured graph -----------------------------------------------------------------------------------------
#
# The interpreter (frontend/interp) steps through those instructions with symbolic values. Tensor operations become nodes of an
# FX graph; `flip` is a plain bool, so the branch is decided now and leaves nothing in the graph, but a guard. The graph goes to
# a backend: any function of (graph, example inputs) that returns a callable. This one keeps what it is given and passes it on.

captured: list[torch.fx.GraphModule] = []


def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    captured.append(gm)
    return fxjit.lookup_backend("native")(gm, inputs)


folder = tempfile.TemporaryDirectory()
x = torch.linspace(-3, 3, 32).reshape(4, 8)
compiled = fxjit.compile(f, backend=backend, fullgraph=True, dynamic=False)
with fxjit.config.patch(debug_dir=folder.name, cache_graphs=False, small_graphs_as_captured=False):
    result = compiled(x, True)
torch.testing.assert_close(result, f(x, True))
part("2. the captured graph", graph_text(captured[0]))
operators = [node.name for node in captured[0].graph.nodes if node.op.startswith("call")]
assert operators == ["sin", "mul", "neg", "sum_1"], operators


# -- 3. Guards -----------------------------------------------------------------------------------------------------
#
# What the trace took for granted: the argument's type, dtype, sizes and strides, the bool, the global. Before the entry is
# stored, its guards are run on the very frame they came from. On later calls a tree of C checks walks the frame's slots.

(debug,) = Path(folder.name).iterdir()
guards = (debug / "guards.txt").read_text()
part("3. the guards of the entry", guards)
assert "flip" in guards and "SCALE" in guards

assert len(captured) == 1
compiled(x + 1, True)
assert len(captured) == 1, "the guards held: the entry ran, and nothing was compiled"
compiled(x, False)
assert len(captured) == 2, "the other side of the branch is another program"


# -- 4. The frame's new bytecode -----------------------------------------------------------------------------------
#
# The entry's code loads the graph's inputs, calls the compiled graph, and rebuilds what the frame returns.

after = (debug / "bytecode_after.txt").read_text()
part("4. the new bytecode", after)
assert "CALL" in after and "RETURN" in after


# -- 5. ATen -------------------------------------------------------------------------------------------------------
#
# The native backend runs AOTAutograd, which makes a graph of ATen operators: functional, with views and in-place writes gone,
# and for training one graph forward and one backward. The debug folder keeps it as data; it can be built again.

record = read_record((debug / "aten_inference.json").read_text())
stages = replay(record).texts
part("5. the ATen graph", stages["aten"])
assert "aten.sin.default" in stages["aten"] and "aten.sum.dim_IntList" in stages["aten"]


# -- 6. Loops ------------------------------------------------------------------------------------------------------
#
# Lowering writes each operator as the value of one element, as a function of the loop variables. `b0@[8, 1]` is a load from
# buffer b0 with these strides. Pointwise operators cost nothing here: their expressions go into what uses them, and what is
# left are loop nests that write memory, and calls of ATen for operators without a lowering.

part("6. loops", stages["loops"])
assert "sum over [8]" in stages["loops"] and "sin(" in stages["loops"]


# -- 7. The schedule -----------------------------------------------------------------------------------------------
#
# Fusion puts loop nests that fit into one kernel: here there is one nest, and so one kernel.

part("7. the schedule", stages["schedule"])
assert stages["schedule"].count("kernel over") == 1


# -- 8. The kernel -------------------------------------------------------------------------------------------------
#
# Codegen prints the kernel as C++ (as Triton for a GPU). `P` are pointers to the buffers, `S` sizes that vary. The compiler
# that builds fxjit's extension builds this, and the library is kept on the disk.

part("8. the kernel", stages["cpp"])
assert 'extern "C" int k0' in stages["cpp"] and "fx_sin" in stages["cpp"]


# -- 9. The program ------------------------------------------------------------------------------------------------
#
# What calls kernels, BLAS and ATen, and allocates and frees memory, is a small program that C runs. This is its text.

part("9. the program", stages["program"])
assert stages["program"].startswith("def call(")


# -- 10. Where would a fault be? -----------------------------------------------------------------------------------
#
# The loops have a definition that can be run: a reference interpreter over torch. `python -m fxjit bisect FOLDER` runs each
# kernel by itself on right inputs, and compares it with the loops, and the loops with eager.

found = bisect(record)
part("10. bisect", f"{found.kernels} kernel, {len(found.differences)} differ")
assert found.kernels == 1 and not found.differences and not found.outputs


# -- 11. A graph break ---------------------------------------------------------------------------------------------
#
# Where tracing has to stop, the new bytecode runs the one instruction that could not be traced, and calls a resume function:
# the user's original code, entered in the middle, and itself a frame that the evaluator sees. So the rest is a graph as well.


def g(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("in between:", tuple(y.shape))
    return y.cos()


explanation = fxjit.explain(g)(x)
part("11. a graph break", explanation)
assert explanation.graph_count == 2 and explanation.graph_break_count == 1

folder.cleanup()
print("\nEverything on this page is so.")
