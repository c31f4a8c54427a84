"""Starts the router service: `python -m services.router --help`."""

from __future__ import annotations

from libs.lifecycle import run
from services.router.app import SERVICE, build
from services.router.settings import Settings

if __name__ == "__main__":
    run(SERVICE, Settings, build)
