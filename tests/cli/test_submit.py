"""``dist-mp submit`` where there is no scheduler: what it prints, and what it refuses before anything is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dist_mp.cli.app import run_command_line
from dist_mp.launch.mpirun import find_mpirun

DOCS = Path(__file__).resolve().parents[2] / "docs"


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command_line(["submit", "quickstart", *arguments, "--dry-run"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _in_a_folder_without_schedulers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_what_is_not_given_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = dry_run(capsys, "--scheduler=slurm", "--nodes=2", "--ntasks-per-node=3", "threads=4")
    assert "#SBATCH --cpus-per-task=4\n" in script and "#SBATCH --time=01:00:00\n" in script
    assert "#SBATCH --signal=B:USR1@120\n" in script and "#SBATCH --job-name=quickstart\n" in script
    mpi = "pmix" if find_mpirun().vendor == "Open MPI" else "pmi2"
    assert f"srun --mpi={mpi} --ntasks=6 --cpus-per-task=4" in script
    assert f"cd {tmp_path} || exit 2" in script
    assert "#SBATCH --signal=B:USR1@15\n" in dry_run(capsys, "--scheduler=slurm", "--time=1")
    for scheduler in ("pbs", "lsf"):
        assert "dist_mp run -n 6 " in dry_run(capsys, f"--scheduler={scheduler}", "--nodes=3", "--ntasks-per-node=2")
    assert list(tmp_path.iterdir()) == []


def test_templates_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of docs/cluster.md, by option and by variable."""
    (example,) = re.findall(r"```jinja\n(.*?)```", (DOCS / "cluster.md").read_text(encoding="utf-8"), re.DOTALL)
    site = tmp_path / "site"
    site.mkdir()
    (site / "slurm.sh.j2").write_text(example)
    wanted = "module purge\nmodule load openmpi/5.0\nexport A=1\n"
    assert wanted in dry_run(capsys, "--scheduler=slurm", "--templates=site", "--setup=export A=1")
    monkeypatch.setenv("DIST_MP_TEMPLATES", str(site))
    assert wanted in dry_run(capsys, "--scheduler=slurm", "--setup=export A=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes=2", "train.global_batch=16"], "train.global_batch: is 16, but train.batch_size 16 x 2 ranks"),
        (["--sweep=train.epochs=1,none"], "train.epochs=none: must be an integer > 0"),
        (["--sweep=train.epochs=1,2", "train.epochs=3"], "train.epochs is set twice"),
        (["threads=8", "--cpus-per-task=4"], "--cpus-per-task 4: the setting threads is 8"),
        (["--time=tomorrow"], "--time tomorrow: must be minutes"),
        (["--launcher=aprun"], "--launcher aprun: must be srun or mpirun"),
        (["--scheduler=condor"], "--scheduler condor: must be auto, slurm, pbs, lsf"),
        (["--scheduler=auto"], "no scheduler here"),
        (["--job-name=a b"], "--job-name 'a b'"),
        (["--templates=nowhere"], "--templates nowhere: no such folder"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["", "dry"])
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], message: str, dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["submit", "quickstart", "--scheduler=slurm", *arguments, *dry]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or "quickstart" in path.name]


def test_jobs_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["status"]) == 0
    assert capsys.readouterr().out == "no job was submitted to runs\n"
    for command in ("status", "logs", "cancel"):
        assert run_command_line([command, "12"]) == 2
        assert "12: no job of this id was submitted with dist-mp to runs" in capsys.readouterr().err


def test_commands_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """Each ``dist-mp submit`` of docs/cluster.md and README.md gives a script."""
    pages = [DOCS / "cluster.md", DOCS.parent / "README.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    commands = [line.split("#")[0] for line in re.findall(r"^    dist-mp (submit .*)$", text, re.MULTILINE)]
    assert len(commands) >= 4
    for command in commands:
        words = [word for word in shlex.split(command) if word != "--dry-run"]
        assert run_command_line([*words, "--scheduler=slurm", "--dry-run"]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH ")
