"""Programs under torch's launchers: each process that a launcher starts is a rank, and compiles with fxjit if the launcher, or
the program, was started by `python -m fxjit run`."""

from __future__ import annotations

import subprocess
import sys

from fxjit import config

#: Trains a little on each rank, eager and compiled by torch's own names, the graphs as they were captured: kernels under
#: DistributedDataParallel are test_ddp's. The losses are the same numbers.
TRAIN = '''
import os, sys
import torch, torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def losses(compiles):
    torch.manual_seed(0)
    model = compiles(DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4, generator=torch.Generator().manual_seed(step + dist.get_rank()))).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

def train(rank=None, **group):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", **({} if rank is None else {"rank": rank}), **group)
    expected, found = losses(lambda model: model), losses(lambda model: torch.compile(model, backend="eager"))
    import fxjit
    torch.testing.assert_close(found, expected)
    said = (dist.get_rank(), dist.get_world_size(), fxjit.installed(), fxjit.counters["frames"]["ok"] > 0, sys.argv[1:])
    os.write(1, f"done {' '.join(map(str, said))}\\n".encode())  # at once: both ranks write here
    dist.barrier()
    dist.destroy_process_group()
    if "--fails" in sys.argv and said[0] == 1:
        sys.exit("this rank ends with an error")
'''
SCRIPT = TRAIN + '''
if __name__ == "__main__":
    train()
'''
SPAWNS = TRAIN + '''
def train_spawned(rank, file):
    train(rank, world_size=2, init_method=f"file://{file}")

if __name__ == "__main__":
    torch.multiprocessing.spawn(train_spawned, (sys.argv[1],), nprocs=2)
'''
RANKS = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def done(folder, text: str, *command: str) -> tuple[int, list[str], str]:
    """The exit status of a program, what its ranks say when they are done, and its errors."""
    (folder / "program.py").write_text(text)
    program = subprocess.Popen([sys.executable, "-W", "ignore", "-m", *command], cwd=folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=config.child_environment(OMP_NUM_THREADS="1"))
    try:
        said, errors = program.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        program.terminate()  # a launcher ends its ranks
        raise AssertionError(f"it has not ended: {program.communicate(timeout=60)}") from None
    return program.returncode, sorted(line for line in said.splitlines() if line.startswith("done")), errors


def test_the_launcher_starts_fxjit(tmp_path):
    status, said, errors = done(tmp_path, SCRIPT, *RANKS, "-m", "fxjit", "run", "program.py", "--flag")
    assert (status, said) == (0, [f"done {rank} 2 True True ['--flag']" for rank in range(2)]), errors


def test_fxjit_starts_the_launcher_and_a_rank_that_fails_is_its_error(tmp_path):
    status, said, errors = done(tmp_path, SCRIPT, "fxjit", "run", "-m", *RANKS, "program.py", "--fails")
    assert (status, said) == (1, [f"done {rank} 2 True True ['--fails']" for rank in range(2)]), errors
    assert "this rank ends with an error" in errors


def test_fxjit_starts_a_program_that_spawns_its_ranks(tmp_path):
    store = str(tmp_path / "store")
    status, said, errors = done(tmp_path, SPAWNS, "fxjit", "run", "program.py", store)
    assert (status, said) == (0, [f"done {rank} 2 True True {[store]}" for rank in range(2)]), errors
