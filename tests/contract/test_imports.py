"""What may be imported where, beyond what `lint-imports` can say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"sglang", "torch", "transformers", "ucxx", "flashinfer", "triton"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case _:
                pass


def sources(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]


def may_import_sglang(path: Path) -> bool:
    place = path.relative_to(ROOT).as_posix()
    return place.startswith(("libs/sglang_plugins/", "libs/engine/sgl"))


def test_import_contracts_hold():
    """The layers and fences of `.importlinter` hold."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


def test_only_two_rooms_import_sglang():
    """SGLang is known by its plugins and by the engine built on it, and by nothing else."""
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sources("proto", "libs", "services")
        if not may_import_sglang(path)
        and any(name.split(".")[0] == "sglang" for name in imported(path))
    ]
    assert found == []


def test_proto_needs_the_standard_library_and_msgspec_only():
    """Messages can be read by any program that has msgspec."""
    allowed = sys.stdlib_module_names | {"msgspec", "proto"}
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("proto")
        for name in imported(path)
        if name.split(".")[0] not in allowed
    }
    assert found == set()


def test_nothing_imports_tests():
    """No product code leans on the tests."""
    found = [
        str(path)
        for path in sources("proto", "libs", "services", "ops")
        if any(name.split(".")[0] == "tests" for name in imported(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    "module",
    [
        *(f"services.{name}.app" for name in ("gateway", "router", "cleanup", "prefill", "decode")),
        "ops.cli.main",
    ],
)
def test_light_programs_load_no_engine(module: str):
    """Importing a service or the command line loads no torch, no sglang and no ucxx."""
    code = f"import sys, {module}; print(*sorted({ENGINES!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_importing_has_no_side_effect_on_logs_or_telemetry():
    """An import sets up neither logging, nor providers, nor signal handlers."""
    code = (
        "import logging, signal, structlog\n"
        "from opentelemetry import trace\n"
        "import libs.lifecycle, libs.bus, libs.telemetry, libs.config, libs.engine\n"
        "assert not logging.getLogger().handlers\n"
        "assert not structlog.is_configured()\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "assert type(trace.get_tracer_provider()).__name__ == 'ProxyTracerProvider'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
