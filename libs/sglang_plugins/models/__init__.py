"""The architectures that our own models need, so that SGLang need not import all it knows.

SGLang reads this package through `SGLANG_EXTERNAL_MODEL_PACKAGE`; what is not here it still finds.
"""

from __future__ import annotations

__all__: list[str] = []
