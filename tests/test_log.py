"""A log file for each rank; rank 0 also warns on standard error."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from dist_mp.log import LOGGERS, rank_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, (level, propagate) in zip(loggers, before, strict=True):
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.mark.parametrize("rank", [0, 7])
def test_file_has_all_and_stderr_only_rank_0s_warnings(
    tmp_path: Path, rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_logging(tmp_path, rank)
    log = logging.getLogger("dist_mp.train.loop")
    log.info("step %d", 40 + rank)
    log.warning("slow disk")
    lines = (tmp_path / "logs" / f"rank-{rank:03d}.log").read_text().splitlines()
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT[\d:]{{8}}\.\d{{3}}Z rank {rank} INFO dist_mp.train.loop: step {40 + rank}", lines[0]
    )
    assert lines[1].endswith(f"rank {rank} WARNING dist_mp.train.loop: slow disk")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "dist-mp: warning: slow disk\n" if rank == 0 else "")


def test_python_warnings_go_to_the_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_logging(tmp_path, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("odd shape", stacklevel=1)
    assert "odd shape" in (tmp_path / "logs" / "rank-000.log").read_text()
    assert capsys.readouterr().err == ""


def test_second_call_moves_to_the_new_folder(tmp_path: Path) -> None:
    rank_logging(tmp_path / "a", 1)
    rank_logging(tmp_path / "b", 1)
    logging.getLogger("dist_mp").info("where")
    assert (tmp_path / "a" / "logs" / "rank-001.log").read_text() == ""
    assert (tmp_path / "b" / "logs" / "rank-001.log").read_text().count("where") == 1
