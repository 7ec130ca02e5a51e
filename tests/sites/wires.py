"""Networks for tests: machines that are network namespaces with a wire between each two, and an HTTP CONNECT proxy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from itertools import combinations
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x40000000


class Wires:
    """Namespaces, each a machine with an address of its own; a wire of its own between each two that are linked."""

    def __init__(self, count, links=None):
        self.spaces = [f"privsgp-{os.getpid()}-{i}" for i in range(count)]
        self.hosts = [f"10.77.{i}.1" for i in range(count)]
        self.links = list(combinations(range(count), 2)) if links is None else links
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with self._stack as stack:
            try:
                for i in range(len(self.spaces)):
                    self._machine(i)
                for link in self.links:
                    self._lay(*link)
            except FileNotFoundError:
                pytest.skip("no network namespaces: there is no `ip` here")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces: {error.stderr.decode().strip()}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def cut(self, i, j):
        """Take the wire between two machines out."""
        self._in(i, "link", "set", f"to{j}", "down")

    def mend(self, i, j):
        """Put it back."""
        self._in(i, "link", "set", f"to{j}", "up")
        self._route(i, j)

    def deafen(self, i, j):
        """Let all that i sends to j vanish; what j sends still reaches i."""
        self._in(i, "route", "replace", "blackhole", self.hosts[j])

    def undeafen(self, i, j):
        """Let it through again."""
        self._in(i, "route", "del", "blackhole", self.hosts[j])
        self._route(i, j)

    def _machine(self, i):
        _ip("netns", "add", self.spaces[i])
        self._stack.callback(_ip, "netns", "delete", self.spaces[i])
        self._in(i, "link", "set", "lo", "up")
        self._in(i, "address", "add", f"{self.hosts[i]}/32", "dev", "lo")

    def _lay(self, i, j):
        one, other = self.spaces[i], self.spaces[j]
        _ip("link", "add", f"to{j}", "netns", one, "type", "veth", "peer", "name", f"to{i}", "netns", other)
        for end, far in ((i, j), (j, i)):
            self._in(end, "address", "add", f"{self._near(end, far)}/30", "dev", f"to{far}")
            self._in(end, "link", "set", f"to{far}", "up")
        self._route(i, j)
        self._route(j, i)

    def _route(self, i, j):
        self._in(i, "route", "replace", self.hosts[j], "via", self._near(j, i), "src", self.hosts[i])

    @staticmethod
    def _near(i, j):
        return f"10.78.{16 * min(i, j) + max(i, j)}.{1 + (i > j)}"

    def _in(self, i, *words):
        _ip("-n", self.spaces[i], *words)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def enter(space):
    """Let this thread, and those that it starts, be in a namespace."""
    with Path(f"/var/run/netns/{space}").open() as opened:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {space}")


class ConnectProxy:
    """An HTTP CONNECT proxy, on this machine or in a namespace, that notes what it was asked for."""

    def __init__(self, host="127.0.0.1", space=None):
        self.host, self.space, self.asked, self._threads = host, space, [], []

    def __enter__(self):
        ready = threading.Event()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        assert ready.wait(10)
        return f"http://{self.host}:{self.server.getsockname()[1]}", self.asked

    def __exit__(self, *_):
        self.server.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self, ready):
        if self.space is not None:
            enter(self.space)
        self.server = socket.create_server((self.host, 0))
        ready.set()
        while True:
            try:
                one, _ = self.server.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._tunnel, args=(one,), daemon=True))
            self._threads[-1].start()

    def _tunnel(self, one):
        target = one.recv(4096).split()[1].decode()
        self.asked.append(target)
        host, port = target.split(":")
        try:
            other = socket.create_connection((host, int(port)), 5)
        except OSError:
            one.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            one.close()
            return
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with one, other:
            back = threading.Thread(target=self._copy, args=(other, one), daemon=True)
            back.start()
            self._copy(one, other)
            back.join()

    @staticmethod
    def _copy(source, sink):
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
