"""Links between two planes, and the two sides of a plane that own them."""

from libs.transfer.links.decode import DecodeSide
from libs.transfer.links.parts import Parts
from libs.transfer.links.prefill import PrefillSide

__all__ = ["DecodeSide", "Parts", "PrefillSide"]
