"""The files of a checkpoint: what was written is what is read, and any change of a byte is noticed."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from dist_mp.config import Config
from dist_mp.errors import UserError
from dist_mp.train import checkpoint_files
from dist_mp.train.checkpoint_files import (
    FOLDER,
    MANIFEST,
    DamagedError,
    FileEntry,
    Manifest,
    begin_checkpoint,
    finish_checkpoint,
    list_checkpoints,
    newest_checkpoint,
    open_checkpoint,
    read_tensors,
    remove_checkpoint,
    tidy_checkpoints,
    write_manifest,
    write_tensors,
)

QUIET = hypothesis_settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.int32, np.uint8, np.float16, np.float64, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


def write(run: Path, step: int, **more: Any) -> Path:
    """A small checkpoint of a run."""
    folder = begin_checkpoint(run / FOLDER, step)
    weights = {"stack/lstm/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) + step, "bias": np.float32([step])}
    files = {
        "masters-00000-of-00002.safetensors": write_tensors(
            folder / "masters-00000-of-00002.safetensors", dict([*weights.items()][:1])
        ),
        "masters-00001-of-00002.safetensors": write_tensors(
            folder / "masters-00001-of-00002.safetensors", dict([*weights.items()][1:])
        ),
        "rank-00000.safetensors": write_tensors(folder / "rank-00000.safetensors", {"r": np.zeros(3, np.uint8)}),
    }
    write_manifest(folder, manifest(step, files=files, **more))
    return finish_checkpoint(folder)


def manifest(step: int, **more: Any) -> Manifest:
    values: dict[str, Any] = {
        "dist_mp": "0", "written": "2026-01-01T00:00:00Z", "step": step, "epoch": 1, "cursor": [(8, 3), (6, 2)],
        "ranks": 2, "loss_sum": 0.1 + 0.2, "weight_sum": float("nan"), "loss_scale": {"scale": 1024.0},
        "metrics": {"auc": float("inf"), "loss": 1 / 3}, "config": Config().model_dump(), "spec": {"length": 3},
    }  # fmt: skip
    return Manifest.model_validate(values | more)


@QUIET
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), ARRAYS, max_size=4))
def test_arrays_come_back_to_the_bit(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Any]) -> None:
    """By our reader and by the library's; in the order in which they were written."""
    tensors.pop("__metadata__", None)
    path = tmp_path_factory.mktemp("tensors") / "t.safetensors"
    entry = write_tensors(path, tensors)
    assert entry.bytes == path.stat().st_size
    for found in (read_tensors(path), load_file(path)):
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            assert found[name].tobytes() == value.tobytes()
    filled = [name for name, value in tensors.items() if value.size]
    assert [name for name in read_tensors(path) if name in filled] == filled


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write(folder, 12)
    return folder


def test_what_is_read_is_what_was_written(run: Path) -> None:
    checkpoint = newest_checkpoint(run)
    assert checkpoint.folder == run / FOLDER / "step-00000012"
    wanted = manifest(12, files=checkpoint.manifest.files)
    assert repr(checkpoint.manifest) == repr(wanted)  # NaN differs from itself
    assert checkpoint.config() == Config()
    weights = checkpoint.masters()
    assert list(weights) == ["stack/lstm/kernel", "bias"]
    np.testing.assert_array_equal(weights["stack/lstm/kernel"], [[12, 13, 14], [15, 16, 17]])
    assert list(checkpoint.tensors("rank-00000")) == ["r"]


@QUIET
@given(st.data())
def test_any_changed_byte_is_noticed(run: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One byte is changed, or a file is cut, extended or taken away: the checkpoint is damaged, and the file named."""
    copy = tmp_path_factory.mktemp("damaged") / "step-00000012"
    shutil.copytree(run / FOLDER / "step-00000012", copy)
    name = data.draw(st.sampled_from(sorted(path.name for path in copy.iterdir())))
    raw = (copy / name).read_bytes()
    match data.draw(st.sampled_from(["change", "cut", "extend", "remove"])):
        case "change":
            at = data.draw(st.integers(0, len(raw) - 1))
            flipped = raw[at] ^ data.draw(st.integers(1, 255))
            (copy / name).write_bytes(raw[:at] + bytes([flipped]) + raw[at + 1 :])
        case "cut":
            (copy / name).write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
        case "extend":
            (copy / name).write_bytes(raw + data.draw(st.binary(min_size=1, max_size=3)))
        case "remove":
            (copy / name).unlink()
    with pytest.raises(DamagedError, match=name.replace(".", r"\.")):
        open_checkpoint(copy)


def test_a_damaged_one_is_named_and_the_one_before_taken(tmp_path: Path) -> None:
    for step in (5, 9, 123456789):
        write(tmp_path, step)
    newest = tmp_path / FOLDER / "step-123456789"
    (newest / "rank-00000.safetensors").write_bytes(b"")
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).manifest.step == 9
    (line,) = said
    assert f"{newest / 'rank-00000.safetensors'} is damaged: 0 bytes, " in line
    assert line.endswith("; the one before it is taken")
    for folder in list_checkpoints(tmp_path):
        (folder / MANIFEST).unlink()
    with pytest.raises(UserError, match="all 3 checkpoints are damaged, the newest is step-123456789"):
        newest_checkpoint(tmp_path)


def test_no_checkpoint_and_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        newest_checkpoint(tmp_path)
    with pytest.raises(UserError, match="no such run folder"):
        newest_checkpoint(tmp_path / "other")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, 3)
    write_manifest(folder, manifest(3, format=2))
    with pytest.raises(UserError, match=r"format 2; this version of dist_mp reads format 1"):
        newest_checkpoint(tmp_path)


def test_one_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 3)
    unfinished = begin_checkpoint(tmp_path / FOLDER, 4)
    write_tensors(unfinished / "masters.safetensors", {"w": np.zeros(3, np.float32)})
    assert newest_checkpoint(tmp_path).manifest.step == 3
    tidy_checkpoints(tmp_path / FOLDER)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-00000003"]


def test_one_of_the_same_step_is_replaced_and_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two renames, the old one comes back."""
    write(tmp_path, 3, epoch=1)
    write(tmp_path, 3, epoch=2)
    assert newest_checkpoint(tmp_path).manifest.epoch == 2
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-00000003"]
    renamed = Path.rename
    calls = []

    def die(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 3, epoch=3)
    monkeypatch.undo()
    assert list_checkpoints(tmp_path) == []
    tidy_checkpoints(tmp_path / FOLDER)
    assert newest_checkpoint(tmp_path).manifest.epoch == 2


def test_one_that_is_half_removed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 3)
    folder = write(tmp_path, 4)

    def die(path: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        remove_checkpoint(folder)
    monkeypatch.undo()
    tidy_checkpoints(tmp_path / FOLDER)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-00000003"]


def test_an_old_setting_that_is_gone_is_named(tmp_path: Path) -> None:
    config = Config().model_dump()
    config["optimizer"]["warp"] = 3
    write(tmp_path, 3, config=config)
    with pytest.raises(UserError, match=r"its setting optimizer\.warp is not one of this version"):
        newest_checkpoint(tmp_path).config()


def test_the_reader_needs_neither_mpi_nor_tensorflow() -> None:
    tree = ast.parse(Path(checkpoint_files.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {n for n in names if n and n.startswith("dist_mp.") and n.split(".")[1] not in ("config", "errors")}
    assert isinstance(FileEntry(bytes=1, blake2b="00"), FileEntry)
