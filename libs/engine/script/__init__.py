"""The parts of the scripted engine: a model without weights whose answers read its KV memory."""

from libs.engine.script.settings import (
    MARKERS,
    Action,
    AnswerMode,
    Fault,
    Phase,
    Profile,
    ScriptOptions,
)

__all__ = ["MARKERS", "Action", "AnswerMode", "Fault", "Phase", "Profile", "ScriptOptions"]
