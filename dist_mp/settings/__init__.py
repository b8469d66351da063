"""Settings from a file and the command line to a validated :class:`dist_mp.config.Config`."""

from __future__ import annotations

from dist_mp.settings.document import scalar_text
from dist_mp.settings.fields import Field, field_rows
from dist_mp.settings.load import bundled_configs, dump, find_config, load, resolve_batch

__all__ = ["Field", "bundled_configs", "dump", "field_rows", "find_config", "load", "resolve_batch", "scalar_text"]
