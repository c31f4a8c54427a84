"""Settings: one frozen Struct a process, loaded once from file, environment and command line."""

from libs.config.errors import SettingsError
from libs.config.fields import Field, env_name, fields_of
from libs.config.loader import HelpWanted, help_text, load
from libs.config.mask import Secret, masked
from libs.config.service import LogLevel, ServiceSettings

__all__ = [
    "Field",
    "HelpWanted",
    "LogLevel",
    "Secret",
    "ServiceSettings",
    "SettingsError",
    "env_name",
    "fields_of",
    "help_text",
    "load",
    "masked",
]
