"""The place of SGLang's bootstrap server, which this system does without.

SGLang builds one in the main process of each prefill engine, so this module must not load UCX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    BaseKVBootstrapServer = object
else:
    from sglang.srt.disaggregation.base import BaseKVBootstrapServer

__all__ = ["NullBootstrapServer"]


class NullBootstrapServer(BaseKVBootstrapServer):
    """Serves nothing: addresses travel on the bus, topology when the planes connect."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
