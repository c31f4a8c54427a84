from __future__ import annotations

import asyncio
import subprocess
import sys

from libs.engine.sgl.children import Children


async def test_a_death_is_told_at_once():
    """The process that died is named, and the others can be killed."""
    processes = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)
    ]
    children = Children(tuple(process.pid for process in processes))
    loop = asyncio.get_running_loop()
    died: asyncio.Future[int] = loop.create_future()
    children.watch(loop, lambda pid: died.done() or died.set_result(pid))
    processes[1].kill()
    assert await asyncio.wait_for(died, 5) == processes[1].pid
    children.forget(loop)
    children.kill()
    assert [process.wait(5) for process in processes] == [-9, -9]


async def test_a_process_that_is_gone_already_is_a_death():
    """A child that died before the watch began is told too."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    loop = asyncio.get_running_loop()
    died: asyncio.Future[int] = loop.create_future()
    children = Children((process.pid,))
    children.watch(loop, died.set_result)
    assert await asyncio.wait_for(died, 5) == process.pid
    children.kill()
