"""`python tools/make_docs.py`: the pages of docs/ that are made from the code, so that they cannot go stale.

docs/reasons.md (graph breaks and skips), docs/rules.md (graphs that run as captured), docs/settings.md, docs/guards.md and
docs/MAP.md. `--check` writes nothing and fails when a page is not what the code says; tests/architecture runs it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import torch_surface

from fxjit import config, surface, torch_private
from fxjit.backends.aot.rules import RULES
from fxjit.guards import kinds, source
from fxjit.guards.ambient import AmbientState
from fxjit.process_state import QUERYABLE
from fxjit.reasons import FAMILIES, Reason
from fxjit.torch_private import CANNOT_RUN, FALLBACK, FEATURE_OFF

ROOT = Path(__file__).resolve().parents[1]
MADE = "<!-- made by tools/make_docs.py; change the code and run it again -->\n"
TITLES = ("What the user asked for", "Calls", "What is known only at run time", "Values", "Tensors and operators",
          "Instructions", "Frames that are skipped")


def reasons_page() -> str:
    """Every reason of a graph break or a skip."""
    lines = ["# Why a graph breaks, why a frame is skipped", "", MADE,
             "Each break and each skip has one of these ids (`fxjit.explain(fn)(...).break_reasons[0].reason_id`, and",
             "`FXJIT_LOGS=graph_breaks,skips`). Words in braces are filled in with what was found at the place.", ""]
    for title, family in zip(TITLES, FAMILIES, strict=True):
        lines += [f"## {title}", ""]
        for reason in family:
            lines += _reason(reason)
    return "\n".join(lines).rstrip() + "\n"


def _reason(reason: Reason) -> list[str]:
    lines = [f"### {reason.id}", "", f"**{reason.title}.** {reason.explanation}", ""]
    if reason.hints:
        lines += [f"* {hint}" for hint in reason.hints] + [""]
    return lines


STAGES = {
    "split": "Cutting the graph into parts", "captured graph": "Looking at the captured graph",
    "AOTAutograd": "What AOTAutograd refuses", "compiled graphs": "Looking at what AOTAutograd made",
    "call plan": "Looking at what a call costs", "executor": "What the native executor cannot run", "call": "At a call",
}  # fmt: skip


def rules_page() -> str:
    """Every rule by which a graph runs as it was captured."""
    lines = ["# Why a graph runs as it was captured", "", MADE,
             "The backends of AOTAutograd (`native`, `aot_eager`, `aot_eager_decomp_partition`) compile every graph but these,",
             "which run operator by operator, as in eager. `fxjit.explain` of a compiled function names the rule,",
             "`counters[\"run_as_captured\"]` counts by id, and `FXJIT_LOGS=compile` shows each with what was raised.", ""]
    for stage, title in STAGES.items():
        lines += [f"## {title}", ""]
        lines += [f"* **{rule.id}**: {rule.reason}" for rule in RULES if rule.stage == stage] + [""]
    return "\n".join(lines).rstrip() + "\n"


def settings_page() -> str:
    """Every setting of fxjit.config."""
    lines = ["# Settings", "", MADE,
             "`fxjit.config.<name> = value`, `with fxjit.config.patch(name=value):`, or the environment.", "",
             "| name | type | default | environment | what it does |", "| --- | --- | --- | --- | --- |"]
    for name, setting in config.SETTINGS.items():
        kind = getattr(setting.type, "__name__", str(setting.type)).replace("|", "\\|")
        doc = " ".join(setting.doc.split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | `{setting.default!r}` | `{setting.env}` | {doc} |")
    return "\n".join(lines) + "\n"


GUARDS_INTRO = """A trace notes every fact about the world outside it that it relied on, as a *guard* over a *source*: where the
object is found again from the frame. The compiled code runs only for frames for which all of them hold. What is guarded is
listed below from the classes themselves; `FXJIT_LOGS=guards` shows those of each compile, `FXJIT_LOGS=recompiles` which
one failed, what it expected and what it found.

