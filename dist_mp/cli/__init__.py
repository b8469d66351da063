"""The command line, ``dist-mp`` or ``python -m dist_mp``. Commands only; what they do lies on the floors below."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    from dist_mp.cli.app import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))
