"""Why a graph breaks and why a frame is skipped: one row each, as data.

The front end names a row by its id (`tracer.break_("call-builtin", function=...)`); `explain_reason` fills the row in
with what is known at the place. A test holds that every id used exists, that every row is used and that no id is there
twice. To add a reason, add a row to the table of its family. A placeholder in braces is a key of the context.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """A row: an id, a title that is the same at every place, and sentences that may name the place's facts."""

    id: str
    title: str
    explanation: str
    hints: tuple[str, ...] = ()
    debug: str = ""  # the "developer debug context" line; empty: the context itself is listed


@dataclass(frozen=True, slots=True)
class Explained:
    """A reason filled in for one place."""

    id: str
    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str

    def text(self, head: str = "Graph Break Reason: ") -> str:
        lines = [f"{head}{self.reason}", f"  Explanation: {self.explanation}"]
        lines += [f"  Hint: {hint}" for hint in self.hints]
        context = [f"  Developer debug context: {self.context}"] if self.context else []
        return "\n".join([*lines, "", *context, f"  Code: {self.id} (docs/reasons.md#{self.id})"])


_REPORT = "If you think this should be traced, please report it with this text."
_MOVE_OUT = "Move it out of the compiled function, or wrap it in a function marked with `fxjit.disable`."

USER_REQUESTS = (
    Reason(
        "user-graph-break",
        "Call to `torch._dynamo.graph_break()`",
        "User-inserted graph break. Message: {message}",
        ("Remove the `torch._dynamo.graph_break()` call.",),
        "Called `torch._dynamo.graph_break()` with args `{args}`, kwargs `{kwargs}`",
    ),
    Reason(
        "user-skip-frame",
        "Call to `torch._dynamo.skip_frame()`",
        "User-inserted skip frame. Message: {message}",
        ("Remove the `torch._dynamo.skip_frame()` call.",),
        "Called `torch._dynamo.skip_frame()` with args `{args}`, kwargs `{kwargs}`",
    ),
    Reason(
        "user-debugger",
        "Call of a debugger",
        "`{function}` stops the program in this frame, which therefore runs as it stands, with all of its locals.",
        ("Remove the call when you have seen enough: the frame is compiled again.",),
    ),
    Reason(
        "user-disabled-call",
        "Skip calling `torch.compiler.disable()`d function",
        "Skip calling function `{function}` since it was wrapped with `torch.compiler.disable` (reason: {message})",
        ("Remove the `torch.compiler.disable` call",),
        "{function}",
    ),
    Reason(
        "user-disabled-inline",
        "Skip inlining `torch.compiler.disable()`d function",
        "Skip inlining function {function} since it was wrapped with `torch.compiler.disable` (reason: {message})",
        ("Remove the `torch.compiler.disable` call",),
        "{function}",
    ),
    Reason(
        "user-disallowed",
        "Call of an operator that `disallow_in_graph` keeps out of the graph",
        "`{function}` was passed to `disallow_in_graph`, so it runs eagerly between two graphs.",
        ("Call `fxjit.allow_in_graph` on it to take that back.",),
    ),
    Reason(
        "user-forbidden",
        "Call of a function that `forbid_in_graph` forbids",
        "`{function}` was passed to `forbid_in_graph`: a compiled function may not call it.",
        ("Do not call it from compiled code.",),
    ),
)

