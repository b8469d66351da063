"""The wheel holds what the repository keeps outside the package: the launcher and the configurations."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from dist_mp import __version__

ROOT = Path(__file__).resolve().parents[1]


def test_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"dist_mp-{__version__}-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        configs = {path.name for path in (ROOT / "configs").glob("*.yaml")}
        sources = {path.name for path in (ROOT / "launch").glob("*.py")}
        templates = {path.name for path in (ROOT / "launch" / "templates").glob("*.j2")}
        report = {f"dist_mp/experiments/report/templates/report.{kind}" for kind in ("html.j2", "css", "js")}
        assert report <= names
        assert len(templates) == 5 and {f"dist_mp/launch/templates/{name}" for name in templates} <= names
        assert {f"dist_mp/configs/{name}" for name in configs} <= names
        assert {f"dist_mp/launch/{name}" for name in sources} <= names
        assert {"dist_mp/py.typed", "dist_mp/cli/app.py", "dist_mp/codec/lanes.py"} <= names
        assert not [name for name in names if name.startswith(("tests/", "configs/", "launch/")) or "pycache" in name]
        (entry,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "dist-mp = dist_mp.cli:main" in archive.read(entry).decode()
