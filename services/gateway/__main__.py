"""Starts a gateway: `python -m services.gateway --help`."""

from __future__ import annotations

from libs.lifecycle import run
from services.gateway.app import SERVICE, build
from services.gateway.settings import Settings

if __name__ == "__main__":
    run(SERVICE, Settings, build)