CALLS = (
    Reason(
        "call-builtin",
        "Call of a builtin that cannot be traced",
        "fxjit does not look into `{function}`, and has no rule for calling it with these arguments ({args}).",
        (_MOVE_OUT, _REPORT),
    ),
    Reason(
        "call-print",
        "Call of a function with an effect outside the program",
        "`{function}` writes to the outside world, so it has to run when the program runs, not when it is traced.",
        (
            "Remove the call, or accept that the graph is split here.",
            "If it only tells something, as `print` and `logging.info` do, put the function in "
            "`fxjit.config.reorderable_functions`: its calls then wait until the graph has run.",
        ),
    ),
    Reason(
        "call-collective",
        "Call of torch.distributed that is not put in a graph",
        "`{function}` runs when the program runs: {why}.",
        (
            "Call it outside the compiled function.",
            "`all_reduce`, `all_gather_into_tensor`, `reduce_scatter_tensor`, `all_to_all_single` and `broadcast` with "
            "`async_op=False`, and torch.distributed._functional_collectives, are put in graphs.",
        ),
    ),
    Reason(
        "call-c-extension",
        "Call into a C extension",
        "`{function}` of module `{module}` is compiled code that fxjit cannot see into.",
        (
            "Wrap it as a custom operator (`torch.library.custom_op`) so that it can be put in the graph.",
            "If it only makes FX nodes of its tensor arguments, pass it to `fxjit.allow_in_graph`.",
        ),
    ),
    Reason(
        "call-operator-in-try",
        "Call of an operator of the program's under an exception handler",
        "`{function}` may raise when it runs, and the handler around it would not see that if it were in a graph.",
        ("Move the call out of the `try`.", "With `fullgraph=True` it is in the graph; what it raises leaves the function."),
    ),
    Reason(
        "call-operator-behind-effects",
        "Call of an operator of the program's behind effects",
        "`{function}` may raise when it runs: what the program did before, to lists, attributes and the like, is to be done by "
        "then, and in a graph it would be done behind the operator.",
        (
            "Move the call before what is written.",
            "With `fullgraph=True` it is in the graph; where it raises, what stands before it is lost.",
        ),
    ),
    Reason(
        "call-skipped-module",
        "Call of a function of a module that is not traced",
        "`{function}` is defined in `{module}`, which fxjit runs as it stands ({rule}).",
        (_MOVE_OUT,),
    ),
    Reason(
        "call-bookkeeping",
        "Call of a function that changes its way from call to call",
        "`{function}` decides by counters that are others at each call, and computes nothing with tensors: in the graph, it "
        "would be compiled once for each way that it goes.",
        (
            "It is traced with `fullgraph=True`, in loops and in `try` blocks.",
            "Call it where the compiled function has returned.",
        ),
    ),
    Reason(
        "call-generator",
        "Call of a generator or coroutine function that cannot be inlined",
        "`{function}` returns a {kind}, which is not run to its end inside this frame.",
        ("Use a list, or consume the generator in the same function.",),
    ),
    Reason(
        "call-recursion",
        "Inlining is too deep",
        "`{function}` was entered at inline depth {depth}.",
        ("Mark the recursive function with `fxjit.disable`.",),
    ),
    Reason(
        "torch-lacks-name",
        "This torch lacks what the feature needs",
        "`{feature}` needs `{name}`, which this release of torch does not have.",
        ("Use a release of torch that fxjit was tried with (`python -m fxjit doctor` names them).",),
    ),
    Reason(
        "call-subprocess",
        "Call of a function that talks to the operating system",
        "`{function}` depends on, or changes, the state of the process or machine.",
        (_MOVE_OUT,),
    ),
    Reason(
        "call-own-frame",
        "Call that asks for the frame it is in",
        "`{function}` gives this frame, with all of its locals, so it runs as it stands; what it calls is still compiled.",
        ("Ask in a function of its own which the compiled one calls.",),
    ),
    Reason(
        "call-compile-api",
        "Call of a compiler's own function",
        "`{function}` steers a compiler and has no meaning inside a graph.",
        ("Call it outside the compiled function.",),
    ),
    Reason(
        "call-rng-state",
        "Call that reads or writes a random number generator's state",
        "`{function}` touches the state of a generator in a way that cannot be told before the graph runs.",
        (_MOVE_OUT,),
    ),
    Reason(
        "call-autograd-engine",
        "Call that runs the autograd engine",
        "`{function}` runs backward over what the graph so far has computed: {why}.",
        ("Keep the backward pass outside the compiled function: the forward graph has its own compiled backward.",
         "Or set `fxjit.config.trace_autograd_ops = True`, which puts `backward()` in the graph."),
    ),
    Reason(
        "call-with-effects",
        "Function with effects, where a graph calls it",
        "`{function}` was given, or is, a function that a graph runs by itself, any number of times: {why}.",
        ("Let it give back all that it computes, and change nothing else.",),
    ),
    Reason(
        "call-higher-order",
        "Call of an operator that takes functions",
        "What `{function}` was given cannot be put in a graph: {why}.",
        ("Give it functions of tensors that give tensors of the same kinds in all cases.",),
    ),
)

