"""A page opened in Chromium over its debugging pipe: what it shows, says on its console, and asks of the net."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
PATIENCE = 60.0


class Page:
    """One tab; messages go through two pipes and end with a zero byte."""

    def __init__(self, write: int, read: int):
        self.write, self.read = write, read
        self.number, self.buffer, self.session = 0, b"", None
        self.events: list[dict] = []

    def send(self, method: str, **parameters) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        return self._until(lambda found: found.get("id") == self.number)

    def _until(self, wanted) -> dict:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            while b"\0" not in self.buffer:
                self.buffer += os.read(self.read, 1 << 16)
            text, _, self.buffer = self.buffer.partition(b"\0")
            found = json.loads(text)
            if "method" in found:
                self.events.append(found)
            if wanted(found):
                if "error" in found:
                    raise AssertionError(found["error"])
                return found.get("result", found)
        raise AssertionError("chromium did not answer")

    def open(self, url: str) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.events.clear()
        self.send("Page.navigate", url=url)
        self._until(lambda found: found.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str):
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def of(self, method: str) -> list[dict]:
        return [event["params"] for event in self.events if event["method"] == method]

    @property
    def requests(self) -> list[str]:
        return [item["request"]["url"] for item in self.of("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list:
        logged = [item["entry"] for item in self.of("Log.entryAdded") if item["entry"]["level"] in ("error", "warning")]
        return [*logged, *self.of("Runtime.exceptionThrown"), *self.of("Runtime.consoleAPICalled")]


@contextmanager
def browser(folder):
    """Chromium with a profile of its own under `folder`."""
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()

    def connect() -> None:
        os.dup2(to_child, 3)
        os.dup2(from_child, 4)

    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"], pass_fds=(3, 4, to_child, from_child), preexec_fn=connect,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Page(from_parent, to_parent)
    finally:
        process.terminate()
        process.wait(20)
        for end in (to_child, from_parent, to_parent, from_child):
            os.close(end)
