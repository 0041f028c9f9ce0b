"""The process-wide stance of compiled callables at a call: `set_stance`, and `config.disable`, which is one of them.

`api.py` calls `on_miss` when no entry fits; `force_eager` is known to the C side, which then looks for no entry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeVar

from . import _C, config, first_calls
from .errors import ConfigError, InvalidArgument, RecompileError, displayed, near

F = TypeVar("F", bound=Callable[..., Any])
STANCES = {
    "default": "compile what has no entry",
    "force_eager": "run everything eagerly, entries too",
    "eager_on_recompile": "use entries; run what has none eagerly",
    "fail_on_recompile": "use entries; raise where there is none",
    "eager_then_compile": "run eagerly at the first call, compile at the second",
    "aot_eager_then_compile": "the same",
}


@dataclass(frozen=True, slots=True)
class Stance:
    name: str = "default"
    skip_guard_eval_unsafe: bool = False


_current = Stance()


class set_stance:
    """Sets the stance: called as a function for good, as a context manager or decorator for a while.

    `skip_guard_eval_unsafe` is accepted for programs written for torch.compile; guards are checked all the same, which
    is always right and costs little.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
                 force_backend: object = None) -> None:
        if force_backend is not None:
            raise ConfigError("set_stance: force_backend is not supported; choose the backend where the function is compiled.")
        if not isinstance(stance, str):
            raise InvalidArgument(f"set_stance: a stance is a name, not {displayed(stance)}.")
        if stance not in STANCES:
            raise ConfigError(f"set_stance: there is no stance {displayed(stance)}. {near(stance, STANCES)}")
        self.stance = Stance(stance, skip_guard_eval_unsafe)
        self._before = _current
        _set(self.stance)

    def __enter__(self) -> None:
        _set(self.stance)

    def __exit__(self, *exc_info: object) -> None:
        _set(self._before)

    def __call__(self, fn: F) -> F:
        """As a decorator: the stance holds during calls of `fn` only."""
        _set(self._before)
        stance = self.stance

        @functools.wraps(fn)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            before = _current
            _set(stance)
            try:
                return fn(*args, **kwargs)
            finally:
                _set(before)

        return with_stance  # type: ignore[return-value]  # same signature as fn


def set_enable_guard_collectives(enabled: bool) -> bool:
    """Sets `config.guard_collectives`; returns what it was."""
    if not isinstance(enabled, bool):
        raise InvalidArgument(f"set_enable_guard_collectives: expected True or False, not {displayed(enabled)}.")
    before, config.guard_collectives = config.guard_collectives, enabled
    return before


def current() -> Stance:
    return _current


def on_miss(code: CodeType, key: object, args: Sequence[object]) -> bool:
    """No entry fits a frame: True to compile it, False to run it eagerly this time."""
    name = _current.name
    if name == "default":
        return True
    if name == "fail_on_recompile":
        raise RecompileError(
            f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) would be compiled, and the stance is "
            "'fail_on_recompile'."
        )
    if name in ("eager_then_compile", "aot_eager_then_compile"):
        return not first_calls.note(code, key, args)
    return False


def reset() -> None:
    first_calls.forget()


def _set(stance: Stance) -> None:
    global _current
    _current = stance
    _C.set_stance_eager(stance.name == "force_eager" or config.disable)


def _config_changed(name: str, value: Any) -> None:
    if name == "disable":
        _set(_current)


config.on_change(_config_changed)
_set(_current)
