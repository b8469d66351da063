"""The pytest side of the MPI harness: the `mpi` marker, the `run_cli` fixture, the header."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from dist_mp.errors import UserError
from dist_mp.launch.mpirun import find_mpirun
from tests.harness.guard import Finished, run_guarded
from tests.harness.runner import RankError, child_environment, run_body

DEFAULT_RANKS = (1, 2, 3, 4)
DEFAULT_TIMEOUT = 60.0


def pytest_report_header() -> str:
    """Which MPI the tests run on."""
    try:
        return f"mpirun: {find_mpirun()}"
    except UserError as error:
        return f"mpirun: {error}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each number of ranks of the `mpi` marker."""
    marker = metafunc.definition.get_closest_marker("mpi")
    if marker is None:
        return
    if marker.args or set(marker.kwargs) - {"ranks", "timeout"}:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: mpi takes ranks=[...] and timeout=seconds only")
    if "ranks" not in metafunc.fixturenames:
        metafunc.fixturenames.append("ranks")
    counts = marker.kwargs.get("ranks", DEFAULT_RANKS)
    metafunc.parametrize("ranks", counts, ids=[f"np{count}" for count in counts])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test with the `mpi` marker under mpirun instead of here."""
    marker = pyfuncitem.get_closest_marker("mpi")
    if marker is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    call = {
        "file": str(pyfuncitem.path),
        "module": pyfuncitem.module.__name__,
        "class": pyfuncitem.cls.__name__ if pyfuncitem.cls else "",
        "function": pyfuncitem.function.__name__,
        "arguments": {name: pyfuncitem.funcargs[name] for name in names},
        "ranks": pyfuncitem.callspec.params["ranks"],
        "timeout": float(marker.kwargs.get("timeout", DEFAULT_TIMEOUT)),
    }
    folder = pyfuncitem._request.getfixturevalue("tmp_path_factory").mktemp("ranks")
    try:
        run_body(call, folder)
    except RankError as failure:
        pytest.fail(str(failure), pytrace=False)
    return True


RunCli = Callable[..., Finished]


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """Run ``python -m dist_mp ARGS`` (or the whole command line with ``program=[...]``) under guard.

    The function takes args, timeout=60 (seconds), cwd (default: the test's tmp_path), env (variables on top of the
    caller's environment), program, interrupt=(seconds, signal) and grace=2 (seconds to reap
    the job). It returns rc, stdout, stderr and seconds; a
    command that runs past its limit or leaves a process behind fails the test.
    """

    def run(
        args: Sequence[str],
        timeout: float = 60.0,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "dist_mp"),
        interrupt: tuple[float, int] | None = None,
        grace: float = 2.0,
    ) -> Finished:
        finished = run_guarded(
            [*program, *args],
            timeout=timeout,
            cwd=cwd or tmp_path,
            env=child_environment(env or {}),
            interrupt=interrupt,
            grace=grace,
        )
        said = f"\n{finished.stdout}\n{finished.stderr}"
        assert not finished.timed_out, f"{finished.argv} ran past {timeout:g} s{said}"
        assert not finished.left, f"{finished.argv} left behind {finished.left}{said}"
        return finished

    return run
