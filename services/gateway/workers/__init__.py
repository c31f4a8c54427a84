"""Several processes of one gateway: started, kept alive, ended, and counted as one."""

from services.gateway.workers.loopback import fetch
from services.gateway.workers.parent import run_workers
from services.gateway.workers.sums import Sums

__all__ = ["Sums", "fetch", "run_workers"]
