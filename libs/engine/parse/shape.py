"""The outputs of a job with its answer taken apart."""

from __future__ import annotations

import msgspec

from libs.engine.parse.api import AnswerParser, Parsed
from proto.gateway import FinishReason
from proto.host import JobFailed, JobFinished, JobOutput, JobTokens
from proto.output import Details

__all__ = ["AnswerShaper"]


class AnswerShaper:
    """Replaces the raw text of a job's outputs by what its parser makes of it."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._called = False
        self._reasoning = 0
        self._unclear = 0
        """Tokens that may turn out to be the beginning of the reasoning."""

    def shape(self, output: JobOutput) -> JobOutput:
        """Return the output as it is to be given."""
        match output:
            case JobTokens():
                return self._tokens(output)
            case JobFinished():
                return self._end(output)
            case JobFailed():
                return output

    def _tokens(self, output: JobTokens) -> JobTokens:
        before = self._parser.thinking
        parsed = self._parser.feed(output.text)
        self._called = self._called or bool(parsed.calls)
        self._count(len(output.ids) // 4, parsed, before=before)
        details = _details(parsed, output.details)
        return msgspec.structs.replace(output, text=parsed.text, details=details)

    def _end(self, output: JobFinished) -> JobFinished:
        parsed = self._parser.end()
        self._called = self._called or bool(parsed.calls)
        stopped = output.finish is FinishReason.STOP
        return msgspec.structs.replace(
            output,
            text=parsed.text,
            details=_details(parsed, None),
            finish=FinishReason.TOOL_CALLS if stopped and self._called else output.finish,
            reasoning_tokens=self._reasoning,
        )

    def _count(self, tokens: int, parsed: Parsed, *, before: bool) -> None:
        """Count tokens that came in the reasoning; its marks are a part of it."""
        if before or self._parser.thinking or parsed.reasoning:
            self._reasoning += tokens + self._unclear
            self._unclear = 0
        elif parsed.text or parsed.calls:
            self._unclear = 0
        else:
            self._unclear += tokens


def _details(parsed: Parsed, known: Details | None) -> Details | None:
    if not parsed.reasoning and not parsed.calls:
        return known
    known = Details() if known is None else known
    return msgspec.structs.replace(known, reasoning=parsed.reasoning, calls=parsed.calls)