How they are checked: all guards of an entry are one tree in C (`guards/_tree.c`), in which each object is fetched once.
Process state comes first, then arguments, then the rest; what failed last time is tried before anything else, so that
of many entries all but one cost one check. Below an object whose dicts have not changed since a full check
(`guards/_fast_path.c`; versions of dicts on CPython 3.11, watched dicts from 3.12), a guard is one comparison of a word of
memory, or of what a tensor's own memory says of its kind; any difference means the full check. A dict that changes on each
call is looked into item by item. `verify_guard_fast_path` runs both and compares.

What is not guarded: a tensor that a frame only passes on, stores or asks the type of has no guard but that on its type
(`values/tensor.py: GivenTensor`), and an argument that nothing looks at has none. What a frame takes
from a module of torch or of the standard library and from their classes is guarded by identity, since programs put their own in
its place; what those functions do inside is taken to stay what it is. What is looked up in a class is guarded as found there
(`FoundIn`), with one comparison while the class and its bases have not changed. So are the tables that `enum` and
`dataclasses` keep for themselves, as far as a trace looked into them: the member of a value or a name, the names of the
fields. Not guarded: the order of an enum's members (`_member_names_`) where their number stays.

A program that loops over a size (`for t in range(x.size(1))`, as the plain versions of Mamba, RWKV and Funnel do) is another
program for each: it is compiled for each until `recompile_limit`, and then runs eagerly.

