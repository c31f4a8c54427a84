"""Telling tool calls and reasoning apart from the text of an answer, with SGLang's own parsers."""

from libs.engine.parse.api import AnswerParser, Parsed, Parsers, UnreadableTools
from libs.engine.parse.load import load_parsers
from libs.engine.parse.names import ParserNames, check_names, known_names
from libs.engine.parse.shape import AnswerShaper

__all__ = [
    "AnswerParser",
    "AnswerShaper",
    "Parsed",
    "ParserNames",
    "Parsers",
    "UnreadableTools",
    "check_names",
    "known_names",
    "load_parsers",
]
