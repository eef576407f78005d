"""A headless Chromium, driven over its DevTools protocol: what browser tests need and no more.

Role: opens pages, evaluates, waits for conditions, presses keys, reads the accessibility tree, takes screenshots.
Invariants: one process with a profile of its own, ended by its pid; what a page logs as an error is kept.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar, cast

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
LIMIT_S = 60.0
Json = dict[str, object]
T = TypeVar("T")


def chromium() -> str | None:
    """The program; None: it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A browser with one page."""

    def __init__(self, folder: Path, *, width: int = 1400, height: int = 1000) -> None:
        program = chromium()
        assert program is not None
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self.events: list[Json] = []
        arguments = [program, *FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._session, self._socket = self._run(self._connect(folder / "DevToolsActivePort"))
        for domain in ("Page", "Runtime", "Log", "Accessibility", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # else an element in focus hears nothing of it

    def close(self) -> None:
        """End the browser."""
        self._run(self._disconnect())
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._loop.close()

    def call(self, method: str, **parameters: object) -> Json:
        """One command of the protocol."""
        return self._run(self._call(method, parameters))

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href === {url!r}")

    def value(self, expression: str) -> object:
        """What an expression gives, as a plain value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return cast("Json", answer["result"]).get("value")

    def wait(self, expression: str, *, limit_s: float = LIMIT_S) -> None:
        """Until an expression is true."""
        until_s = time.monotonic() + limit_s
        while not self.value(f"Boolean({expression})"):
            if time.monotonic() > until_s:
                raise AssertionError(
                    f"{expression} did not come true; the page says: {self.value('document.body.innerText')!s:.3000}"
                )
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """One key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES.get(key, 0))

    def screenshot(self, file: Path, *, width: int, height: int, dark: bool, whole: bool = True) -> None:
        """The page as it looks at a width, in a theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)
        time.sleep(0.4)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(cast("str", data)))

    def errors(self) -> list[str]:
        """What pages said went wrong: exceptions, console errors, refused requests, since the last `open`."""
        self.value("1")  # takes in what came meanwhile
        found = []
        for event in self.events:
            values = cast("Json", event["params"])
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(values["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                found.append(str(values["args"]))
            elif event["method"] == "Log.entryAdded" and cast("Json", values["entry"])["level"] in ("error", "warning"):
                found.append(str(values["entry"]))
        return found

    def requested(self) -> list[str]:
        """Addresses that pages asked for since the last `open`."""
        return [
            str(cast("Json", cast("Json", event["params"])["request"])["url"])
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of everything in the accessibility tree that is not left out of it."""
        nodes = cast("list[Json]", self.call("Accessibility.getFullAXTree")["nodes"])
        return [
            (str(cast("Json", node["role"])["value"]), str(cast("Json", node.get("name", {})).get("value", "")))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, LIMIT_S))

    async def _connect(self, file: Path) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        while not (file.exists() and file.read_text().count("\n")):
            assert self._process.poll() is None, "chromium ended at its start"
            await asyncio.sleep(0.05)
        port = file.read_text().splitlines()[0]
        session = aiohttp.ClientSession()
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [page for page in await answer.json() if page["type"] == "page"]
        return session, await session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)

    async def _disconnect(self) -> None:
        await self._socket.close()
        await self._session.close()

    async def _call(self, method: str, parameters: Json) -> Json:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") != number:
                self.events.append(message)
            elif "error" in message:
                raise AssertionError(f"{method}: {message['error']}")
            else:
                return cast("Json", message["result"])


_CODES = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
