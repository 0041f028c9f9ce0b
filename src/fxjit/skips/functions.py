"""Rules by function: the exceptions to what a function's module says. Data; `verdict` reads it.

A name is looked up when the first call is judged; a name that this torch or Python does not have is passed over, and a
test reports names that no supported version has.
"""

from __future__ import annotations

import importlib
import sys
from types import MethodType
from typing import Any

# (verdict, reason id, names)
ROWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Answers that depend on nothing but their (constant) arguments and on state that is guarded or does not change
    (
        "CONSTANT",
        "",
        (
            "torch.promote_types torch.can_cast torch.result_type torch.finfo torch.iinfo torch.typename",
            "torch.is_tensor torch.is_storage torch.get_default_dtype torch.get_default_device",
            "torch.are_deterministic_algorithms_enabled torch.is_deterministic_algorithms_warn_only_enabled",
            "torch.get_deterministic_debug_mode torch.get_float32_matmul_precision torch.is_warn_always_enabled",
            "torch.get_num_threads torch.get_num_interop_threads torch.is_vulkan_available",
            "torch.is_grad_enabled torch.is_inference_mode_enabled torch.is_autocast_enabled",
            "torch.is_autocast_cpu_enabled torch.is_autocast_cache_enabled torch.get_autocast_dtype",
            "torch.get_autocast_gpu_dtype torch.get_autocast_cpu_dtype torch.is_anomaly_enabled",
            "torch.is_anomaly_check_nan_enabled torch.is_complex",
            "torch.is_floating_point torch.compiled_with_cxx11_abi",
            "torch.cuda.is_available torch.cuda.device_count torch.cuda.current_device torch.cuda.is_bf16_supported",
            "torch.cuda.get_device_properties torch.cuda.get_device_capability torch.cuda.get_device_name",
            "torch.cuda.is_initialized torch.cuda.is_current_stream_capturing torch.accelerator.is_available",
            "torch.accelerator.current_accelerator torch.accelerator.device_count torch.xpu.is_available",
            "torch.mps.is_available torch.backends.mps.is_available torch.amp.is_autocast_available",
            "torch.cpu.is_available torch.cpu._is_avx2_supported torch.cpu._is_avx512_supported",
            "torch.cpu._is_avx512_bf16_supported torch.cpu._is_vnni_supported torch.cpu._is_amx_tile_supported",
            "torch.cpu._is_amx_fp16_supported",
            "torch.distributed.is_available torch.distributed.is_initialized torch.distributed.get_rank",
            "torch.distributed.get_world_size torch.distributed.get_backend",
            "torch.distributed.is_torchelastic_launched",
            "torch._C._get_tracing_state torch._C._is_tracing",
            "torch._C._get_cudnn_enabled torch._C._get_cublas_allow_tf32",
            "torch._C._has_torch_function torch._C._has_torch_function_unary torch._C._has_torch_function_variadic",
            "torch._C._is_torch_function_enabled torch._C._is_torch_function_all_disabled",
            "torch._C._functorch.maybe_current_level torch._C._functorch.is_batchedtensor",
            "torch._C._functorch.is_functorch_wrapped_tensor torch._C._functorch.is_gradtrackingtensor",
            "torch._C._len_torch_dispatch_stack torch._C._len_torch_function_stack",
            "torch._C._get_privateuse1_backend_name",
            "torch.jit.is_scripting torch.jit.is_tracing",
            "torch._jit_internal.is_scripting torch.onnx.is_in_onnx_export",
            "torch.utils._foreach_utils._get_foreach_kernels_supported_devices",
            "torch.utils._foreach_utils._get_fused_kernels_supported_devices",
            "torch._utils._get_device_index torch._utils._get_available_device_type",
            "torch._prims_common.is_boolean_dtype torch._prims_common.is_integer_dtype",
            "torch._prims_common.is_float_dtype torch._prims_common.is_complex_dtype",
            "torch.overrides.get_default_nowrap_functions torch.overrides.is_tensor_like",
            "torch.overrides.is_tensor_method_or_property",
            "torch.nn.functional._get_softmax_dim",
            "os.path.join os.path.basename os.path.dirname os.fspath os.getpid os.cpu_count",
            "sys.intern sys.getsizeof importlib.util.find_spec sys.is_finalizing",
            "operator.index operator.length_hint platform.system platform.machine platform.python_version",
        ),
    ),
    # Functions of torch that are put in the graph although their module says otherwise
    (
        "GRAPH",
        "",
        (
            "torch.sym_int torch.sym_float torch.sym_not torch.sym_max torch.sym_min torch.sym_ite torch.sym_sum",
            "torch.sym_sqrt torch._sym_sqrt torch.sym_fresh_size",
            "torch._assert torch._assert_async torch.chain_matmul",
            "torch._check torch._shape_as_tensor torch.segment_reduce torch.stft torch.istft",
        ),
    ),
    # Python functions of nn.functional that take callables, or work on shapes and flags only
    (
        "TRACE",
        "",
        (
            "torch.nn.functional.triplet_margin_with_distance_loss torch.nn.functional.assert_int_or_pair",
            "torch.nn.functional._verify_batch_size torch.nn.functional._verify_spatial_size",
            "torch.nn.functional._canonical_mask torch.nn.functional._none_or_dtype",
            "torch.nn.functional._mha_shape_check",
            "torch.nn.functional._unpool_output_size torch.nn.functional._list_with_default",
            "torch._jit_internal._overload torch._jit_internal.boolean_dispatch",
            "torch.autograd.function.once_differentiable torch.autograd.graph.save_on_cpu",
            "torch.nn.parallel.distributed.DistributedDataParallel.forward",
            "torch.random.fork_rng torch.profiler.record_function torch.cuda.amp.autocast_mode.autocast",
            "torch._tensor._convert torch._tensor._handle_torch_function_and_wrap_type_error_to_not_implemented",
        ),
    ),
    # Tensor methods written in Python that need the tensor itself
    (
        "SKIP",
        "call-autograd-engine",
        ("torch.Tensor.backward torch.autograd.backward torch.autograd.grad torch.autograd.functional.jacobian",),
    ),
    (
        "SKIP",
        "tensor-data",
        (
            "torch.Tensor.__reduce_ex__ torch.Tensor.__deepcopy__ torch.Tensor.share_memory_ torch.Tensor.storage",
            "torch.Tensor.__array__ torch.Tensor.__dlpack__",
            "torch.Tensor.__cuda_array_interface__ torch.Tensor.data_ptr",
            "torch.Tensor.untyped_storage torch.Tensor.pin_memory torch.Tensor.record_stream torch.save torch.load",
            "torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pad_packed_sequence",
            "torch.from_file torch.frombuffer torch.utils.dlpack.from_dlpack torch.from_dlpack torch.Tensor.set_",
        ),
    ),
    ("SKIP", "tensor-hook", ("torch.Tensor.register_hook torch.Tensor.register_post_accumulate_grad_hook",)),
    (
        "SKIP",
        "data-item",
        ("torch.Tensor.tolist torch.Tensor.item torch._C.TensorBase.tolist torch._C.TensorBase.item",),
    ),
    (
        "SKIP",
        "call-rng-state",
        (
            "torch.manual_seed torch.seed torch.initial_seed torch.get_rng_state torch.set_rng_state",
            "torch.cuda.manual_seed torch.cuda.manual_seed_all random.seed random.setstate random.getstate",
            "numpy.random.seed",
        ),
    ),
    (
        "SKIP",
        "value-global-state",
        (
            "torch.set_default_dtype torch.set_default_device torch.set_default_tensor_type torch.set_num_threads",
            "torch.use_deterministic_algorithms torch.set_float32_matmul_precision torch.set_warn_always",
            "torch.set_printoptions torch.cuda.set_device torch.cuda.synchronize torch.cuda.empty_cache",
            "torch.cuda.current_stream torch.cuda.default_stream torch.set_flush_denormal gc.collect",
            "torch.autograd.set_detect_anomaly sys.setrecursionlimit",
        ),
    ),
    ("SKIP", "call-print", ("builtins.print builtins.input builtins.open sys.stdout.write",)),
    (
        "SKIP",
        "call-subprocess",
        (
            "time.time time.perf_counter time.monotonic time.sleep",
            "time.time_ns time.perf_counter_ns time.process_time",
            "os.getenv os.urandom uuid.uuid4 datetime.datetime.now",
        ),
    ),
    ("SKIP", "call-builtin", ("builtins.exec builtins.eval builtins.compile builtins.__import__ builtins.vars",)),
    # Steering functions of torch and of fxjit: the front end has a rule of its own for each
    (
        "CALL",
        "",
        (
            "torch._dynamo.graph_break torch._dynamo.skip_frame torch._dynamo.decorators.skip_frame",
            "torch._dynamo.is_compiling torch.compiler.is_compiling torch.compiler.is_dynamo_compiling",
            "torch._dynamo.external_utils.is_compiling torch._utils.is_compiling torch.compiler.is_exporting",
            "torch.cond torch.while_loop",
            "torch.compiler.cudagraph_mark_step_begin",
            "torch._dynamo.mark_dynamic torch._dynamo.maybe_mark_dynamic",
            "torch._dynamo.mark_static_address torch.compiler.disable torch._dynamo.disable torch.compile",
            "torch._assert_scalar torch._constrain_as_size torch.utils.checkpoint.checkpoint",
            "fxjit.api.compile fxjit.api.disable",
        ),
    ),
)

