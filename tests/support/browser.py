"""A browser without a window, and what a user does on the page of the server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.firefox import console_errors, firefox_driver
from tests.support.spread import slow

T = TypeVar("T")
KINDS = ("chromium", slow("firefox"))
"""The browsers, for `parametrize`."""
SECONDS = 90
NAMES = ("chromium", "chromium-browser", "google-chrome")
RECORD = """const plain = window.fetch;
    window.sent = [];
    window.fetch = (url, how) => {
        if (typeof how?.body === "string") window.sent.push(JSON.parse(how.body));
        return plain(url, how);
    };"""


def programs() -> tuple[str, str]:
    """The paths of the browser and of its driver. Skips the test where one is missing."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("there is no chromium with its driver (Debian: chromium, chromium-driver)")
    return browser, driver


@contextmanager
def chromium(downloads: Path) -> Iterator[Page]:
    """A browser, which is closed at the end."""
    program, service = programs()
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    for argument in (
        *("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1280,800"),
        *("no-first-run", "disable-background-networking", "force-device-scale-factor=1"),
        *("use-fake-device-for-media-stream", "use-fake-ui-for-media-stream"),  # a microphone that beeps
    ):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=Service(service))
    try:
        yield Page(driver)
    finally:
        driver.quit()


@contextmanager
def firefox(folder: Path) -> Iterator[Page]:
    """The same with Firefox."""
    downloads = folder / "downloads"
    downloads.mkdir(exist_ok=True)
    with firefox_driver(folder / "profile", downloads) as driver:
        yield Page(driver, is_chromium=False)


def opened(kind: str, folder: Path) -> AbstractContextManager[Page]:
    """A browser of `KINDS`; what it keeps is in the folder."""
    return chromium(folder / "downloads") if kind == "chromium" else firefox(folder)


