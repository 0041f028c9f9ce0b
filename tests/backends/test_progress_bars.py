"""torch.fx's progress bars are off while AOTAutograd compiles, and where a graph runs node by node: their lock, which forked
processes share, is not asked for."""

from __future__ import annotations

import threading

import pytest
import torch

import fxjit


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_a_lock_that_somebody_died_with_stops_no_compile_and_no_call(monkeypatch, backend):
    tqdm = pytest.importorskip("tqdm").tqdm
    held = threading.Lock()
    held.acquire()
    monkeypatch.setattr(tqdm, "_lock", held, raising=False)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4)

    def run() -> None:
        compiled = fxjit.compile(model, backend=backend)
        fxjit.compile(lambda y: y.view(-1)[:3].add_(1), backend=backend)(torch.ones(2, 3))
        compiled(x)
        compiled(x).sum().backward()

    done = threading.Thread(target=run, daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive() and model[0].weight.grad is not None


def test_bars_that_are_on_are_shown(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(torch.fx.config, "disable_progress", False)
    fxjit.compile(lambda x: x.sin() + 1, backend="aot_eager")(torch.randn(3, requires_grad=True))
    assert "%" in capsys.readouterr().err
