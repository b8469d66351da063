"""Logging of a run: one file a rank, and warnings of rank 0 on standard error."""

from __future__ import annotations

import logging
import time
from pathlib import Path

LOGGERS = ("dist_mp", "py.warnings")
"""Our own messages, and what Python's `warnings` reports."""


def rank_logging(folder: Path, rank: int) -> None:
    """Send this process's messages to ``folder/logs/rank-NNN.log``, and rank 0's warnings to standard error as well.

    Each line has the time (UTC), the rank, the level and the module. Python warnings go to the file only. A second
    call moves the messages to the new folder.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(logs / f"rank-{rank:03d}.log", encoding="utf-8")
    text = f"%(asctime)s.%(msecs)03dZ rank {rank} %(levelname)s %(name)s: %(message)s"
    line = logging.Formatter(text, "%Y-%m-%dT%H:%M:%S")
    line.converter = time.gmtime
    file.setFormatter(line)
    logging.captureWarnings(True)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(file)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if rank == 0:
        screen = logging.StreamHandler()
        screen.setLevel(logging.WARNING)
        screen.setFormatter(logging.Formatter("dist-mp: warning: %(message)s"))
        logging.getLogger("dist_mp").addHandler(screen)
