"""SGLang on a CPU without kernels of its own: PyTorch's operators do everything.

Selected by name (`SGLANG_PLATFORM`), never found by chance. SGLang's own CPU platform needs
compiled kernels that its wheel does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities

if TYPE_CHECKING:
    # SGLang's classes are not typed well enough to derive from.
    class CpuDeviceMixin: ...

    class SRTPlatform: ...

else:
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.interface import SRTPlatform

__all__ = ["PlainCpuPlatform", "activate"]


def activate() -> str:
    """Return the path of the platform class, as SGLang's loader wants it."""
    return f"{__name__}.PlainCpuPlatform"


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """SGLang's CPU device operations without any capability that needs kernels."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """Return False: there is no device to pin memory for."""
        return False

    def get_default_attention_backend(self) -> str:
        """Return the backend that needs no kernels."""
        return "torch_native"
