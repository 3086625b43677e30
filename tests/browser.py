"""A headless Chromium, driven over its DevTools pipe: what a page logs, what it asks for, clicks and keys."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium here: `apt-get install chromium` (Debian's package) brings one"
_KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Enter": 13, "Tab": 9}


def find() -> str | None:
    """The browser, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. ``troubles`` has everything that a healthy page does not do; ``requests`` every address asked for."""

    def __init__(self, profile: Path) -> None:
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self._number, self._rest = 0, b""
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # Chromium reads commands from file descriptor 3 and answers on 4; a shell puts them there.
        shell = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
            "--hide-scrollbars", f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND",
        )  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", shell, str(find()), *options], pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL
        )
        os.close(their_in)
        os.close(their_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A DevTools command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            answer = self._next(end - time.monotonic())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)
        raise TimeoutError(method)

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(seconds, 0))[0]:
                raise TimeoutError("Chromium does not answer")
            if not (more := os.read(self._in, 1 << 20)):
                raise RuntimeError("Chromium has ended")
            self._rest += more
        content, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(content))

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.troubles.append(f"console.{found['type']}: {[one.get('value') for one in found['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.troubles.append(f"exception: {found['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.troubles.append(f"log: {found['entry']['text']}")
        elif method == "Network.loadingFailed":
            self.troubles.append(f"failed request: {found['errorText']}")
        elif method == "Page.javascriptDialogOpening":
            self.troubles.append(f"dialog: {found['message']}")
            raise RuntimeError(self.troubles[-1])
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"][:200])

    def open(self, path: Path, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Open a file and wait until its script says that it is ready; troubles and requests are then of this page."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.troubles.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.ready === 'true'")

    def run(self, script: str) -> Any:
        """Value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until an expression holds."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            if self.troubles or time.monotonic() > end:
                raise TimeoutError(f"{condition}; {self.troubles}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        found = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); "
            "one.scrollIntoView({block: 'center', behavior: 'instant'}); const r = one.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=found[0], y=found[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key that is no letter."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key])

    def select(self, selector: str, value: str) -> None:
        """Choose an option of a select, as a user's change."""
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)}; "
            "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def texts(self, selector: str) -> list[str]:
        """Texts of all elements that fit and can be seen."""
        return list(
            self.run(
                f"[...document.querySelectorAll({json.dumps(selector)})]"
                ".filter((one) => one.checkVisibility()).map((one) => one.textContent)"
            )
        )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A picture of what can be seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(Exception):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._in)
        os.close(self._out)
