"""Firefox for selenium without geckodriver: its commands are sent over Firefox's own protocol, Marionette."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("firefox", "firefox-esr")
SECONDS = 60
COMMANDS = {
    "newSession": "WebDriver:NewSession", "quit": "Marionette:Quit", "get": "WebDriver:Navigate",
    "refresh": "WebDriver:Refresh", "goBack": "WebDriver:Back", "getTitle": "WebDriver:GetTitle",
    "getCurrentUrl": "WebDriver:GetCurrentURL", "w3cExecuteScript": "WebDriver:ExecuteScript",
    "w3cExecuteScriptAsync": "WebDriver:ExecuteAsyncScript", "findElement": "WebDriver:FindElement",
    "findElements": "WebDriver:FindElements", "clickElement": "WebDriver:ElementClick",
    "clearElement": "WebDriver:ElementClear", "sendKeysToElement": "WebDriver:ElementSendKeys",
    "getElementText": "WebDriver:GetElementText", "getElementProperty": "WebDriver:GetElementProperty",
    "getElementRect": "WebDriver:GetElementRect", "actions": "WebDriver:PerformActions",
    "newWindow": "WebDriver:NewWindow", "close": "WebDriver:CloseWindow",
    "w3cGetCurrentWindowHandle": "WebDriver:GetWindowHandle",
    "w3cGetWindowHandles": "WebDriver:GetWindowHandles", "switchToWindow": "WebDriver:SwitchToWindow",
    "setContext": "Marionette:SetContext",
}  # fmt: skip
"""Marionette's name of each of selenium's commands."""


class Marionette:
    """What selenium sends its commands to, in place of a driver's HTTP server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._file = self._socket.makefile("rb")
        self._n = 0
        self._read()

    def execute(self, command: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command, as selenium expects it."""
        self._n += 1
        wanted = {name: value for name, value in params.items() if name != "sessionId"}
        if command == "newSession":
            wanted = {}
        data = json.dumps([0, self._n, COMMANDS[command], wanted]).encode()
        self._socket.sendall(b"%d:%s" % (len(data), data))
        _, _, error, result = self._read()
        if error is not None:
            return {"status": 500, "value": json.dumps({"value": error})}
        is_wrapped = isinstance(result, dict) and set(result) == {"value"}
        return {"value": result["value"] if is_wrapped else result}

    def _read(self) -> Any:
        length = b""
        while (byte := self._file.read(1)) != b":":
            assert byte, "firefox has ended"
            length += byte
        return json.loads(self._file.read(int(length)))

    def close(self) -> None:
        """Ends the connection."""
        self._file.close()
        self._socket.close()


def program() -> str:
    """The path of the browser. Skips the test where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    found = next((path for path in map(shutil.which, PROGRAMS) if path), None)
    if found is None:
        pytest.skip("there is no firefox (Debian: firefox-esr)")
    return found


@contextmanager
def firefox_driver(profile: Path, downloads: Path) -> Iterator[Any]:
    """A browser without a window as selenium's driver; it is closed at the end."""
    path = program()
    from selenium.webdriver.firefox.options import Options
    from selenium.webdriver.remote.file_detector import UselessFileDetector
    from selenium.webdriver.remote.webdriver import WebDriver

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prefs = {
        "marionette.port": port,
        "browser.download.folderList": 2,
        "browser.download.dir": str(downloads),
        "browser.download.alwaysOpenPanel": False,
        "browser.helperApps.neverAsk.saveToDisk": "application/json,text/markdown",
        "devtools.jsonview.enabled": False,
        "browser.startup.homepage": "about:blank",
        "datareporting.policy.dataSubmissionEnabled": False,
        "app.update.disabledForTesting": True,
        "media.navigator.streams.fake": True,  # a microphone that beeps
        "media.navigator.permission.disabled": True,
    }
    profile.mkdir(parents=True, exist_ok=True)
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in prefs.items()]
    (profile / "user.js").write_text("".join(lines))
    arguments = ("--headless", "--no-remote", "--marionette", "--remote-allow-system-access")
    size = ("--width", "1280", "--height", "900")
    process = subprocess.Popen(
        (path, *arguments, *size, "--profile", str(profile)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with closing(connected(port, process)) as marionette:
            local = UselessFileDetector()
            yield WebDriver(marionette, file_detector=local, options=Options())  # type: ignore[arg-type]
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def connected(port: int, process: subprocess.Popen[bytes]) -> Marionette:
    """A connection to a browser that has just been started."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return Marionette(port)
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "firefox does not answer"
            time.sleep(0.1)


def console_errors(driver: Any) -> list[str]:
    """The errors of pages in the browser's console since the last call."""
    script = """const isError = (m) => m instanceof Ci.nsIScriptError && !(m.flags & m.warningFlag);
        const found = Services.console.getMessageArray()
            .filter(m => isError(m) && /^http/.test(m.sourceName))
            .map(m => `${m.sourceName} ${m.errorMessage}`);
        Services.console.reset();
        return found;"""
    driver.execute("setContext", {"value": "chrome"})
    try:
        found: list[str] = driver.execute_script(script)
    finally:
        driver.execute("setContext", {"value": "content"})
    return found
