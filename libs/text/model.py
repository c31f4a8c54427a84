"""All that a gateway needs to know of a model, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from libs.text.digest import tokenizer_digest
from libs.text.errors import ModelTextError
from libs.text.surround import Surround
from libs.text.template import ChatTemplate
from libs.text.tokenizer import Tokenizer

__all__ = ["ModelText"]

FileT = TypeVar("FileT")

_Eos = int | list[int] | None


class _AddedToken(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _GenerationConfig(msgspec.Struct):
    eos_token_id: _Eos = None


class _TextConfig(msgspec.Struct):
    """`config.json`, or the part of it that describes the language model."""

    max_position_embeddings: int | None = None
    n_positions: int | None = None
    seq_length: int | None = None
    eos_token_id: _Eos = None


class _Config(_TextConfig):
    text_config: _TextConfig | None = None


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    chat_template: str | list[_NamedTemplate] | None = None


@dataclass(frozen=True, slots=True)
class ModelText:
    """Tokenizer, chat template and limits of one model."""

    tokenizer: Tokenizer
    template: ChatTemplate
    context_tokens: int
    """Prompt and answer together, at most."""
    eos_ids: tuple[int, ...]
    """Tokens that end an answer."""
    digest: str
    """Hash of the tokenizer and its chat template."""
    surround: Surround
    """Encodes what the template has made."""

    @classmethod
    def load(cls, folder: Path) -> ModelText:
        """Read a folder in Hugging Face layout; takes well under a second, and blocks.

        Raises:
            ModelTextError: something is missing or broken; the text says what.
        """
        if not (folder / "config.json").is_file():
            raise ModelTextError(f"{folder} is no model folder: it has no config.json")
        config = _read(folder / "config.json", _Config)
        settings = _read(folder / "tokenizer_config.json", _TokenizerConfig)
        tokenizer = Tokenizer.load(folder)
        special = _special_tokens(settings)
        template = ChatTemplate(_template_source(folder, settings), special)
        return cls(
            tokenizer=tokenizer,
            template=template,
            context_tokens=_context_tokens(config, folder),
            eos_ids=_eos_ids(folder, config, special, tokenizer),
            digest=tokenizer_digest(folder),
            surround=Surround.learn(tokenizer, template),
        )


def _read(file: Path, kind: type[FileT]) -> FileT:
    """Read what is of interest in a JSON file; a file that is missing reads as empty."""
    content = file.read_bytes() if file.is_file() else b"{}"
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelTextError(f"{file} is not as expected: {error}") from error


def _special_tokens(settings: _TokenizerConfig) -> dict[str, str]:
    found = {
        "bos_token": settings.bos_token,
        "eos_token": settings.eos_token,
        "pad_token": settings.pad_token,
        "unk_token": settings.unk_token,
    }
    return {
        role: token if isinstance(token, str) else token.content
        for role, token in found.items()
        if token is not None
    }


def _template_source(folder: Path, settings: _TokenizerConfig) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = settings.chat_template
    if isinstance(found, list):
        found = next((entry.template for entry in found if entry.name == "default"), None)
    if found is None:
        raise ModelTextError(f"{folder} has no chat template")
    return found


def _context_tokens(config: _Config, folder: Path) -> int:
    for part in (config, config.text_config):
        if part is not None:
            found = part.max_position_embeddings or part.n_positions or part.seq_length
            if found:
                return found
    raise ModelTextError(f"{folder / 'config.json'} does not tell the context length")


def _eos_ids(
    folder: Path, config: _Config, special: dict[str, str], tokenizer: Tokenizer
) -> tuple[int, ...]:
    generation = _read(folder / "generation_config.json", _GenerationConfig)
    nested = config.text_config.eos_token_id if config.text_config else None
    for found in (generation.eos_token_id, config.eos_token_id, nested):
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    token = special.get("eos_token")
    by_name = tokenizer.token_id(token) if token is not None else None
    return () if by_name is None else (by_name,)