DATA_DEPENDENT = (
    Reason(
        "data-dependent-operator",
        "Operator whose output depends on data",
        "What `{operator}` gives is known only when the graph runs: {error}",
        (
            "Set `fxjit.config.capture_dynamic_output_shape_ops = True` (or `capture_scalar_outputs`).",
            "Use a form with a fixed shape (a mask and `torch.where`).",
        ),
    ),
    Reason(
        "data-branch",
        "Data-dependent branching",
        "The branch depends on `{value}`, which is known only when the graph runs.",
        (
            "Use `torch.cond` to express it in the graph, or `torch.where` if both sides are cheap.",
            "Move the branch out of the compiled function.",
        ),
    ),
    Reason(
        "data-item",
        "Tensor value needed as a Python number",
        "`{function}` gives Python a number that is known only when the graph runs.",
        ("Keep the value as a tensor.", "Set `fxjit.config.capture_scalar_outputs = True` to put it in the graph."),
    ),
    Reason(
        "data-random",
        "Decision on a random number",
        "`{value}` is another one in each call, and what the program does here depends on it.",
        (
            "Draw it before the compiled function and pass it on.",
            "Draw it as a tensor (`torch.rand`) and use `torch.where`, if both sides are cheap.",
        ),
    ),
    Reason(
        "data-symbol",
        "Decision on a size that is not known while tracing",
        "`{value}` has no value while tracing and the program decides on it: {why}",
        ("Use `torch._check` to tell what holds for it.",),
    ),
)

