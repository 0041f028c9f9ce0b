"""Rules by function: the exceptions to what a function's module says. Data; `verdict` reads it, for Python functions that no
handler claims (`calls.resolve` of the front end): a row for any other would never answer.

A name is looked up when the first call is judged; a name that this torch or Python does not have is passed over, and a
test reports names that no supported version has.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, MethodType
from typing import Any

from fxjit.replacements import changes

# (verdict, reason id, names)
ROWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Answers that depend on nothing but their (constant) arguments and on state that is guarded or does not change
    (
        "CONSTANT",
        "",
        (
            "torch.compiled_with_cxx11_abi torch.accelerator.device_count torch.cpu.is_available",
            "torch.cpu._is_avx2_supported torch.cpu._is_avx512_supported torch.cpu._is_avx512_bf16_supported",
            "torch.cpu._is_vnni_supported torch.cpu._is_amx_tile_supported torch.cpu._is_amx_fp16_supported",
            "torch.distributed.is_torchelastic_launched torch.utils._foreach_utils._get_foreach_kernels_supported_devices",
            "torch.utils._foreach_utils._get_fused_kernels_supported_devices torch._utils._get_device_index",
            "torch._utils._get_available_device_type torch._prims_common.is_boolean_dtype",
            "torch._prims_common.is_integer_dtype torch._prims_common.is_float_dtype torch._prims_common.is_complex_dtype",
            "torch.overrides.is_tensor_method_or_property torch.nn.functional._get_softmax_dim importlib.util.find_spec",
            "platform.system platform.machine platform.python_version torch.get_device_module.__wrapped__",
        ),
    ),
    # Functions of torch that are put in the graph although their module says otherwise
    (
        "GRAPH",
        "",
        (
            "torch.sym_int torch.sym_float torch.sym_not torch.sym_max torch.sym_min torch.sym_ite torch.sym_sum",
            "torch.sym_sqrt torch._sym_sqrt torch.sym_fresh_size",
            # What makes distributed tensors, or takes them apart, is a derivative of its own
            "torch.distributed.tensor.DTensor.from_local torch.distributed.tensor.DTensor.to_local",
            "torch.distributed.tensor.DTensor.redistribute torch.distributed.tensor.DTensor.full_tensor",
            "torch.distributed.tensor.distribute_tensor torch.distributed.tensor.zeros torch.distributed.tensor.ones",
            "torch.distributed.tensor.empty torch.distributed.tensor.full",
        ),
    ),
    # Python functions of nn.functional that work on shapes and flags only
    (
        "TRACE",
        "",
        (
            "torch.nn.functional.assert_int_or_pair torch.nn.functional._verify_batch_size",
            "torch.nn.functional._verify_spatial_size torch.nn.functional._canonical_mask",
            "torch.nn.functional._none_or_dtype torch.nn.functional._mha_shape_check",
            "torch.nn.functional._unpool_output_size torch._jit_internal._overload torch._jit_internal.boolean_dispatch",
            "torch._jit_internal.unused torch._jit_internal.ignore torch._jit_internal.export",
            "torch.nn.parallel.distributed.DistributedDataParallel.forward torch._tensor._convert",
            "torch.nn.parallel.data_parallel.DataParallel.forward",
            "torch._tensor._handle_torch_function_and_wrap_type_error_to_not_implemented",
        ),
    ),
    # What others than locks are made of; they wait for nobody
    (
        "TRACE",
        "",
        (
            "threading.Condition.__enter__ threading.Condition.__exit__ threading.Condition.notify",
            "threading.Condition.notify_all threading.Condition._is_owned threading.Semaphore.acquire",
            "threading.Semaphore.release threading.Semaphore.__exit__ threading.BoundedSemaphore.release",
            "threading.Event.is_set threading.Event.set threading.Event.clear",
        ),
    ),
    (
        "SKIP",
        "tensor-data",
        (
            "torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pad_packed_sequence",
            "torch.utils.dlpack.from_dlpack torch.from_dlpack",
        ),
    ),
    ("SKIP", "call-rng-state", ("torch.distributed.tensor.rand torch.distributed.tensor.randn",)),
    ("SKIP", "value-global-state", ("torch.cuda.current_stream torch.cuda.default_stream",)),
    # Of C, and handled as such; what a notebook has put in their place by now is Python, and not inlined
    ("SKIP", "call-print", ("builtins.print builtins.input builtins.open sys.stdout.write",)),
    (
        "SKIP",
        "call-subprocess",
        (
            "time.time time.perf_counter time.monotonic time.sleep time.time_ns time.perf_counter_ns time.process_time",
            "uuid.uuid4",
        ),
    ),
    ("SKIP", "call-builtin", ("builtins.__import__",)),
    ("SKIP", "call-compile-api", ("torch.compile",)),
    # Functions that speak to a compiler about another call than this one
    (
        "CALL",
        "",
        (
            "torch.compiler.cudagraph_mark_step_begin torch._dynamo.mark_dynamic torch._dynamo.maybe_mark_dynamic",
            "torch._dynamo.mark_static_address torch.compiler.disable torch._dynamo.disable torch._constrain_as_size",
            "fxjit.api.disable",
        ),
    ),
)

# What a call of these functions says to the compiler: interp/inline.py has the rule for each.
STEERING: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("user-graph-break", "", ("torch._dynamo.graph_break torch._dynamo.decorators.graph_break fxjit.api.graph_break",)),
    ("error-on-graph-break", "", ("torch._dynamo.error_on_graph_break torch._dynamo.decorators.error_on_graph_break",)),
    ("mark-static", "", ("torch._dynamo.mark_static torch._dynamo.decorators.mark_static fxjit.api.mark_static",)),
    ("user-skip-frame", "", ("torch._dynamo.skip_frame torch._dynamo.decorators.skip_frame fxjit.api.skip_frame",)),
    (
        "manager",
        "",
        (
            "torch._dynamo.decorators.override_cudagraphs torch._dynamo.decorators.patch_dynamo_config",
            "torch._dynamo.decorators.disable_nested_graph_breaks torch._dynamo.decorators.dont_skip_tracing",
        ),
    ),
    ("compile", "", ("fxjit.api.compile fxjit.install._torch_compile",)),
    ("comptime-print", "", ("torch._dynamo.comptime.comptime.print",)),
    ("user-debugger", "", ("pdb.set_trace pdb.post_mortem pdb.pm pdb.Pdb.set_trace bdb.Bdb.set_trace",)),
)

# Functions of C that walk containers and do nothing else, and the classes of what they make, which never changes. In the second
# place: functions that say on which state the walk depends besides. callables/container_walks.py runs them.
WALKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "walk",
        "optree._C.get_registry_size optree._C.is_dict_insertion_ordered",
        (
            "optree._C.flatten optree._C.flatten_with_path optree._C.is_leaf optree._C.make_leaf optree._C.make_none",
            "optree._C.make_from_collection optree._C.is_namedtuple optree._C.is_namedtuple_instance",
            "optree._C.is_namedtuple_class optree._C.namedtuple_fields optree._C.is_structseq optree._C.is_structseq_instance",
            "optree._C.is_structseq_class optree._C.structseq_fields optree._C.PyTreeSpec",
        ),
    ),
    (
        "walk",
        "",
        (
            "tree._tree.flatten tree._tree.assert_same_structure tree._tree.is_sequence tree._tree.is_namedtuple",
            "tree._tree.is_attrs tree._tree.same_namedtuples",
        ),
    ),
)

# Methods of classes of C whose packages have them in Python, too, with the same attributes to read: in the first place stands
# the module of those. They are traced in the place of the ones of C, where the module has such a function (wrapt before 2.0
# has not: there, the class of C takes the name).
TWINS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "wrapt.wrappers",
        "twin",
        (
            "wrapt._wrappers.FunctionWrapper.__call__ wrapt._wrappers.CallableObjectProxy.__call__",
            "wrapt._wrappers.BoundFunctionWrapper.__call__",
        ),
    ),
)

# Classes of C whose instances wrap a function, and make one of the class in the first place when they are read as methods.
BINDERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("wrapt._wrappers.BoundFunctionWrapper", "binder", ("wrapt._wrappers.FunctionWrapper",)),
)

# (module, name of the code) of functions that decide by counters which change from call to call and put no operator in the
# graph: traced, they would be compiled once for each way that they go. The code's name, as `functools.wraps` gives wrappers
# the name of what they wrap: a scheduler wraps its optimizer's `step`.
BOOKKEEPING = frozenset({("torch.optim.lr_scheduler", "step")})

# Modules that a name may ask for although the program has not imported them: they are cheap and always there.
_IMPORTABLE = frozenset({"builtins", "platform", "sys", "time"})


def resolve(name: str) -> Any:
    """The object a dotted name stands for, or None. Imports nothing but a few modules of the standard library."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is None and cut == 1 and parts[0] in _IMPORTABLE:
            module = importlib.import_module(parts[0])
        if module is None:
            continue
        found: Any = module
        for part in parts[cut:]:
            # A module's __getattr__ may import; what is not there yet cannot have been called.
            found = found.__dict__.get(part) if isinstance(found, type(sys)) else getattr(found, part, None)
            if found is None:
                break
        else:
            return found
    return None


