"""Hosts of a test's own: network namespaces of the kernel, joined by a switch, parted at will."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Network", "network", "why_no_network"]

_numbers = itertools.count()


def why_no_network() -> str:
    """Return why namespaces cannot be had here, or nothing."""
    name = f"pdbus-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


class Network:
    """Hosts `0`, `1`, ... and a switch that joins them."""

    interface = "eth"
    """The device by which a host reaches the others."""

    def __init__(self, label: str, count: int, subnets: tuple[str, ...]) -> None:
        self._label = label
        self._subnets = subnets
        self._count = count
        self._switch = f"{label}-switch"

    def prefix(self, host: int) -> list[str]:
        """Return what to put in front of a command to run it on a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def build(self) -> None:
        """Make hosts and cables."""
        _ip("netns", "add", self._switch)
        self._on_switch("link", "add", "bridge", "type", "bridge")
        self._on_switch("link", "set", "bridge", "up")
        for host in range(self._count):
            port, name = f"port{host}", self._name(host)
            _ip("netns", "add", name)
            self._on_switch(
                *("link", "add", port, "type", "veth", "peer", "name", self.interface),
                *("netns", name),
            )
            self._on_switch("link", "set", port, "master", "bridge")
            self._on_switch("link", "set", port, "up")
            for subnet in self._subnets:
                # Without the search for others of the same address, which takes two seconds.
                check = ["nodad"] if ":" in subnet else []
                address = subnet.format(host + 1)
                _ip("-n", name, "addr", "add", address, "dev", self.interface, *check)
            _ip("-n", name, "link", "set", self.interface, "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def add_device(self, host: int, name: str, address: str) -> None:
        """Give a host another device that leads nowhere."""
        place = self._name(host)
        _ip("-n", place, "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        _ip("-n", place, "addr", "add", address, "dev", name)
        for end in (name, f"{name}-end"):
            _ip("-n", place, "link", "set", end, "up")

    def sent_bytes(self, host: int, device: str) -> int:
        """Return what has left a host by one device."""
        told = _ip("-n", self._name(host), "-j", "-s", "link", "show", "dev", device)
        return json.loads(told)[0]["stats64"]["tx"]["bytes"]

    def cut(self, host: int) -> None:
        """Pull the cable of a host."""
        self._on_switch("link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        self._on_switch("link", "set", f"port{host}", "up")

    def remove(self) -> None:
        """Remove all hosts; their devices go with them."""
        for name in (*(self._name(host) for host in range(self._count)), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _name(self, host: int) -> str:
        return f"{self._label}-{host}"

    def _on_switch(self, *command: str) -> None:
        _ip("-n", self._switch, *command)


@contextmanager
def network(count: int, *subnets: str) -> Iterator[Network]:
    """Have some hosts for the length of the context; `{}` in a subnet is the host's number."""
    label = f"pdbus-{os.getpid()}-{next(_numbers)}"
    made = Network(label, count, subnets or ("10.77.0.{}/24",))
    try:
        made.build()
        yield made
    finally:
        made.remove()


def _ip(*command: str) -> str:
    done = subprocess.run(["ip", *command], check=True, capture_output=True, text=True)
    return done.stdout