VALUES = (
    Reason(
        "attribute-unsupported",
        "Attribute that cannot be read while tracing",
        "`{name}` of `{value}` is not something fxjit can look up while tracing.",
        (_REPORT,),
    ),
    Reason(
        "call-unsupported",
        "Call of a value that cannot be called while tracing",
        "`{callable}` was called, and fxjit has no rule for calling it.",
        (_MOVE_OUT, _REPORT),
    ),
    Reason(
        "class-instantiation-unsupported",
        "Object of a class that cannot be made while tracing",
        "`{cls}` was called to make an instance, and how it does that cannot be traced.",
        ("Make the object before the compiled function.", _REPORT),
    ),
    Reason(
        "constant-too-large",
        "Constant that is too large to work out while tracing",
        "`{operation}` would give a very large object.",
        (_MOVE_OUT,),
    ),
    Reason(
        "format-symbolic",
        "Text made from a value that is not known while tracing",
        "`{value}` is put into a string, and its value is known only when the graph runs.",
        (_MOVE_OUT,),
    ),
    Reason(
        "bool-unsupported",
        "Truth of a value that is not known while tracing",
        "Whether `{value}` is true cannot be decided while tracing.",
        (_REPORT,),
    ),
    Reason(
        "hash-unsupported",
        "Hash of a value that is not known while tracing",
        "`{value}` is used as a key or in a set, and its hash is not known while tracing.",
        ("Use a key that is a plain constant.",),
    ),
    Reason(
        "iter-unsupported",
        "Iteration that cannot be traced",
        "`{value}` is iterated over, and fxjit cannot know what it gives.",
        ("Turn it into a list or tuple before the compiled function.",),
    ),
    Reason(
        "next-unsupported",
        "Iterator that cannot be followed",
        "`{value}` is advanced, and fxjit cannot know what it gives.",
        ("Turn it into a list or tuple before the compiled function.",),
    ),
    Reason(
        "len-unsupported",
        "Length that is not known while tracing",
        "`len` of `{value}` cannot be worked out while tracing.",
        (_REPORT,),
    ),
    Reason(
        "repr-unsupported",
        "Text of a value that is not known while tracing",
        "`repr` or `str` of `{value}` is known only when the program runs.",
        (_MOVE_OUT,),
    ),
    Reason(
        "subscript-unsupported",
        "Subscript that cannot be traced",
        "`{value}` is indexed in a way that fxjit cannot follow while tracing.",
        (_REPORT,),
    ),
    Reason(
        "value-attribute",
        "Attribute that cannot be read while tracing",
        "Reading `{name}` of `{value}` (of type `{type}`): {why}",
        (_REPORT,),
    ),
    Reason(
        "value-set-attribute",
        "Attribute that cannot be written while tracing",
        "Writing `{name}` of `{value}` (of type `{type}`): {why}",
        (_MOVE_OUT,),
    ),
    Reason(
        "value-slot",
        "Operation that this value does not support while tracing",
        "`{slot}` of a value of type `{type}` is not something fxjit can do while tracing.",
        (_REPORT,),
    ),
    Reason(
        "value-weak-reference",
        "Weak reference that has to be made when the program runs",
        "A weak reference is made or asked, and when its object goes is seen only then: {why}.",
        ("Make it outside the compiled function.",),
    ),
    Reason(
        "value-unknown",
        "Value that has to be known while tracing",
        "This needs to know {value} while tracing, and only the program that runs does.",
        (_REPORT,),
    ),
    Reason(
        "value-unknown-type",
        "Value of a type that is not traced",
        "`{value}` is of type `{type}`, which fxjit does not model.",
        ("Pass plain Python values and tensors.", _REPORT),
    ),
    Reason(
        "value-iterator",
        "Iterator that cannot be followed",
        "`{value}` (of type `{type}`) is advanced here and fxjit cannot know what it gives.",
        ("Turn it into a list or tuple before the compiled function.",),
    ),
    Reason(
        "value-global-state",
        "Change of the interpreter's or torch's process-wide state",
        "`{function}` changes state that other code of the process can see.",
        (_MOVE_OUT,),
    ),
)

