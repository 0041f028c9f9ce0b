"""One logger an artifact, under `fxjit.`, off unless turned on.

`FXJIT_LOGS=graph_breaks,+guards` or `set_logs(graph_breaks=True)` turns them on; `+name` shows more. Code that has
something to show does `log = logs.artifact("guards")` once and `log.info(...)` / `log.debug(...)`; when making the text
costs something it checks `logs.enabled("guards")` first. Warnings are shown whether an artifact is on or not.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from . import config
from .errors import ConfigError, InvalidArgument, displayed, near

ARTIFACTS: Mapping[str, str] = {
    "graph_breaks": "each graph break: reason, explanation, hint, developer context, user stack",
    "skips": "each frame that is given up, and why",
    "recompiles": "each second compile of the same code, with the guard that failed",
    "guards": "the guards of each entry (+: with the place that asked for each)",
    "graph_code": "each captured graph as Python",
    "graph": "each captured graph as a table",
    "aot_graphs": "the forward and backward graphs that AOTAutograd makes",
    "output_code": "generated C++ and Triton",
    "bytecode": "each frame's bytecode before and after",
    "fusion": "which operators share a kernel, and why others do not",
    "autotuning": "which block sizes were measured for GPU kernels, and which was taken",
    "cache": "hits and misses of the cache on the disk",
    "cudagraphs": "which compiled graphs are not recorded as CUDA graphs, which calls are not replays, and why",
    "trace": "each instruction as it is run symbolically",
    "dynamic": "which sizes became symbols, and why",
    "compile": "each frame as it is compiled, with the seconds of each stage",
    "tiers": "each graph that is compiled in the background, and when its code is in place",
    "hook": "the frame hook being installed and removed",
}
ALIASES: Mapping[str, str] = {
    "dynamo": "trace",
    "recompiles_verbose": "recompiles",
    "schedule": "fusion",
    "inductor": "output_code",
    "aot": "aot_graphs",
}
WARNING, INFO, DEBUG = logging.WARNING, logging.INFO, logging.DEBUG

_ROOT = logging.getLogger("fxjit")


class _Handler(logging.Handler):
    """Writes to the present sys.stderr, unless the program has set up logging of its own and gets the records there."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # as logging does: showing something must not break the program
            self.handleError(record)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        prefix = f"[fxjit.{record.name.rpartition('.')[2]}] "
        head, newline, rest = text.partition("\n")
        return prefix + head + newline + rest


def artifact(name: str) -> logging.Logger:
    """The logger of one artifact; the name must be a row of ARTIFACTS."""
    if name not in ARTIFACTS:
        raise ConfigError(f"fxjit has no log {displayed(name)}. {near(name, ARTIFACTS)}")
    return logging.getLogger(f"fxjit.{name}")


def enabled(name: str) -> bool:
    return artifact(name).isEnabledFor(logging.INFO)


def set_logs(spec: str | None = None, /, *, all: bool | int | None = None, **artifacts: bool | int) -> None:
    """Shows these artifacts and no others: `set_logs(graph_breaks=True, guards=logging.DEBUG)`, `set_logs("+guards")`.

    True is what FXJIT_LOGS=name gives, logging.DEBUG what `+name` gives, False leaves it off. Without an argument all
    are off.
    """
    if spec is not None and not isinstance(spec, str):
        raise InvalidArgument(f"set_logs: expected names of logs as in FXJIT_LOGS, not {displayed(spec)}.")
    levels = dict.fromkeys(ARTIFACTS, logging.WARNING)
    if all is not None:
        levels = dict.fromkeys(ARTIFACTS, _level("all", all))
    asked = {**_parse(spec or ""), **{name: _level(name, value) for name, value in artifacts.items()}}
    for name, level in asked.items():
        if name == "all":
            levels = dict.fromkeys(ARTIFACTS, level)
            continue
        levels[_known(name)] = level
    for name, level in levels.items():
        artifact(name).setLevel(level)


def is_known(name: str) -> bool:
    return name == "all" or ALIASES.get(name, name) in ARTIFACTS


def _known(name: str) -> str:
    name = ALIASES.get(name, name)
    if not is_known(name):
        raise ConfigError(f"fxjit has no log {displayed(name)}. {near(name, [*ARTIFACTS, 'all'])}")
    return name


def _level(name: str, value: Any) -> int:
    if value is True:
        return logging.INFO
    if value is False or value is None:
        return logging.WARNING
    if isinstance(value, int):
        return value
    raise ConfigError(f"set_logs: {name} must be True, False or a level of logging, not {displayed(value)}.")


def _parse(spec: str) -> dict[str, int]:
    levels: dict[str, int] = {}
    for item in spec.replace(" ", ",").split(","):
        name = item.strip().lstrip("+-")
        if name:
            level = {"+": logging.DEBUG, "-": logging.WARNING}.get(item.strip()[0], logging.INFO)
            levels[name if name == "all" else _known(name)] = level
    return levels


def _set_up() -> None:
    handler = _Handler()
    handler.setFormatter(_Formatter())
    _ROOT.addHandler(handler)
    _ROOT.setLevel(logging.WARNING)
    set_logs(config.logs)
    config.on_change(lambda name, value: set_logs(value) if name == "logs" else None)


_set_up()
