"""A headless Chromium, spoken to over a pipe: what a person would see, click and hear complaints about."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Tab:
    """One page of the browser; `complaints`: errors and whatever it wrote to the console; `asked`: its requests."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = os.fdopen(reader, "rb"), os.fdopen(writer, "wb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[Any] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": values}
        message |= {"sessionId": self._session} if self._session else {}
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser has gone"
            raw += byte
        event = json.loads(raw)
        if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(event["params"])
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        return event

    def open(self, path: Path | str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a file or an address in a window of this size."""
        self.complaints.clear()
        self.asked.clear()
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        """Close the browser."""
        self._session = None
        self.call("Browser.close")
        self._reader.close()
        self._writer.close()


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """Start a browser with a profile of its own, and end it."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", script, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        pipes = (theirs_in, theirs_out)
        process = subprocess.Popen(command, pass_fds=pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for pipe in pipes:
            os.close(pipe)
        tab = Tab(ours_in, ours_out)
        try:
            yield tab
        finally:
            tab.close()
            process.wait(timeout=30)
