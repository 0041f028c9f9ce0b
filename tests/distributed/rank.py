"""One rank of the tests' process group: runs functions of test files, named by path, as the parent sends them.

    python rank.py DESCRIPTOR RANK WORLD_SIZE FOLDER

DESCRIPTOR is of the connection to the parent; FOLDER holds the file by which the ranks of gloo meet. SIGUSR1 shows all stacks.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib.util
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed

import fxjit


def main(descriptor: int, rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[2]))  # for what a test imports of the repository
    fxjit.config.cache_graphs = fxjit.config.small_graphs_as_captured = False  # as all tests have it
    modules: dict[str, ModuleType] = {}
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with Connection(descriptor) as parent:
        for count, (path, name, args) in enumerate(iter(parent.recv, None)):
            store = torch.distributed.FileStore(f"{folder}/store{count}", world_size)
            limit = datetime.timedelta(seconds=60)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
            torch.distributed.barrier()  # a rank that ends its group while another one still connects to it would fail that
            try:
                parent.send(("returned", _run(modules, path, name, args)))
            except BaseException:  # whatever it was, the parent shows it
                parent.send(("raised", traceback.format_exc()))
            finally:
                torch.distributed.destroy_process_group()
                fxjit.reset()
                fxjit.counters.clear()


def _run(modules: dict[str, ModuleType], path: str, name: str, args: tuple[Any, ...]) -> Any:
    if path not in modules:
        spec = importlib.util.spec_from_file_location(f"on_rank_{len(modules)}", path)
        assert spec is not None and spec.loader is not None
        modules[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[path])
    torch.manual_seed(0)
    return getattr(modules[path], name)(*args)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
