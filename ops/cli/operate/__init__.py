"""What operators do to a running stack: look at requests, cancel one, drain and restart."""

from ops.cli.operate.commands import COMMANDS

__all__ = ["COMMANDS"]
