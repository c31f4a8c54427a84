"""Running a model: the engine port, its host process, and the engines behind it."""

from libs.engine.api import Engine, EngineDead, EngineFactory, Outputs

__all__ = ["Engine", "EngineDead", "EngineFactory", "Outputs"]