`tests/guards/test_catalogue.py` has, for each kind and each state, a change that is seen and one that is not, and fails where
one is missing."""


def guards_page() -> str:
    """Every kind of guard, every kind of source, the process state."""
    lines = ["# Guards", "", MADE, GUARDS_INTRO, "", "## Kinds", "", "| kind | holds when | checked |", "| --- | --- | --- |"]
    for name, kind in vars(kinds).items():
        if isinstance(kind, type) and issubclass(kind, kinds.Guard) and kind is not kinds.Guard:
            where = "in Python" if kind is kinds.PythonCheck else "in C"
            lines.append(f"| `{name}` | {_doc_of(kind)} | {where} |")
    lines += ["", "## Sources", "", "| source | what it finds |", "| --- | --- |"]
    for name, kind in vars(source).items():
        if not isinstance(kind, type) or kind is source.Source or name.startswith("_"):
            continue
        if issubclass(kind, source.Source):
            lines.append(f"| `{name}` | {_doc_of(kind)} |")
    lines += ["", "## Process state", "", "Read when a trace begins and compared before each call: "
              + ", ".join(f"`{name}`" for name, _ in AmbientState.capture().items()) + ".",
              "", "Compared only where the backend says that its code depends on it: "
              + ", ".join(f"`{name}`" for name in QUERYABLE) + "."]
    return "\n".join(lines) + "\n"


def _doc_of(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split()).replace("|", "\\|")


def map_page() -> str:
    """Every source file with the first sentence of what it says of itself."""
    lines = ["# The files", "", MADE]
    folder = None
    for path in _sources():
        here = path.parent.relative_to(ROOT)
        if here != folder:
            folder = here
            lines += ["", f"## {here}", ""]
        lines.append(f"* `{path.name}`: {_first_sentence(path)}")
    return "\n".join(lines) + "\n"


def _sources() -> Iterator[Path]:
    found = [path for path in (ROOT / "src/fxjit").rglob("*")
             if path.suffix in (".py", ".c", ".h", ".def") and path.stat().st_size and "__pycache__" not in path.parts]
    return iter(sorted(found, key=lambda path: (str(path.parent), path.name)))


def _first_sentence(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        start, end = text.find("/*"), text.find("*/")
        said = "\n".join(line.strip().lstrip("*").strip() for line in text[start + 2:end].splitlines()) if start == 0 else ""
    paragraph = " ".join(said.strip().split("\n\n")[0].split())
    head, stop, _ = paragraph.partition(". ")
    return head + ("." if stop and not head.endswith(".") else "")


POLICIES = {
    CANNOT_RUN: "Without one of these no frame can be compiled. `doctor` and the first call say: this fxjit was tried with "
                "torch 2.11 to 2.15; torch X lacks NAME.",
    FEATURE_OFF: "Without one of these its feature is off: one warning names both, what would use it breaks the graph or "
                 "runs as it was captured, and the rest works.",
    FALLBACK: "Without one of these what it is for is done another way, or cannot occur.",
}  # fmt: skip


def torch_names_page() -> str:
    """Every private name of torch that the source reads."""
    lines = ["# The private names of torch that fxjit reads", "", MADE,
             "A name is private here if a part of it begins with an underscore, or it lies in torch.fx.experimental or",
             "torch.fx.passes, which no page of torch documents. `src/fxjit/torch_names.tsv` is the table, `python",
             "tools/torch_names.py` finds the names in the source and says what differs from the table. The shape is compared",
             "when the name is first needed: a class with these members, a function that takes these arguments by name.", ""]
    for policy, meaning in POLICIES.items():
        lines += [f"## {policy.capitalize()}", "", meaning, ""]
        features = dict.fromkeys(row.feature for row in torch_private.rows().values() if row.policy == policy)
        for feature in features:
            lines += [f"**{feature}**", "", "| name | shape |", "| --- | --- |"]
            lines += [f"| `{row.name}` | {row.shape} |" for row in torch_private.rows().values()
                      if row.policy == policy and row.feature == feature] + [""]
    return "\n".join(lines).rstrip() + "\n"


#: What is done in several processes, how; and what is not.
SEVERAL_PROCESSES = (
    ("DistributedDataParallel, around or inside of `compile`",
     "graphs are cut at its buckets (`optimize_ddp`); communication hooks, `no_sync`, `static_graph`, "
     "`find_unused_parameters` and buckets as views of gradients stay torch's; with `delay_all_reduce_named_params` graphs run "
     "as captured. The hooks for bfloat16 and PowerSGD raise or hang over gloo in eager: untried"),
    ("FSDP2 (`fully_shard`), compiled blocks or the whole model",
     "all blocks of a class share a graph, without a break, with `fullgraph=True` too; gathering and freeing parameters stay "
     "between graphs, as FSDP's hooks do them"),
    ("FSDP1 (`FullyShardedDataParallel`)",
     "works, with breaks around each wrapped module, whose `forward` is compiled: both kinds of parameters, mixed precision, "
     "three sharding strategies; where activations are checkpointed, blocks run eagerly, as with torch.compile"),
    ("DTensor, `parallelize_module`, `distribute_module`, `local_map`",
     "one graph, forward and backward, with its collectives; blocks that are compiled one by one share one; sizes of arguments "
     "that vary take a second graph for all of them. A loss: the second graph of a tensor parallel model whose sequences vary "
     "in length runs as captured (torch.compile raises an error), as do graphs whose results are views of distributed tensors"),
    ("inputs that a collective is still making (`AsyncCollectiveTensor`)",
     "waited for when the graph starts; their gradients go on, which torch.compile 2.13 loses"),
    ("FSDP2 and tensor parallel on a mesh of two dimensions", "as each by itself"),
    ("`loss_parallel()`, `implicit_replication()`",
     "around a compiled call: guarded. Inside of one: the graph breaks there, and the block runs as in eager (torch.compile "
     "raises an error at the first)"),
    ("functional collectives", "in the graph; with `config.bucket_collectives_mb` small ones that do not need each other's "
     "results are one call (not unless asked for, as with torch.compile: all ranks have to compile the same graphs)"),
    ("`all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all_single` and their tensor forms",
     "in the graph where `async_op=False` and the tensors are plain, contiguous (for the first two: dense) and need no "
     "gradient, also in `forward` and `backward` of a `torch.autograd.Function`; those in a `_coalescing_manager()` are one "
     "call, when its block is left (torch.compile makes each at once, and what reads in the block is given sums). Other calls "
     "break it, of which torch.compile takes one: of tensors that are not contiguous"),
    ("other collectives, `barrier`, `send`, `recv`, objects", "the graph breaks; they run as in eager"),
    ("pipeline stages (`torch.distributed.pipelining`, GPipe and 1F1B)", "one graph a stage"),
    ("context parallel", "untried: torch's own has no kernel for CPUs"),
    ("`torch.distributed.checkpoint`", "names and values are those of the model that is not compiled"),
    ("torchrun, `torch.multiprocessing.spawn`", "tried, also under `python -m fxjit run`"),
    ("accelerate 1.15, Lightning 2.6 (`strategy=\"ddp\"`, and `ModelParallelStrategy` around FSDP2)",
     "tried under `python -m fxjit run` on 2 ranks, a program each: losses are eager's. Their fsdp strategies want an "
     "accelerator (on processors one refuses, the other takes DistributedDataParallel): untried"),
    ("a rank that raises, dies or is slow", "others get eager's error, at the latest when their group's time is over"),
    ("one cache for all ranks", "yes: a graph that two compile at the same time is compiled by each, and kept once"),
    ("`set_enable_guard_collectives`",
     "yes (`config.guard_collectives`): at each look-up where there are entries the ranks exchange whether theirs fits, and "
     "compile together where one has none that does; the log `recompiles` names the rank and its guard. Without it each rank "
     "decides by its own guards, and collectives are made in the program's order: ranks that compile at other times wait for "
     "each other, and no longer than their group's time"),
    ("gloo on one machine, 2 ranks", "all of the above was tried with it; with 4, some programs of DistributedDataParallel, "
     "of FSDP1, and of FSDP2 on meshes of one and of two dimensions"),
    ("NCCL, several machines, more ranks",
     "untried; the collectives of a graph are torch's operators, which choose the backend"),
)


DIFFERENCES = (
    ("an operator of the program's own (`torch.library`, `allow_in_graph`) that raises when the graph runs",
     "comes as in eager: the graph breaks before the operator where a handler or a manager of the program's may catch what it "
     "raises, or where something was written before (attributes, lists, tensors that the function did not make), and behind it "
     "before an operator of torch's that may raise on its data. Not so for what such operators and normalisations in training "
     "write, in loops (where a break would give the whole function up), and for operators of installed packages, which break "
     "the graph under handlers only: there, writes before one that raises are lost. With `fullgraph=True` nothing breaks: what "
     "is raised passes by the handlers, and effects before it are lost"),
    ("`inspect.isfunction(torch.compile(fn))`",
     "False: the call goes from C to the compiled code without a frame of Python's. A Python function around it takes 0.08 us, "
     "3 % of the call of a function with one operator, and shows in tracebacks. `callable`, `inspect.isroutine`, "
     "`inspect.signature`, `__name__`, `__wrapped__` are the function's"),
    ("`torch.set_num_threads`, `torch.set_flush_denormal`",
     "break the graph (as with torch.compile). Other settings of the process are steps of the graph: the default dtype and "
     "device (but in a block of `with torch.device(...)`), deterministic algorithms, kernels of attention, precisions and "
     "flags of torch.backends; a graph that raises sets them back"),
    ("`parameter.data = ...`, as `torch.nn.utils.vector_to_parameters` does, before a gradient of what is computed from it",
     "is in the graph. Where the data have another shape or type, or are then written to, the graph breaks before that "
     "use (torch.compile has it in the graph)"),
    ("nested tensors of the strided layout, and masked tensors",
     "each operator on one breaks the graph (torch.compile does not trace them either: it gives up the functions around, and "
     "counts one break)"),
    ("a break inside a loop, a `try` block or a `with` of the program's own class",
     "the function runs eagerly, and what it calls is compiled (torch.compile compiles what stands before a `try` or `with`, "
     "and nothing around a loop); with `config.compile_around_blocks` what stands before and behind the block is compiled, "
     "where it is three operators or more. A loop that breaks at a decision on data is compiled between two decisions: a "
     "`while`, and a `for` that the decision may leave or that is over numbers and tensors; others with "
     "`config.resume_in_loops`"),
    ("`counters[\"graph_break\"]`",
     "counts each graph that a break ends. A function that is given up because of a break (in a loop, a `try` or a `with`) has "
     "no graph: it is counted in `counters[\"skip\"]`, and the break by its reason in `counters[\"skip_cause\"]`. "
     "torch.compile counts none for such a function either, none at a branch on data in the compiled function itself, none "
     "where the function raises, and one more for each caller of a function that breaks"),
    ("a program that takes more graphs or breaks than with torch.compile",
     "[listed with the cause of each](models.md#programs-with-more-breaks-or-graphs-than-with-torchcompile). Most take as many "
     "when breaks are counted alike (the row above), or have more in graphs: where torch.compile gives a function up at its "
     "first break, fxjit compiles what it calls, and counts the breaks there. The others are graphs for each pattern of values "
     "by which Python decides, until the limit of recompiles, and optimizers' steps that torch marks as not to be compiled"),
    ("a class made in the compiled function",
     "by `type(name, bases, {...})` or `collections.namedtuple`: in the graph, where no code of the program's runs for it "
     "(`__init_subclass__` of a base, `__new__` or `__init__` of a metaclass, `__set_name__`) and constants, classes and "
     "functions from outside are all that it has; any other, and a class statement, breaks the graph (torch.compile "
     "runs `__init_subclass__` while tracing)"),
    ("`threading.Lock` and `RLock`, and conditions, semaphores and events made of them",
     "a lock is taken before the graph runs, without waiting, and held until the program lets go of it for the last time; "
     "guards are checked once more under it. Where it is not free, and where operators or calls that are put off might want "
     "it too, the call runs eagerly or the graph breaks (torch.compile breaks it at each lock)"),
    ("Python's `min` and `max` of tensors that require a gradient",
     "break the graph: the one that is not found has no part in eager's gradient. With `fullgraph=True` the graph chooses, and "
     "gives that one a gradient of zeros (torch.compile does so always, and shares it where both are equal)"),
    ("a function with effects, given to a transform of `torch.func`", "breaks the graph (torch.compile traces it)"),
    ("a compiled function, given to a transform of `torch.func` outside of it",
     "runs eagerly under the transform, with every backend (torch.compile captures it with backend `eager`, whose graph runs "
     "operator by operator, and with no other). Compile the function that calls the transform: that is one graph"),
    ("a hook on a tensor, a `backward` of an `autograd.Function` or a function under `checkpoint` that reads state of "
     "Python's (attributes, globals, variables, containers) which changes before the backward",
     "seen where the same function changes it: the graph breaks at the call that gave the hook or function away. So it does "
     "where a function under `checkpoint` changes such state itself, which eager code does twice. Where the caller changes it "
     "between forward and backward, or what stands behind a graph break, the gradient is that of the state in forward "
     "(torch.compile's too, of all four)"),
    ("an `autograd.Function` whose `forward` or `backward` reads tensors that are no arguments, or numbers that vary, or is "
     "given objects or functions",
     "in the graph, as traced (which is torch.compile's way for every one). Where a tensor that is no argument is written to "
     "between forward and backward, backward reads the new contents, as in eager; a compiled backward raises that it was "
     "modified where other operators differentiate by it too, or `forward` keeps what it made of it. A second derivative "
     "through a parameter that it reads is there with backend `eager` alone, and raises where `backward` sets the grad mode "
     "(around passes of its own). Gradients come laid out like the result, as they were traced: `view` of one that eager has "
     "laid out otherwise does not raise"),
    ("an `autograd.Function` whose `backward` changes its own context",
     "in the graph where a second run of it would raise, since it has deleted what it needs (`del ctx.tensors`: checkpoints "
     "of the program's own); where that second run is asked for (`retain_graph=True`), it raises what eager raises, but "
     "compiled backends give the gradient once more. Any other, and a `backward` or hook that raises, breaks the graph"),
    ("a function under `checkpoint` that writes to tensors it did not make, as to the running statistics of batch norms",
     "writes once, in forward; eager's recomputation writes a second time. Where a tensor that it reads is written to "
     "behind it, backward raises that it was modified"),
    ("`checkpoint(..., preserve_rng_state=False)` of a function that draws random numbers (dropout)",
     "gradients are those of the numbers that forward drew; eager's recomputation draws others, and its gradients are of those "
     "(torch.compile's are as fxjit's)"),
    ("a write to an input or output of 4 MB or more between forward and backward, where no derivative of eager's reads it",
     "backward raises that it was modified where it computes from it again; smaller ones are saved as copies "
     "(torch.compile's raises for those as well)"),
)


def coverage_page() -> str:
    """Every public name of torch.compile, and what becomes of it."""
    lines = ["# Moving over from torch.compile, name by name", "", MADE,
             "With `fxjit.install()`, or under `python -m fxjit run`. **same**: as in torch.compile; **better**; **differs**,",
             "and how; **refused**: raises, with the reason; **warns once**: no effect on what fxjit compiles, which is said",
             "the first time. The names are those of torch 2.11 to 2.15; `src/fxjit/surface.tsv` is the table, and a test",
             "fails on a public name that it does not have.", "",
             "The order of imports does not matter: `install()` takes over torch's functions themselves. So names that were",
             "bound before it (`from torch import compile`, `from torch._dynamo import mark_dynamic`, or `counters` of",
             "`torch._dynamo.utils`) and wrappers that libraries put in their place (as Lightning does to `torch.compile`) end",
             "in fxjit as well. What is a class, or is decorated, cannot be taken over that way: `torch._dynamo.set_stance`,",
             "`torch._dynamo.explain` and `torch._dynamo.utils.CompileProfiler` stay torch's for who bound them before.", ""]
    places = dict.fromkeys(row.place for row in surface.decisions().values())
    for place in places:
        rows = [row for row in surface.decisions().values() if row.place == place]
        lines += [f"## {place}", ""]
        same = [f"`{row.name}`" for row in rows if row.decision == surface.SAME and not row.note]
        lines += [f"**Same:** {', '.join(same)}.", ""] if same else []
        others = [row for row in rows if row.decision != surface.SAME or row.note]
        if others:
            lines += ["| name | | |", "| --- | --- | --- |"]
            lines += [*(f"| {_named(row.name)} | {row.decision} | {row.note} |" for row in others), ""]
    lines += ["## NumPy", "",
              "Functions, methods of arrays and of ufuncs are captured as torch._numpy does them, where NumPy does the same;",
              "else NumPy's own Python function is traced, or NumPy itself is the operator (then sizes do not vary within a",
              "graph, and there is no gradient). `tests/programs/test_numpy_surface.py` calls each name once, and",
              "fails on one that is neither as in eager nor in this table. These break the graph:", "",
              "| numpy. | why |", "| --- | --- |"]
    lines += [f"| `{name}` | {why} |" for name, why in _numpy_breaks()]
    lines.append("")
    lines += ["## What differs on purpose, or is not there", "", "| program | with fxjit |", "| --- | --- |"]
    lines += [f"| {program} | {what} |" for program, what in DIFFERENCES]
    lines.append("")
    lines += ["## Learning-rate schedulers stepped in the compiled function", "",
              "The graph breaks at `scheduler.step()`, which runs eagerly, as with torch.compile: traced, it would be compiled",
              "for each way that the scheduler's code goes with its counter. With `fullgraph=True`, in loops and in `try`",
              "blocks, where torch.compile raises or gives up the function, fxjit traces it: in twelve steps at most 3 graphs,",
              "of MultiStepLR 4, of SequentialLR 6 (`tests/shapes/test_changing_numbers.py`), where the optimizer's step is",
              "elsewhere: with SGD's in the same function StepLR takes 4.", ""]
    lines += [*_of_later_releases(), "## Several processes", "",
              "[Recipes](recipes.md#several-processes) says how; `tests/distributed` holds what is said to work here.", "",
              "| what | with fxjit |", "| --- | --- |"]
    lines += [f"| {what} | {how} |" for what, how in SEVERAL_PROCESSES]
    return "\n".join(lines).rstrip() + "\n"


#: What 2.14 and 2.15 brought to names that were there before, or to names that no list of torch.compile's has.
LATER = (
    ("2.14", "`torch._higher_order_ops.switch`", "differs", "the graph breaks at the call, which runs as in eager"),
    ("2.14", "`torch._higher_order_ops.flex_gemm`", "untried", "it is of products on a GPU"),
    ("2.14", "`TORCH_LOGS`: `autotuning_inputs`, `flex_gemm`, `native_dsl_compile`, `partitioned_scatter`", "same",
     "they are of Inductor's graphs, of which fxjit makes none"),
    ("2.15", "`torch._dynamo.maybe_mark_dynamic(min=, max=)`", "same", "in each release, as `fxjit.maybe_mark_dynamic`"),
    ("2.15", "`torch._functorch.config.activation_memory_budget_require_full_coverage`", "differs",
     "no effect on fxjit"),
)


def _of_later_releases() -> list[str]:
    """What each release after 2.13 added to the public names, and took away."""
    lines = ["## What torch 2.14 and 2.15 brought", "",
             "Against 2.13, by comparing the public names of the releases (`tools/torch_surface.py`, whose table a test holds",
             "against the torch that it runs with), their signatures, and torch's own pages.", "",
             "| since | name | with fxjit | |", "| --- | --- | --- | --- |"]
    inductors = {}
    for (place, name), (first, last) in torch_surface.spans().items():
        since = "{}.{}".format(*first) if first >= (2, 14) else ""
        if last in ((2, 13), (2, 14)):
            since = "until {}.{}".format(*last)
        row = surface.decision(place, name)
        if since and place == "torch._inductor.config" and surface.decisions().get((place, name)) is None:
            inductors.setdefault(since, []).append(f"`{name}`")
        elif since and row is not None:
            lines.append(f"| {since} | {place}: `{name}` | {row.decision} | {row.note} |")
    lines += [f"| {since} | {name} | {decision} | {note} |" for since, name, decision, note in LATER]
    others = surface.decisions()["torch._inductor.config", surface.OTHERS]
    lines += ["", f"Settings of Inductor: each {others.decision}, {others.note}.", ""]
    return [*lines, *(f"* {since}: {', '.join(names)}" for since, names in inductors.items()), ""]


def _numpy_breaks() -> list[list[str]]:
    text = (ROOT / "tests" / "programs" / "numpy_breaks.tsv").read_text()
    return [line.split("\t") for line in text.splitlines()]


def _named(name: str) -> str:
    return "any other" if name == surface.OTHERS else f"`{name}`"


PAGES = {"coverage.md": coverage_page, "torch_names.md": torch_names_page,
         "reasons.md": reasons_page, "rules.md": rules_page, "settings.md": settings_page, "guards.md": guards_page,
         "MAP.md": map_page}


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if "--check" in sys.argv and stale:
        print(f"not what the code says: {', '.join(stale)}; run python tools/make_docs.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