class Element:
    """An element of a page, which is looked up again when the page has drawn it anew.

    Has the attributes of selenium's element, which is ``found``.
    """

    def __init__(self, page: Page, selector: str, index: int, found: Any) -> None:
        self.page, self.selector, self.index, self.found = page, selector, index, found

    def __getattr__(self, name: str) -> Any:
        value = self._done(lambda: getattr(self.found, name))
        if not callable(value):
            return value
        return lambda *arguments: self._done(lambda: getattr(self.found, name)(*arguments))

    def _done(self, action: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException

        while True:
            try:
                return action()
            except StaleElementReferenceException:
                again = self.page.until(lambda: self.page.found(self.selector)[self.index :], self.selector)
                self.found = again[0]


class Page:
    """The page in a browser.

    Attributes:
        driver: selenium's.
        is_chromium: whether the browser is Chromium, and not Firefox.
    """

    def __init__(self, driver: Any, is_chromium: bool = True) -> None:
        self.driver, self.is_chromium = driver, is_chromium

    # --- looking ---------------------------------------------------------------------------------------

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *(getattr(each, "found", each) for each in arguments))

    def call(self, module: str, script: str, *arguments: Any) -> Any:
        """What ``script`` returns that has a module of the page as ``m``, and ``arguments``."""
        code = f"""
            const done = arguments[arguments.length - 1], args = [...arguments].slice(0, -1);
            const main = document.querySelector("script[type=module]").src;
            import(new URL("{module}", main)).then(async (m) => {{ {script} }})
                .then((value) => done({{ value }}), (error) => done({{ error: String(error.stack) }}));"""
        found = self.driver.execute_async_script(code, *arguments)
        assert "error" not in found, found["error"]
        return found.get("value")

    def stored(self, script: str) -> Any:
        """What ``script`` returns that has the page's ``store``."""
        return self.call("./main.js", f"const store = m.store; {script}")

    def stored_apart(self, script: str) -> Any:
        """The same with a store of its own, which may never be opened while the page writes."""
        return self.call("./store.js", f"const store = await m.openStore(); {script}")

    def found(self, selector: str) -> list[Any]:
        """The elements that can be seen, which are lost when the page draws them anew."""
        return [e for e in self.driver.find_elements("css selector", selector) if e.is_displayed()]

    def all(self, selector: str) -> list[Element]:
        """The elements that can be seen."""
        found = self.until(lambda: (self.found(selector),), selector)[0]
        return [Element(self, selector, i, each) for i, each in enumerate(found)]

    def one(self, selector: str) -> Element:
        """The element that can be seen; waits for it."""
        return self.until(lambda: self.all(selector), selector)[0]

    def texts(self, selector: str) -> list[str]:
        """The texts of elements, as the document has them."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def until(self, ready: Callable[[], T], what: object = "") -> T:
        """Waits for a condition; its value."""
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, SECONDS, 0.02, [StaleElementReferenceException])
        try:
            return wait.until(lambda _: ready())
        except TimeoutException:
            shown = self.run("return document.body.innerText")
            raise AssertionError(f"it did not happen: {what}\n{shown}") from None

    @property
    def answers(self) -> list[str]:
        """The texts of the answers that are shown."""
        return self.texts(".message.assistant .text")

    @property
    def is_writing(self) -> bool:
        """Whether an answer is being written."""
        return bool(self.all("#stop"))

    @property
    def sent(self) -> list[Any]:
        """The bodies that the page has sent since `record`."""
        found: list[Any] = self.run("return window.sent")
        return found

    def faults(self) -> list[str]:
        """What the console tells as an error since it was last asked."""
        if not self.is_chromium:
            return console_errors(self.driver)
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    # --- doing -----------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Opens the page as a browser has it that was never there."""
        self.driver.get(url + "/health")
        self.driver.execute_async_script(
            """const done = arguments[0];
            localStorage.clear();
            sessionStorage.clear();
            const gone = indexedDB.deleteDatabase("oxillama");
            gone.onsuccess = gone.onerror = () => done();"""
        )
        self.driver.get(url + "/")

    def ready(self, url: str) -> None:
        """Opens the page, and waits for the model."""
        self.open(url)
        self.one(".status.ready")

    def reload(self) -> None:
        """Loads the page again when it has kept what it was about to, and waits for the model."""
        self.stored("await store.all();")  # behind the writes that were begun
        self.driver.refresh()
        self.one(".status.ready")

    def record(self) -> None:
        """Keeps the bodies that the page sends from now on, as `sent`."""
        self.run(RECORD)

    def keys(self, *keys: str) -> None:
        """Presses keys, whatever has the focus; "Control+k" together."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        chain = ActionChains(self.driver, duration=0)
        for key in keys:
            *held, last = key.split("+") if len(key) > 1 else [key]
            for each in held:
                chain.key_down(getattr(Keys, each.upper()))
            chain.send_keys(getattr(Keys, last.upper()) if len(last) > 1 else last)
            for each in held:
                chain.key_up(getattr(Keys, each.upper()))
        chain.perform()

    def hover(self, element: Element) -> None:
        """Points at an element."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).move_to_element(element.found).perform()

    def press(self, label: str, within: str = "body") -> None:
        """Clicks the button with this text or label; waits for it."""

        def is_pressed() -> bool:
            for button in self.found(f"{within} button, {within} summary"):
                if label in (button.text.strip(), button.get_attribute("aria-label")):
                    button.click()
                    return True
            return False

        self.until(is_pressed, label)

    def set(self, **settings: Any) -> None:
        """Types into the boxes of the settings, whether the panel is open or not."""
        for name, value in settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            self.run(
                """const box = document.querySelector(`#settings-form [name=${arguments[0]}]`);
                box.value = arguments[1];
                for (const kind of ["input", "change"])
                    box.dispatchEvent(new Event(kind, {bubbles: true}));""",
                name,
                text,
            )

    def send(self, text: str) -> None:
        """Types a message and sends it."""
        box = self.one("#prompt")
        box.click()
        box.send_keys(text, "\ue007")  # Enter

    def ask(self, text: str, answer: str | None = None) -> str:
        """Sends a message, waits for the end of the answer, whose text may be no other than ``answer``."""
        if answer is not None:
            self.set(more={"choices": [answer]})
        n = len(self.answers)
        self.send(text)
        return self.ended(n + 1)

    def ended(self, n: int = 1) -> str:
        """Waits until there are ``n`` answers and nothing is being written; the text of the last."""
        self.until(lambda: len(self.answers) >= n and not self.is_writing, f"{n} answers")
        return self.answers[-1]
