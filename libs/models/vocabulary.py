"""Tokenizers as files: byte-level BPE with a chat template, written as the plain JSON it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CHATML", "Vocabulary", "byte_vocabulary", "write_tokenizer"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PRINTABLE = (range(ord("!"), ord("~") + 1), range(0xA1, 0xAD), range(0xAE, 0x100))
_FIRST_SUBSTITUTE = 0x100


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All that a tokenizer knows."""

    tokens: Sequence[str]
    """In the order of their ids."""
    merges: Sequence[str]
    """`"left right"`, in the order of their rank."""
    special: Sequence[str]
    """Tokens that no text produces."""
    roles: Mapping[str, str]
    """`bos_token`, `eos_token`, `pad_token`, `unk_token`."""
    template: str
    """The chat template (jinja2)."""


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """Write `tokenizer.json`, its configuration and the chat template."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(ids[token], token) for token in vocabulary.special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level()],
        },
        "post_processor": None,
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [merge.split(" ", 1) for merge in vocabulary.merges],
        },
    }
    config = {
        **vocabulary.roles,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": vocabulary.template,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    (folder / "chat_template.jinja").write_text(vocabulary.template)


def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary with one token a byte, for engines without weights."""
    return Vocabulary(
        tokens=(*_SPECIAL, *_byte_alphabet()),
        merges=(),
        special=_SPECIAL,
        roles={
            "bos_token": _SPECIAL[1],
            "eos_token": _SPECIAL[2],
            "pad_token": _SPECIAL[2],
            "unk_token": _SPECIAL[0],
        },
        template=CHATML,
    )


def _byte_alphabet() -> list[str]:
    """Return the letter that stands for each byte: itself where it can be printed."""
    printable = {code for codes in _PRINTABLE for code in codes}
    substitutes = iter(range(_FIRST_SUBSTITUTE, 2 * _FIRST_SUBSTITUTE))
    return [
        chr(byte if byte in printable else next(substitutes)) for byte in range(_FIRST_SUBSTITUTE)
    ]


def _byte_level() -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }


def _added(index: int, token: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
