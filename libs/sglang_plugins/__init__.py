"""What SGLang loads through its entry points: a plain-CPU platform and the `ucx` KV backend.

Only this face may be imported outside SGLang's own processes.
"""

from libs.sglang_plugins.address import decode_address, encode_address
from libs.sglang_plugins.options import BACKEND, PLATFORM, PLUGIN, BackendOptions, draft_of

__all__ = [
    "BACKEND",
    "PLATFORM",
    "PLUGIN",
    "BackendOptions",
    "decode_address",
    "draft_of",
    "encode_address",
]
