"""Starts the decode service: `python -m services.decode --help`."""

from __future__ import annotations

from libs.lifecycle import run
from services.decode.app import SERVICE, build
from services.decode.settings import Settings

if __name__ == "__main__":
    run(SERVICE, Settings, build)
