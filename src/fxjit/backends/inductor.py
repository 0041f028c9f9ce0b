"""torch's inductor, when requested by name. The one backend that may import torch._inductor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx


def inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles the graph with torch._inductor; `mode` and `options` mean what they mean for torch.compile."""
    from torch._inductor.compile_fx import compile_fx

    from .aot.captured_passes import with_dropout_between_layers

    patches = dict(options or {})
    if mode is not None and mode != "default":
        import torch._inductor

        patches = {**torch._inductor.list_mode_options(mode), **patches}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        compiled: Any = compile_fx(with_dropout_between_layers(gm), list(example_inputs), config_patches=patches or None)
    return compiled  # type: ignore[no-any-return]  # a callable for any use of ours
