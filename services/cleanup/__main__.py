"""Starts the cleanup service: `python -m services.cleanup --help`."""

from __future__ import annotations

from libs.lifecycle import run
from services.cleanup.app import SERVICE, build
from services.cleanup.settings import Settings

if __name__ == "__main__":
    run(SERVICE, Settings, build)
