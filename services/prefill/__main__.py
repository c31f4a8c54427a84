"""Starts the prefill service: `python -m services.prefill --help`."""

from __future__ import annotations

from libs.lifecycle import run
from services.prefill.app import SERVICE, build
from services.prefill.settings import Settings

if __name__ == "__main__":
    run(SERVICE, Settings, build)
