"""dist-mp data: list, fetch, prepare and inspect, as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dist_mp.cli.data import make_app
from dist_mp.data.catalogue import catalogue
from dist_mp.errors import UserError
from tests.conftest import RunCli

SHARED = Path(__file__).resolve().parents[2].parent / "shared/data"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> object:
    def run(*arguments: object) -> str:
        capsys.readouterr()
        make_app()([str(a) for a in arguments], prog_name="data", standalone_mode=False)
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def campaign(call, tmp_path: Path) -> Path:  # type: ignore[no-untyped-def]
    """Raw shots, made and damaged: shot 3 has a dead signal, shot 5 no current."""
    out = call("fetch", "campaign", "--folder", tmp_path / "raw", "--shots", 12, "--seed", 4)
    assert "licence  Apache-2.0" in out and "12 shots, 14 scalars, 2 profiles" in out
    assert f"use      dist-mp data prepare {tmp_path / 'raw'} OUT" in out
    signals = tmp_path / "raw/signal_data/campaign"
    (signals / "ip/5.txt").unlink()
    path = signals / "density/3.txt"
    table = np.loadtxt(path) if path.is_file() else np.loadtxt(signals / "ip/3.txt")
    np.savetxt(path, np.column_stack([table[:, 0], np.full(len(table), 2.0)]))
    return tmp_path / "raw"


def test_list_shows_size_and_licence(call) -> None:  # type: ignore[no-untyped-def]
    out = call("list")
    for name, entry in catalogue().items():
        assert name in out and entry.licence in out
    assert "84.1 MB" in out and "made on this machine" in out and "size not known beforehand" in out


def test_from_raw_shots_to_a_report(call, campaign: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    raw = call("inspect", campaign)
    assert "campaign: 12 shots listed, 5 of them disruptive" in raw
    out = call("prepare", campaign, tmp_path / "shots", "--minimum-steps", 50)
    assert "10 shots kept" in out
    refused = ["2 shots were refused, by signal: density 1, ip 1", "shot 3: density: flat during the whole shot"]
    refused.append("shot 5: ip: not recorded; without the current")
    assert all(line in out for line in refused)
    assert f"use      data.kind=shots data.path={tmp_path / 'shots'}" in out
    report = call("inspect", tmp_path / "shots")
    assert all(line in report for line in refused)
    assert "10 ms a step, profiles of 64 points" in report
    assert "disruptive shots: " in report and "(median " in report
    assert "te_profile: mean " in report and " keV" in report
    with pytest.raises(UserError, match="shots: exists already"):
        call("prepare", campaign, tmp_path / "shots")


def test_a_plot_of_a_shot(call, campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    call("prepare", campaign, tmp_path / "shots", "--minimum-steps", 50)
    image = tmp_path / "shot.png"
    assert call("inspect", tmp_path / "shots", "--shot", 4, "--plot", image) == f"{image}\n"
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 20_000
    for arguments, message in (
        (("--shot", 3, "--plot", image), "shot 3 was refused: density: flat"),
        (("--shot", 99, "--plot", image), "shot 99 is not among 10 shots"),
        (("--shot", 4), "--shot NUMBER and --plot FILE belong together"),
        (("--shot", 4, "--plot", tmp_path / "no/shot.png"), "no/shot.png: cannot be drawn"),
        (("--shot", 4, "--plot", tmp_path / "shot.xyz"), "shot.xyz: cannot be drawn"),
    ):
        with pytest.raises(UserError, match=message):
            call("inspect", tmp_path / "shots", *arguments)
    with pytest.raises(UserError, match="only prepared shots are drawn"):
        call("inspect", campaign, "--shot", 4, "--plot", image)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'dist-mp\[plot\]'"):
        call("inspect", tmp_path / "shots", "--shot", 4, "--plot", image)


def write_folder(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / kind
    folder.mkdir()
    if kind == "text":
        for part in ("train", "valid", "test"):
            (folder / f"my.{part}.txt").write_text("a b <unk>\nb c\n")
    elif kind == "series":
        lines = "".join(f"{i},{i + 1},2:{'ab'[i % 2]}\n" for i in range(10))
        for part in ("TRAIN", "TEST"):
            (folder / f"S_{part}.ts").write_text(f"@timestamps false\n@classLabel true a b\n@data\n{lines}")
    elif kind == "reviews":
        for part in ("train", "test"):
            for label in ("pos", "neg"):
                (folder / f"aclImdb/{part}/{label}").mkdir(parents=True)
                for i in range(4):
                    (folder / f"aclImdb/{part}/{label}/{i}_1.txt").write_text("so " * (i + 1))
    elif kind == "arrays":
        numbers = np.arange(8)
        images = np.zeros((8, 4, 4), np.uint8) + numbers[:, None, None].astype(np.uint8)
        np.savez(folder / "own.npz", x_train=images, y_train=numbers % 2, x_test=images, y_test=numbers % 2)
    return folder


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("text", ["a corpus", "train: 7 words, 5 different ones, 14.29% unknown"]),
        ("series", ["a time series file", "train: 8, 3 to 3 steps", "a 4, b 4"]),
        ("reviews", ["aclImdb", "test: 8, 1 to 4 steps (median 2), 20 in all", "neg 4, pos 4"]),
        ("arrays", ["arrays", "images of 4 x 4 x 1", "0 3, 1 3", "0 4, 1 4"]),
    ],
)
def test_inspect_says_what_it_finds(call, tmp_path: Path, kind: str, facts: list[str]) -> None:  # type: ignore[no-untyped-def]
    folder = write_folder(tmp_path, kind)
    out = call("inspect", folder)
    assert all(fact in out for fact in facts), out
    if kind == "text":
        assert "7 / 7 / 7 words (train / valid / test), vocabulary 3" in call(
            "prepare", folder, tmp_path / "out", "--max-words", 3
        )
        report = call("inspect", tmp_path / "out")
        assert "a prepared corpus" in report and "train: 7 words, 3 different ones, 42.86% unknown" in report
        return
    with pytest.raises(UserError, match="which is read as it is; only raw shots and corpora are prepared"):
        call("prepare", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mistakes_get_one_line(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for arguments, message in (
        (("inspect", tmp_path / "nowhere"), "nowhere: no such file or folder"),
        (("inspect", tmp_path), "holds nothing that is known; known are prepared shots"),
        (("inspect", Path(__file__)), "holds nothing that is known"),
        (("fetch", "minst"), "no data set 'minst'; did you mean mnist"),
        (("fetch", "mnist", "--mirror", "http://x", "--from", tmp_path), "--mirror and --from exclude each other"),
        (("fetch", "mnist", "--from", tmp_path, "--folder", tmp_path / "m"), "holds neither train-images"),
        (("prepare", tmp_path / "nowhere", tmp_path / "out"), "nowhere: no such file or folder"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call(*arguments)
        assert str(caught.value).isprintable()


SMALL = """
name: recorded
precision: fp32
data: {kind: shots, path: shots, length: 32, warning_steps: 60, deadline_steps: 3, ignore_steps: 5}
model: {kind: disruption, layers: 1, units: 6, filters: 4, profile_dense: 8}
train: {batch_size: 2, max_steps: 6}
"""


def test_prepared_shots_train_on_2_ranks(call, campaign: Path, tmp_path: Path, run_cli: RunCli) -> None:  # type: ignore[no-untyped-def]
    call("prepare", campaign, tmp_path / "shots")
    (tmp_path / "c.yaml").write_text(SMALL)
    done = run_cli(["run", "-n", "2", "c.yaml"], timeout=100, env={"OMPI_MCA_mpi_yield_when_idle": "1"})
    assert done.rc == 0, done.stderr
    assert "shots: 7 training (3 disruptive" in done.stderr
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert 0.0 <= json.loads(summary.read_text())["metrics"]["auc"] <= 1.0
    refused = run_cli(["run", "-n", "2", "c.yaml", "data.path=raw"], timeout=60)
    assert refused.rc == 2
    (line,) = [line for line in refused.stderr.splitlines() if not line.startswith("dist-mp: ")]
    assert line.startswith("error: raw/index.json: cannot be read: ") and "dist-mp data prepare" in line


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real data beside this checkout (../shared/data)")
def test_inspect_of_real_data(call) -> None:  # type: ignore[no-untyped-def]
    assert "train: 1,096,830 words, 10,000 different ones" in call("inspect", SHARED / "brown")
    vowels = call("inspect", SHARED / "japanese_vowels/JapaneseVowels_TRAIN.ts")
    assert "test: 370, 7 to 29 steps" in vowels and "1 31, 2 35, 3 88" in vowels
    assert "neg 1,032, pos 1,089" in call("inspect", SHARED / "movie_snippets_aclImdb_layout.tar.gz")
