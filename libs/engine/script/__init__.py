"""The parts of the scripted engine: a model without weights whose answers read its KV memory."""

from libs.engine.script.settings import Action, AnswerMode, Fault, Phase, Profile, ScriptOptions

__all__ = ["Action", "AnswerMode", "Fault", "Phase", "Profile", "ScriptOptions"]