TENSORS = (
    Reason(
        "operator-raised",
        "Operator that raises",
        "`{operator}` raised {error} on fake tensors of these shapes and dtypes.",
        ("If it raises without fxjit as well, the program is at fault.", _REPORT),
    ),
    Reason(
        "operator-may-raise",
        "Operator that may raise, behind one of the program's",
        "`{operator}` may raise on its data, and an operator of the program's, which is not called twice, stands before it in "
        "the graph: it would not raise where the program does, and a handler, or effects before it, would see that.",
        ("Put a graph break, or the end of a compiled function, between the two.",),
    ),
    Reason(
        "operator-result-unsupported",
        "Operator whose result is no value of a graph",
        "`{operator}` returned a value of type `{type}`, which fxjit does not model.",
        (_MOVE_OUT,),
    ),
    Reason(
        "operator-without-fake-kernel",
        "Operator without a fake implementation",
        "`{operator}` has no rule for the shape and dtype of its output: {error}",
        ("Register one with `torch.library.register_fake`.",),
    ),
    Reason(
        "not-a-graph-argument",
        "Argument that cannot stand in a graph",
        "`{value}` was passed to an operator, and an FX graph cannot hold it.",
        ("Pass tensors, numbers, strings, dtypes, devices, and lists, tuples and dicts of these.",),
    ),
    Reason(
        "tensor-operator",
        "Operator failed on fake tensors",
        "`{function}` raised {error} while its output's shape and dtype were worked out.",
        ("If the operator is a custom one, register a fake implementation (`torch.library.register_fake`).",),
    ),
    Reason(
        "tensor-recurrent-cudnn",
        "Recurrent layer that cuDNN runs",
        "`{function}` is one call of cuDNN here, which no graph holds: step by step it would be several times slower.",
        ("Set `torch.backends.cudnn.enabled = False` to have it in the graph step by step.",),
    ),
    Reason(
        "tensor-method",
        "Tensor method that cannot be put in the graph",
        "`Tensor.{name}` {why}",
        (_MOVE_OUT,),
    ),
    Reason(
        "tensor-argument",
        "Argument that cannot stand in a graph",
        "`{function}` was called with `{value}` of type `{type}`, which an FX graph cannot hold.",
        ("Pass tensors, numbers, strings, dtypes, devices, and lists, tuples and dicts of these.",),
    ),
    Reason(
        "tensor-subclass",
        "Tensor subclass that is not traced",
        "A tensor of the subclass `{type}` cannot be traced: {why}.",
        ("Give the class `__tensor_flatten__` and `__tensor_unflatten__`, by which its tensors are taken apart and put "
         "together again.", _MOVE_OUT),
    ),
    Reason(
        "torch-function",
        "`__torch_function__` that is not traced",
        "An argument of class `{type}` is asked instead of torch's own function: {why}",
        ("Move the call out of the compiled function.",),
    ),
    Reason(
        "tensor-layout",
        "Tensor of a layout that is not traced",
        "A tensor of layout {layout} or of a kind ({why}) that fxjit does not put in a graph.",
        (_MOVE_OUT,),
    ),
    Reason(
        "tensor-data",
        "Access to a tensor's memory",
        "`{function}` needs the tensor's data, which does not exist while tracing.",
        (_MOVE_OUT,),
    ),
    Reason(
        "tensor-hook",
        "Hook on a tensor",
        "`{function}` registers a hook that the graph cannot carry: {why}",
        ("Register it before the compiled function.",),
    ),
    Reason(
        "tensor-out",
        "`out=` that cannot be put in the graph",
        "`{function}` writes to an `out=` tensor: {why}",
        ("Use the form that returns a new tensor.",),
    ),
    Reason(
        "numpy-function",
        "NumPy function that is not traced",
        "`{function}` has no counterpart in torch._numpy, or `config.trace_numpy` is off.",
        ("Use the torch operator.",),
    ),
    Reason(
        "numpy-differs",
        "NumPy function that torch._numpy does otherwise",
        "For arguments of these shapes and types torch._numpy's `{function}` would not do what NumPy's does: {why}.",
        ("Use the torch operator.",),
    ),
)

BYTECODE = (
    Reason(
        "opcode-unsupported",
        "Instruction that is not traced",
        "The instruction `{opname}` cannot be run while tracing: {why}",
        (_REPORT,),
    ),
    Reason(
        "opcode-import",
        "Import that has not happened yet",
        "`import {name}` would run a module for the first time while tracing, or comes after a change of `sys.modules`.",
        ("Import it at the top of the file.",),
    ),
    Reason(
        "opcode-class-body",
        "Class statement",
        "A class is made here; its body runs as it stands.",
        ("Define the class outside the compiled function.",),
    ),
    Reason(
        "opcode-exception",
        "Exception that cannot be followed",
        "`{value}` is raised here: {why}",
        ("Move the `try` or the `raise` out of the compiled function.",),
    ),
    Reason(
        "opcode-uncaught",
        "Exception that leaves the compiled function",
        "{error} is raised and nothing in the traced code catches it.",
        ("The function raises in the same way without fxjit.",),
    ),
    Reason(
        "context-unsupported",
        "Context manager that is not traced",
        "`{value}` (of type `{type}`) is entered with `with`: {why}",
        ("Move the `with` out of the compiled function.",),
    ),
    Reason(
        "with-entered",
        "Context manager around a graph break",
        "The graph breaks inside this block, so `{value}` is entered by the running program, and stays entered there.",
        ("Move what breaks out of the `with` block.",),
    ),
    Reason(
        "object-let-go",
        "Object whose end can be seen let go",
        "`{value}` has weak references or a `__del__`, and may end where its name is deleted or overwritten, or where it "
        "leaves a container, an attribute or an expression: the running program does that.",
        ("Leave the `del` out, or use another name.", "Let the object go outside of the compiled function."),
    ),
    Reason(
        "loop-resumed",
        "Loop around a graph break",
        "The graph broke inside this loop, which was resumed: each iteration is compiled by itself, and the running program "
        "takes the next item of the loop's iterator here.",
        ("Remove the graph break in the loop (see its reason).",),
    ),
    Reason(
        "exception-handled",
        "Exception whose handler breaks the graph",
        "The graph breaks where {error} is handled, so the running program raises it here.",
        ("Move what breaks out of the handler.",),
    ),
    Reason(
        "exception-kept",
        "Exception that is kept after it was caught",
        "{error} was raised and caught here and is wanted afterwards, with the traceback that only a real exception has.",
        ("Keep what the exception says (`str(error)`), or `error.with_traceback(None)`.",),
    ),
    Reason(
        "trace-too-long",
        "Trace is too long",
        "More than {limit} instructions were run symbolically in one frame.",
        ("Move the loop into a function of its own, or compile what is inside the loop.",),
    ),
)

