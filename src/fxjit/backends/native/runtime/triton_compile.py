"""Compiles kernels in Triton to binaries: in processes of their own, several at a time, through the disk cache.

A binary's key is a hash of all it is made from. The processes are started when there is something to compile, and end
with this one. Where a kernel is in the cache, Triton is not even imported.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fxjit import config, logs
from fxjit.backends.store.artifacts import BINARY, Cache, KernelCache, count, open_cache
from fxjit.errors import TritonCompileError

log = logs.artifact("cache")
MOST_PROCESSES = 8
WARM_PROCESSES = 4
# Eager's kernels keep denormals and round every product: so do these.
OPTIONS = {"enable_fp_fusion": False, "enable_reflect_ftz": False, "sanitize_overflow": False}


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel: its code, and what its launch needs. `parameters` counts those that Triton added, too."""

    code: bytes
    name: str
    shared: int
    warps: int
    parameters: int


@functools.cache
def triton_version() -> str:
    return importlib.metadata.version("triton")


def key_of(job: dict[str, Any]) -> str:
    return hashlib.sha256("\0".join([triton_version(), json.dumps(job, sort_keys=True)]).encode()).hexdigest()[:40]


class Worker:
    """A compiling process, used by one thread at a time; for a GPU that is known, it is warm before its first kernel."""

    def __init__(self, arch: int | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fxjit-triton-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("triton_worker.py")), *([] if arch is None else [str(arch)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=config.child_environment(TRITON_CACHE_DIR=self.folder.name, TRITON_INTERPRET="0", PYTHONWARNINGS="ignore"),
        )

    def request(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self.end()
            raise TritonCompileError(f"The process that compiles kernels ended ({self.process.returncode}).\n{job['source']}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TritonCompileError(f"Triton refused a kernel: {answer['error']}\n{job['source']}")
        return answer

    def end(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)  # it ends with its input
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Compiler:
    """The processes, and the kernels on their way by key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None
        self.idle: list[Worker] = []
        self.under_way: dict[str, Future[Binary]] = {}
        self.pid = os.getpid()

    def submit(self, job: dict[str, Any]) -> Future[Binary]:
        """The binary, from the cache or from a process; a job that is under way is not begun again."""
        key, cache = key_of(job), open_cache()
        with self.lock:
            self.own_processes()
            known = self.under_way.get(key)
            if known is not None and not (known.done() and known.exception()):
                return known
            ready = read_binary(cache, key)
            count(ready is not None)
            log.info("%s %s", "hit" if ready else "miss", key)
            future: Future[Binary]
            if ready is not None:
                future = Future()
                future.set_result(ready)
            else:
                if self.pool is None:
                    self.pool = ThreadPoolExecutor(process_count(), thread_name_prefix="fxjit-triton")
                future = self.pool.submit(self.compile, job, key, cache)
            self.under_way[key] = future
            return future

    def own_processes(self) -> None:
        if self.pid != os.getpid():  # a fork: the processes are the parent's
            self.pool, self.idle, self.under_way, self.pid = None, [], {}, os.getpid()

    def warm(self, arch: int) -> None:
        """Starts processes ahead of the first kernel, which Triton takes a second longer for, while the graph is still traced:
        where no kernel is in the cache, and processors are free."""
        count = min(process_count(), WARM_PROCESSES, ((os.cpu_count() or 1) - 1) // 2)
        kept = open_cache()
        if count > 0 and not (isinstance(kept, KernelCache) and any(name.endswith(BINARY) for name in kept.names())):
            with self.lock:
                self.own_processes()
                if self.pool is None:
                    self.idle += [Worker(arch) for _ in range(count - len(self.idle))]

    def compile(self, job: dict[str, Any], key: str, cache: Cache) -> Binary:
        answer = self.answer(job)
        binary = Binary(
            base64.b64decode(answer["cubin"]), answer["name"], answer["shared"], answer["warps"], answer["parameters"]
        )
        write_binary(cache, key, binary)
        return binary

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            worker = self.idle.pop() if self.idle else None
        if worker is None:
            worker = Worker()
        try:
            answer = worker.request(job)
        except TritonCompileError:
            if worker.process.poll() is None:
                self.idle.append(worker)
            raise
        self.idle.append(worker)
        return answer

    def end(self) -> None:
        if self.pid == os.getpid():
            for worker in self.idle:
                worker.end()


def process_count() -> int:
    return config.triton.compile_processes or min(os.cpu_count() or 1, MOST_PROCESSES)


def read_binary(cache: Cache, key: str) -> Binary | None:
    """A binary in the cache: a line of JSON, then the code."""
    data = cache.get(key, BINARY)
    if data is None:
        return None
    head, _, code = data.partition(b"\n")
    try:
        facts = json.loads(head)
        return Binary(code, facts["name"], facts["shared"], facts["warps"], facts["parameters"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def write_binary(cache: Cache, key: str, binary: Binary) -> None:
    facts = {"name": binary.name, "shared": binary.shared, "warps": binary.warps, "parameters": binary.parameters}
    cache.put(key, BINARY, json.dumps(facts).encode() + b"\n" + binary.code)


compiler = Compiler()
atexit.register(compiler.end)
