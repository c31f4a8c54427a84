"""Getting a model folder onto this machine: convert, generate, or take what is there.

Nothing here imports torch, and nothing here runs a model.
"""

from libs.models.api import ModelFolder, ModelUnavailableError, Progress
from libs.models.resolve import resolve

__all__ = ["ModelFolder", "ModelUnavailableError", "Progress", "resolve"]