SKIPS = (
    Reason(
        "skip-loop",
        "Graph break in a loop",
        "The graph breaks inside a `for` or `while` loop, where tracing cannot be resumed: {why}",
        (
            "Move the body of the loop into a function of its own.",
            "Remove the graph break (see its reason), or unroll the loop.",
            "Set `fxjit.config.resume_in_loops = True` to have the parts of such loops compiled.",
            "Set `fxjit.config.compile_around_blocks = True` to have compiled what stands before the block and behind it.",
        ),
    ),
    Reason(
        "skip-try",
        "Graph break in a try block",
        "The graph breaks inside a `try` block, where tracing cannot be resumed: {why}",
        (
            "Move what breaks out of the `try` block, or the `try` block into a function of its own.",
            "Set `fxjit.config.resume_in_try = True`, which resumes in most such blocks.",
            "Set `fxjit.config.compile_around_blocks = True` to have compiled what stands before the block and behind it.",
        ),
    ),
    Reason(
        "skip-with",
        "Graph break in a context manager",
        "The graph breaks inside `with {value}`, which cannot be entered again: {why}",
        (
            "Move what breaks out of the `with` block, or the `with` block into a function of its own.",
            "Set `fxjit.config.resume_in_try = True`, under which any manager may stay entered.",
            "Set `fxjit.config.compile_around_blocks = True` to have compiled what stands before the block and behind it.",
        ),
    ),
    Reason(
        "skip-internal",
        "Frame of torch, fxjit or the interpreter",
        "`{function}` of `{module}` is not user code ({rule}).",
        ("Nothing to do: what it calls is still compiled.",),
    ),
    Reason(
        "skip-disabled",
        "Frame of a disabled function",
        "`{function}` was marked with `disable` (reason: {message}).",
        ("Remove the mark.",),
    ),
    Reason(
        "skip-code-kind",
        "Frame of a kind that is not compiled",
        "`{function}` is {rule}.",
        ("Move the tensor code into a plain function.",),
    ),
    Reason(
        "skip-too-big",
        "Code object is too big",
        "`{function}` has {size} bytes of bytecode.",
        ("Split the function.",),
    ),
    Reason(
        "skip-recompile-limit",
        "Recompile limit reached",
        "`{function}` was compiled {limit} times, which is `{setting}`, and no entry holds: {why}",
        (
            "Mark what changes as dynamic (`fxjit.mark_dynamic`), or keep it the same from call to call.",
            "Raise `fxjit.config.recompile_limit`.",
        ),
    ),
    Reason(
        "skip-generator-locked",
        "torch's random generator is locked for good",
        "`{function}` is called in a process that was forked while another thread drew random numbers: whatever reads the "
        "generator, as compiling does, would wait for ever.",
        ("Fork before threads draw random numbers, or start processes with `spawn`.",),
    ),
    Reason(
        "skip-compiler-error",
        "The compiler failed",
        "`{function}` could not be compiled, and `config.suppress_errors` is on: {error} "
        "(It is tried again after {retry} calls.)",
        (_REPORT, "Try backend='eager' to see whether the captured graph itself is right."),
    ),
    Reason(
        "skip-lazy-module",
        "Call of a module that has no parameters yet",
        "`{module}` makes its parameters in this call, from its input; the next call is compiled.",
        ("Call the module once before it is compiled.",),
    ),
    Reason(
        "skip-raises",
        "Exception that leaves a function before any operator",
        "`{function}` raises {error}, and nothing was computed before. This call runs as in eager; others may raise nothing.",
        ("Check what is given before the compiled function is called, if it raises often.",),
    ),
    Reason(
        "skip-signal-handler",
        "The handler of a signal",
        "`{function}` was called for a signal while compiled code ran: neither it nor what it calls is compiled.",
        ("Compile a function that the handler calls by itself, if that is to be fast.",),
    ),
    Reason(
        "skip-torch-replaced",
        "A method of tensors that tracing relies on was replaced",
        "`torch.Tensor.{method}` is not torch's own now, so that `{function}` cannot be traced; it is when torch's is back.",
        ("Put the method back before compiled functions are called for the first time.",),
    ),
    Reason(
        "skip-python-replaced",
        "A function of Python that tracing relies on was replaced",
        "`{name}` is not Python's own now, so that `{function}` cannot be traced; it is when Python's is back.",
        ("Call functions of your own by names of their own.",),
    ),
    Reason(
        "skip-seen-from-outside",
        "Call from inside something that sees each operator",
        "`{function}` was called inside {outside}, which has to see each operator itself: the call runs eagerly.",
        ("Put the transform or the mode inside of the function that is compiled.",),
    ),
    Reason(
        "skip-nothing-captured",
        "Frame without a tensor operation",
        "`{function}` did nothing that goes in a graph, so there is nothing to compile.",
        ("Nothing to do: what it calls is still compiled.",),
    ),
)