# What a call of these very functions asks of the front end.
STEERING: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("user-graph-break", "", ("torch._dynamo.graph_break torch._dynamo.decorators.graph_break fxjit.api.graph_break",)),
    ("error-on-graph-break", "", ("torch._dynamo.error_on_graph_break torch._dynamo.decorators.error_on_graph_break",)),
    ("mark-static", "", ("torch._dynamo.mark_static torch._dynamo.decorators.mark_static fxjit.api.mark_static",)),
    ("user-skip-frame", "", ("torch._dynamo.skip_frame torch._dynamo.decorators.skip_frame fxjit.api.skip_frame",)),
    ("user-debugger", "", ("builtins.breakpoint pdb.set_trace pdb.post_mortem pdb.pm pdb.Pdb.set_trace bdb.Bdb.set_trace",)),
    (
        "is-compiling",
        "",
        (
            "torch.compiler.is_compiling torch.compiler.is_dynamo_compiling torch._dynamo.is_compiling",
            "torch._dynamo.external_utils.is_compiling torch._utils.is_compiling fxjit.api.is_compiling",
        ),
    ),
)

# Modules that a name may ask for although the program has not imported them: they are cheap and always there.
_IMPORTABLE = frozenset({"builtins", "gc", "math", "operator", "os", "platform", "random", "sys", "time"})


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
    """Rows by identity of the function; names of modules that are imported later are looked up again."""

    def __init__(self, table: tuple[tuple[str, str, tuple[str, ...]], ...]) -> None:
        self._found: dict[int, tuple[Any, str, str]] = {}
        self._missing = [(verdict, reason, name) for verdict, reason, lines in table for name in " ".join(lines).split()]
        self._modules = -1

    def get(self, fn: Any) -> tuple[str, str] | None:
        if self._modules != len(sys.modules):
            self._look_up()
        entry = self._found.get(id(fn))
        return (entry[1], entry[2]) if entry is not None else None

    def _look_up(self) -> None:
        self._modules = len(sys.modules)
        missing = []
        for verdict, reason, name in self._missing:
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


def steering(fn: Any) -> str | None:
    """What a call of this very function asks of the front end: an id of STEERING, or None."""
    found = _steering.get(fn)
    return found[0] if found is not None else None
