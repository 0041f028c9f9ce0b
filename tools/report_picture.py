"""`python tools/report_picture.py docs/report.png`: the page of a small run (`python -m fxjit report`) as a picture, as
Chromium shows it. Needs `chromium` (or `google-chrome`) on the path, for this alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile
def train(x, y, scale):
    loss = nn.functional.cross_entropy(model(x) * scale, y)
    print("loss", float(loss))
    return loss * scale

for step, rows in enumerate((32, 32, 48, 64)):
    loss = train(torch.randn(rows, 64), torch.randint(0, 10, (rows,)), 1.0 if step < 3 else 0.5)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WIDTH, TALLEST = 1100, 2600


def picture(page: Path, out: Path) -> None:
    """The page, from its top down to its end or to the greatest height."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("neither chromium nor google-chrome is on the path")
    base = [browser, "--headless=new", "--disable-gpu", "--no-sandbox", "--hide-scrollbars"]
    asking = page.with_name("asking.html")
    asking.write_text(page.read_text() + "<script>document.title = document.documentElement.scrollHeight</script>")
    shown = subprocess.run([*base, f"--window-size={WIDTH},800", "--dump-dom", asking.as_uri()], capture_output=True, text=True,
                           check=True).stdout
    height = min(int(shown.split("<title>")[1].split("<")[0]) + 1, TALLEST)
    taking = [f"--window-size={WIDTH},{height}", f"--screenshot={out}"]
    subprocess.run([*base, *taking, page.as_uri()], capture_output=True, check=True)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        cache = {"FXJIT_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "fxjit", "report", "train.py"]
        subprocess.run(command, cwd=folder, env=os.environ | cache, check=True)
        picture(Path(folder) / "fxjit_report" / "report.html", out.resolve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