FAMILIES: tuple[tuple[Reason, ...], ...] = (USER_REQUESTS, CALLS, DATA_DEPENDENT, VALUES, TENSORS, BYTECODE, SKIPS)


def _by_id(families: Iterable[Iterable[Reason]]) -> dict[str, Reason]:
    table: dict[str, Reason] = {}
    for family in families:
        for row in family:
            assert row.id not in table, f"reason {row.id!r} is there twice"
            table[row.id] = row
    return table


REASONS: Mapping[str, Reason] = _by_id(FAMILIES)


class _Fill(string.Formatter):
    """Fills braces in from the context; what the place did not say reads as `?` instead of failing a report."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        value = kwargs.get(field_name, "?")
        return (value if isinstance(value, str) else _shown(value)), field_name


def explain_reason(id: str, **context: Any) -> Explained:
    """The row `id` in words, with `context` filled in. An unknown id is a mistake of ours and reads as itself."""
    row = REASONS.get(id)
    if row is None:
        row = Reason(id, id, "No explanation is written for this reason yet.")
    fill = _Fill()
    if row.debug:
        debug = fill.format(row.debug, **context)
    else:
        debug = ", ".join(f"{name}={_shown(value)}" for name, value in context.items())
    return Explained(
        id=row.id,
        reason=fill.format(row.title, **context),
        explanation=fill.format(row.explanation, **context),
        hints=tuple(fill.format(hint, **context) for hint in row.hints),
        context=debug,
    )


def _shown(value: Any) -> str:
    """`str` of a thing of the user's, which may be long or may raise."""
    try:
        text = value if isinstance(value, str) else repr(value) if not isinstance(value, type) else value.__name__
    except Exception as error:  # a user's __repr__ may do anything; a report must not fail for it
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= 300 else text[:297] + "..."
