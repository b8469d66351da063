"""Job scripts from templates: a pure function of the request and the templates.

A site puts templates of the same names (``slurm.sh.j2``, ``job.sh.j2``, ...) into a folder of its own. They take the
place of ours; one that begins with ``{% extends "dist_mp/slurm.sh.j2" %}`` changes single blocks and leaves the rest.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import jinja2

from dist_mp.errors import UserError
from dist_mp.launch.request import JobRequest, clock, slurm_time

TEMPLATES = Path(__file__).resolve().parent / "templates"
PREFIX = "dist_mp/"
"""In front of a name it means our template, whatever the site has."""


def render(job: JobRequest, templates: Path | None = None) -> str:
    """The script of a job.

    Args:
        job: what it asks for.
        templates: the site's folder; what it lacks is ours.

    Raises:
        UserError: the site's folder does not exist, or a template of it has a mistake; the message has file and line.
    """
    if templates is not None and not templates.is_dir():
        raise UserError(f"--templates {templates}: no such folder")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_loader(templates)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML
    )
    environment.filters |= {
        "quote": lambda value: shlex.quote(str(value)),
        "double_quote": lambda value: (
            f'"{value}"' if any(char in str(value) for char in " \t&|<>*()[]") else str(value)
        ),
        "slurm_time": slurm_time,
        "clock": clock,
        "hours_minutes": lambda minutes: f"{minutes // 60}:{minutes % 60:02d}",
    }
    name = f"{job.scheduler}.sh.j2"
    try:
        return environment.get_template(name).render(job=job)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"{error.filename or error.name}:{error.lineno}: {error.message}") from error
    except jinja2.TemplateNotFound as error:
        raise UserError(
            f"--templates {templates}: a template asks for {error.message}, which does not exist"
        ) from error
    except jinja2.TemplateError as error:
        raise UserError(f"{_place(error) or name}: {error.message}") from error


def _loader(templates: Path | None) -> Callable[[str], tuple[str, str, Callable[[], bool]] | None]:
    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        own = name.removeprefix(PREFIX)
        folders = [TEMPLATES] if name.startswith(PREFIX) or templates is None else [templates, TEMPLATES]
        for folder in folders:
            path = folder / own
            if path.is_file():
                return path.read_text(encoding="utf-8"), str(path), lambda: True
        return None

    return load


def _place(error: BaseException) -> str:
    """File and line of the template that a rendering error came from."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            place = f"{os.path.relpath(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
