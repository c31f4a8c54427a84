"""`python -m ops.cli` is the `pdbus` program."""

from __future__ import annotations

from ops.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
