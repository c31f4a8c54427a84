"""What prefill and decode workers share: leases, tombstones, the engine's keeper, control verbs."""

from libs.worker.attempt import Attempt, Work, subject_of
from libs.worker.controls import Verb
from libs.worker.leases import Lease, LeaseTable
from libs.worker.tombstones import Tombstones
from libs.worker.upkeep import contained
from libs.worker.worker import Worker

__all__ = [
    "Attempt",
    "Lease",
    "LeaseTable",
    "Tombstones",
    "Verb",
    "Work",
    "Worker",
    "contained",
    "subject_of",
]
