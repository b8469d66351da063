"""``python -m dist_mp`` is ``dist-mp``."""

from __future__ import annotations

from dist_mp.cli import main

if __name__ == "__main__":
    main()
