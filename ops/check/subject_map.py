"""The subject map: what `proto/subjects.py` builds, with placeholders for ids."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from ops.check.messages import summary
from proto import subjects
from proto.ids import Incarnation, InstanceId
from proto.workers import Role, WorkerRef

__all__ = ["subject_rows"]

_NOT_SUBJECTS = frozenset({"template", "PREFIX"})


def subject_rows() -> Iterator[tuple[str, str, str]]:
    """Go through (name, subject, meaning), constants first."""
    texts = _docstrings_of_constants()
    for name in subjects.__all__:
        value = getattr(subjects, name)
        if name not in _NOT_SUBJECTS and isinstance(value, str):
            yield name, value, texts.get(name, "")
    for name in subjects.__all__:
        value = getattr(subjects, name)
        if name not in _NOT_SUBJECTS and inspect.isfunction(value):
            arguments = [_placeholder(argument) for argument in inspect.signature(value).parameters]
            yield f"{name}()", value(*arguments), summary(value).removeprefix("Return ")


def _placeholder(argument: str) -> object:
    if argument == "ref":
        return WorkerRef(
            role=Role.PREFILL,
            instance=InstanceId("{instance}"),
            incarnation=Incarnation("{incarnation}"),
        )
    return f"{{{argument}}}"


def _docstrings_of_constants() -> dict[str, str]:
    texts: dict[str, str] = {}
    body = ast.parse(inspect.getsource(subjects)).body
    for number, node in enumerate(body[:-1]):
        match node, body[number + 1]:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split()).removesuffix(".")
            case _:
                pass
    return texts
