"""Starts a gateway: `python -m services.gateway --help`."""

from __future__ import annotations

import os
import sys

from libs.config import HelpWanted, SettingsError, load
from libs.lifecycle import run
from services.gateway.app import SERVICE, build
from services.gateway.settings import Settings
from services.gateway.workers import run_workers


def main() -> None:
    """Run one process, or the parent of several; ends the process."""
    try:
        settings = load(Settings, SERVICE, sys.argv[1:], os.environ)
    except (HelpWanted, SettingsError):
        settings = None
    if settings is not None and settings.workers > 1:
        sys.exit(run_workers(settings, sys.argv[1:]))
    # Also says what is wrong with the settings.
    run(SERVICE, Settings, build)


if __name__ == "__main__":
    main()
