"""The configuration of a run: tables of settings, presets, TOML files and flags.

Policy files are in ``fedaf.config.policies``, which imports PyTorch; nothing here does.
"""

from fedaf.config.configuration import Config, build, changed, custom_names, describe, merge, split_kind
from fedaf.config.flags import FLAGS, accepts_flags, from_flags, parse_setting, refuse_unused, setting
from fedaf.config.toml import read_file, read_toml

__all__ = [
    "FLAGS",
    "Config",
    "accepts_flags",
    "build",
    "changed",
    "custom_names",
    "describe",
    "from_flags",
    "merge",
    "parse_setting",
    "read_file",
    "read_toml",
    "refuse_unused",
    "setting",
    "split_kind",
]
