"""The two ends of a room, and the table where prefill's offers and decode's wants meet."""

from libs.transfer.rooms.fetch import FetchRoom
from libs.transfer.rooms.offer import Filled, OfferRoom
from libs.transfer.rooms.table import EarlyWant, OfferTable
from libs.transfer.rooms.tally import FINAL

__all__ = ["FINAL", "EarlyWant", "FetchRoom", "Filled", "OfferRoom", "OfferTable"]
