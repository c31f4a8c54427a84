"""A model from a hub into a local folder; runs as a child process."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["main"]

_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")


def main() -> None:
    """Fetch the hub id `argv[1]` into the folder `argv[2]`."""
    # Its types are open-ended, and it is only here because a user named a model of a hub.
    hub: Any = importlib.import_module("huggingface_hub")
    print(f"asking the model hub for {sys.argv[1]}", flush=True)
    hub.snapshot_download(
        sys.argv[1], local_dir=sys.argv[2], allow_patterns=list(_PATTERNS), etag_timeout=10
    )


if __name__ == "__main__":
    main()