class Rows:
    """Rows by identity of the function; names of modules that are imported later are looked up again, and all of them when the
    drop-in came or went: a name of torch may stand for ours, and both are what the row says."""

    def __init__(self, table: tuple[tuple[str, str, tuple[str, ...]], ...]) -> None:
        self._found: dict[int, tuple[Any, str, str]] = {}
        self._all = [(verdict, reason, name) for verdict, reason, lines in table for name in " ".join(lines).split()]
        self._missing = self._all
        self._modules = self._changes = -1

    def get(self, fn: Any) -> tuple[str, str] | None:
        if self._modules != len(sys.modules) or self._changes != changes():
            self._look_up()
        entry = self._found.get(id(fn))
        return (entry[1], entry[2]) if entry is not None else None

    def _look_up(self) -> None:
        self._modules = len(sys.modules)
        names, self._changes = self._missing if self._changes == changes() else self._all, changes()
        missing = []
        for verdict, reason, name in names:
            found = resolve(name)
            if found is None:
                missing.append((verdict, reason, name))
            else:
                found = found.__func__ if isinstance(found, MethodType) else found
                self._found.setdefault(id(found), (found, verdict, reason))
        self._missing = missing

    def unresolved(self) -> list[str]:
        """Names that nothing answers to: not imported yet, or not of this version."""
        self._look_up()
        return [name for _, _, name in self._missing]


rows = Rows(ROWS)
_steering = Rows(STEERING)
walks = Rows(WALKS)
_twins = Rows(TWINS)
_binders = Rows(BINDERS)


def twin_of(method: Any) -> FunctionType | None:
    """The function of Python that does what a method of C does, and is traced in its place."""
    row = _twins.get(method)
    if row is None:
        return None
    module, cls, name = row[0], method.__objclass__.__name__, method.__name__
    found = resolve(f"{module}.{cls}.{name}")
    return found if isinstance(found, FunctionType) else None


def bound_class_of(kind: type) -> type | None:
    """The class of C whose instances a descriptor of the C class `kind` makes."""
    row = _binders.get(kind)
    found = None if row is None else resolve(row[0])
    return found if isinstance(found, type) else None


def is_bookkeeping(fn: FunctionType | None) -> bool:
    """Whether a call of `fn` had better break the graph than be traced, where that is possible."""
    return fn is not None and (str(fn.__globals__.get("__name__")), fn.__code__.co_name) in BOOKKEEPING


def steering(fn: Any) -> str | None:
    """The id in STEERING of a function that directs the front end, or None."""
    found = _steering.get(fn)
    return found[0] if found is not None else None
