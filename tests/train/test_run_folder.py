"""The folder of a run: made, locked, continued, or refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.train.checkpoint_files import FOLDER, MANIFEST
from dist_mp.train.run_folder import RunRequest, drop_torn_line, open_run_folder
from tests.train.test_checkpoint_files import write

HOLDER = """
import sys
from pathlib import Path
from dist_mp.train.run_folder import lock_folder
lock = lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def config_in(folder: Path, **more: Any) -> Config:
    return Config.model_validate({"run_folder": str(folder / "runs"), **more})


def test_a_new_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    config = config_in(tmp_path, name="first")
    runs = [open_run_folder(config, RunRequest()) for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    for run in runs:
        assert run.checkpoint is None and run.notes == []
        assert run.path.name.startswith("first-")
        assert settings.load(run.path / "config.yaml") == config
        assert (run.path / FOLDER).is_dir() and (run.path / "logs").is_dir()


def test_continued_from_its_newest_checkpoint(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    path = open_run_folder(config, RunRequest()).path
    for step in (3, 7):
        write(path, step, config=config.model_dump())
    (path / "metrics.jsonl").write_text('{"kind":"step"}\n{"kind":"st')
    (path / "summary.json").write_text("{}")
    changed = config_in(tmp_path, train={"epochs": 9})
    run = open_run_folder(changed, RunRequest(path))
    assert run.checkpoint is not None and run.checkpoint.manifest.step == 7
    assert run.notes == ["settings changed since the checkpoint: train.epochs 1 -> 9"]
    assert (path / "metrics.jsonl").read_text() == '{"kind":"step"}\n'
    assert not (path / "summary.json").exists()
    assert settings.load(path / "config.yaml") == changed


def test_a_damaged_checkpoint_is_a_note(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    path = open_run_folder(config, RunRequest()).path
    for step in (3, 7):
        write(path, step, config=config.model_dump())
    (path / FOLDER / "step-00000007" / MANIFEST).write_bytes(b"x")
    run = open_run_folder(config, RunRequest(path))
    assert run.checkpoint is not None and run.checkpoint.manifest.step == 3
    (note,) = run.notes
    assert "step-00000007/manifest.json is damaged" in note and note.endswith("the one before it is taken")


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({"seed": 2}, "seed 1 -> 2"),
        ({"data": {"kind": "campaign", "length": 32}}, "data.length 64 -> 32"),
        ({"model": {"kind": "disruption", "units": 8}}, "model.units 64 -> 8"),
        ({"optimizer": {"name": "adam"}}, "optimizer.name sgd -> adam"),
    ],
)
def test_settings_that_must_stay(tmp_path: Path, values: dict[str, Any], change: str) -> None:
    config = config_in(tmp_path)
    path = open_run_folder(config, RunRequest()).path
    write(path, 3, config=config.model_dump())
    with pytest.raises(UserError, match=f"settings have changed that a run is tied to: {change}; put them back"):
        open_run_folder(config_in(tmp_path, **values, train={"epochs": 4}), RunRequest(path))
    assert settings.load(path / "config.yaml") == config, "nothing was written"


def test_settings_that_may_change_are_named(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    path = open_run_folder(config, RunRequest()).path
    write(path, 3, config=config.model_dump())
    values = {
        "optimizer": {"clip_norm": 2.0},
        "model": {"kind": "disruption", "dropout": 0.5},
        "exchange": {"codec": "one_bit"},
    }
    run = open_run_folder(config_in(tmp_path, **values), RunRequest(path))
    assert run.notes == [
        "settings changed since the checkpoint: exchange.codec auto -> one_bit, model.dropout 0.0 -> 0.5, "
        "optimizer.clip_norm 0.0 -> 2.0"
    ]


def test_nothing_to_continue(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with pytest.raises(UserError, match="nowhere: no such run folder"):
        open_run_folder(config, RunRequest(tmp_path / "nowhere"))
    path = open_run_folder(config, RunRequest()).path
    with pytest.raises(UserError, match="holds no checkpoint"):
        open_run_folder(config, RunRequest(path))


def test_into_begins_and_continues(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    request = RunRequest(tmp_path / "runs" / "job-17", new_is_fine=True)
    assert open_run_folder(config, request).checkpoint is None
    again = open_run_folder(config, request)
    assert again.checkpoint is None and again.notes == ["there is no checkpoint yet; the run begins"]
    write(request.folder or tmp_path, 3, config=config.model_dump())
    continued = open_run_folder(config, request)
    assert continued.checkpoint is not None and continued.checkpoint.manifest.step == 3


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    own = open_run_folder(config, RunRequest())
    path = own.path
    write(path, 3, config=config.model_dump())
    own.release()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        before = sorted(p.name for p in path.rglob("*"))
        with pytest.raises(UserError, match=rf"another run writes to it \(process {holder.pid} on .* since .*\); wait"):
            open_run_folder(config, RunRequest(path))
        assert sorted(p.name for p in path.rglob("*")) == before
        holder.kill()
    assert open_run_folder(config, RunRequest(path)).checkpoint is not None, "a lock does not outlive its process"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config.model_validate({"run_folder": str(tmp_path / "file")})
    with pytest.raises(UserError, match=r"run_folder .*file: cannot write there \(.*\); name another"):
        open_run_folder(config, RunRequest())


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs a folder that root cannot write either")  # noqa: PTH112
def test_a_read_only_folder(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with pytest.raises(UserError, match=r"/sys/kernel: cannot write there \(.*\); name another"):
        open_run_folder(config, RunRequest(Path("/sys/kernel"), new_is_fine=True))


def test_checkpoints_in_another_place(tmp_path: Path) -> None:
    config = config_in(tmp_path, checkpoint={"folder": str(tmp_path / "fast")})
    path = open_run_folder(config, RunRequest()).path
    write(path, 3, config=config.model_dump())
    assert (tmp_path / "fast" / path.name / "step-00000003" / MANIFEST).is_file()
    run = open_run_folder(config, RunRequest(path))
    assert run.checkpoint is not None and run.checkpoint.manifest.step == 3


@pytest.mark.parametrize(("text", "kept"), [("", ""), ("a\nb\n", "a\nb\n"), ("a\nb", "a\n"), ("a", "")])
def test_a_torn_line_is_cut_off(tmp_path: Path, text: str, kept: str) -> None:
    (tmp_path / "m").write_text(text)
    drop_torn_line(tmp_path / "m")
    assert (tmp_path / "m").read_text() == kept
