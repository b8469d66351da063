"""Help, configuration commands and mistakes, each as a user meets it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from dist_mp import __version__, settings
from dist_mp.cli.app import make_app, run_command_line
from tests.conftest import RunCli

COMMANDS = [["run"], ["train"], ["config"], ["config", "show"], ["config", "fields"], ["config", "list"], ["bench"]]
COMMANDS += [["bench", name] for name in ("allreduce", "codec", "step", "model", "data")]
COMMANDS += [["data"], *(["data", name] for name in ("list", "fetch", "prepare", "inspect"))]


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['dist-mp', *command])}")
    assert max(map(len, text.splitlines())) <= 100


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([]) == 0
    bare = capsys.readouterr().out
    assert run_command_line(["--help"]) == 0
    assert bare == capsys.readouterr().out
    names = [command.name for command in make_app().registered_commands]
    assert all(f"  {name} " in bare for name in names)


def test_version(run_cli: RunCli) -> None:
    done = run_cli(["--version"])
    assert (done.rc, done.stdout) == (0, f"dist-mp {__version__}\n")


def test_config_show_can_be_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["config", "show", "quickstart", "train.epochs=2", "schedule.base=1e-3"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(text)
    again = settings.load(tmp_path / "again.yaml")
    assert again == settings.load("quickstart", ["train.epochs=2", "schedule.base=1e-3"])
    assert again.train.epochs == 2 and again.schedule.base == 1e-3
    assert set(yaml.safe_load(text)) >= {"data", "model", "optimizer", "schedule", "exchange", "train"}


def test_config_fields_documents_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["config", "fields"]) == 0
    text = capsys.readouterr().out
    for row in settings.field_rows():
        assert f"\n{row.path}: " in f"\n{text}"
        assert row.description and row.description in text
    assert run_command_line(["config", "fields", "optimizer"]) == 0
    assert all(line.startswith(("optimizer.", "    ")) for line in capsys.readouterr().out.splitlines())


def test_config_list_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(settings.bundled_configs())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu", "quickstart"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run"], "no configuration: name a YAML file or a bundled one"),
        (["run", "quickstart", "-n", "two"], "Invalid value for '-n' / '--ranks': "),
        (["run", "quickstart", "-n", "0"], "Invalid value for '-n' / '--ranks': "),
        (["run", "quickstart", "--rank", "2"], "No such option: --rank"),
        (["run", "quickstrt"], "no configuration 'quickstrt': did you mean quickstart?"),
        (["run", "quickstart", "train.epoch=3"], "train.epoch=3: no such setting; did you mean train.epochs?"),
        (["run", "quickstart", "train.epochs"], "'train.epochs' is not a setting; write key=value"),
        (["run", "quickstart", "--hostfile", "nowhere"], "--hostfile nowhere: no such file"),
        (
            ["run", "-n", "3", "quickstart", "train.global_batch=32"],
            "train.global_batch: is 32, but train.batch_size 16 x 3 ranks x train.accumulation 1 = 48; change one",
        ),
        (["train", "nowhere.yaml"], "no configuration 'nowhere.yaml': bundled ones are "),
        (["bench", "step", "--precisions", "fp8"], "bench step: unknown precision 'fp8': valid are fp32, bf16, fp16"),
        (["bench", "step", "--peers", "nowhere"], "--peers nowhere: no nowhere/horovod/bin/python; install horovod"),
        (["bench", "allreduce", "--sizes", "2^x"], "Invalid value: '2^x' is not a number such as"),
        (["config", "fields", "optimiser"], "config fields: no section 'optimiser'; there are checkpoint, data, "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {message}") and said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_dry_run_prints_a_command_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["run", "-n", "2", "--dry-run", "--mpi-arg", "-v", "quickstart", "run_folder=it's"]) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert " -n 2 " in line and " -v " in line
    assert shlex.split(line)[-2:] == ["quickstart", "run_folder=it's"]


def test_a_reader_that_stops_reading_ends_it_quietly(run_cli: RunCli) -> None:
    shell = f"{sys.executable} -m dist_mp config fields | head -1"
    done = run_cli([], program=["bash", "-c", shell])
    assert (done.stderr, done.stdout) == ("", "name: run\n")
