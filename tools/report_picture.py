"""`python tools/report_picture.py docs/report.png`: the page of a small run (`python -m fxjit report`) as a picture, as
Chromium shows it. Needs `pip install PyQt6-WebEngine`, for this alone."""

from __future__ import annotations

import os
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
    """The page, from its top down to its end or to the greatest height, after it was laid out."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    application = QApplication(["report_picture"])
    view = QWebEngineView()
    view.resize(WIDTH, 800)

    def grab() -> None:
        view.grab().save(str(out))
        application.quit()

    def fit(height: float) -> None:
        view.resize(WIDTH, min(int(height) + 1, TALLEST))
        QTimer.singleShot(1500, grab)

    def loaded(well: bool) -> None:
        if not well:
            raise SystemExit(f"{page} cannot be shown")
        view.page().runJavaScript("document.documentElement.scrollHeight", fit)

    view.loadFinished.connect(loaded)
    view.load(QUrl.fromLocalFile(str(page)))
    view.show()
    application.exec()


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        cache = {"FXJIT_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "fxjit", "report", "train.py"]
        subprocess.run(command, cwd=folder, env=os.environ | cache, check=True)
        picture(Path(folder) / "fxjit_report" / "report.html", out.resolve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
