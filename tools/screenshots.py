"""Makes the pictures of the page in ``docs/images``, with chromium and its driver.

    python tools/screenshots.py

Stories are the demo model's own. The conversation with Markdown is prescribed (`choices`), for the package
ships no model that writes it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from oxillama import InferenceEngine, demo
from tests.support.browser import Page, chromium
from tests.support.server import serving
from tests.support.tiny_file import write_tiny_model

FOLDER = ROOT / "docs" / "images"
TEXT = """A rainbow needs **sunlight** and *falling drops*: each drop bends the light twice.

1. Red leaves at about **42°**, violet at about 40°.
2. Each drop sends one colour to your eye:
   - higher drops send red,
   - lower ones violet.

```python
def bow(n: float) -> float:
    \"\"\"The angle of the bow, in radians, for a refractive index.\"\"\"
    entry = asin(((4 - n * n) / 3) ** 0.5)  # where the rays crowd
    return 4 * asin(sin(entry) / n) - 2 * entry
```

| colour | wavelength | angle |
|:--|--:|--:|
| red | 700 nm | 42.4° |
| violet | 400 nm | 40.5° |

The angle follows from \\(\\sin \\alpha = n \\sin \\beta\\):

$$D(\\alpha) = \\pi + 2\\alpha - 4 \\arcsin\\frac{\\sin\\alpha}{n}$$
"""


def shoot(page: Page, name: str) -> None:
    """Writes what is shown."""
    page.until(lambda: page.run("return document.getAnimations().every(a => a.playState !== 'running')"))
    page.driver.save_screenshot(str(FOLDER / f"{name}.png"))


def look(page: Page, width: int, height: int, scheme: str) -> None:
    """Size and colours of the window."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def stories(page: Page, url: str) -> None:
    """The demo model: probabilities in the dark, a phone."""
    look(page, 1200, 760, "dark")
    page.ready(url)
    page.set(seed="11", max_tokens="120")
    page.send("Once upon a time, there was a little fox named")
    page.ended()
    page.set(seed="12")
    page.press("Another answer")
    page.until(lambda: page.texts(".branch-count") == ["2/2"] and not page.is_writing)
    page.press("Probabilities of the tokens")
    page.hover(page.all(".token")[6])
    shoot(page, "page-probabilities")
    look(page, 360, 720, "light")
    page.press("Probabilities of the tokens")
    page.run("document.activeElement.blur(); document.getElementById('scroller').scrollTop = 0")
    shoot(page, "page-phone")


def conversation(page: Page, url: str) -> None:
    """Markdown, and the settings beside it."""
    look(page, 1440, 900, "light")
    page.ready(url)
    page.set(system="You explain the weather to pupils.", temperature="0.6", more={"choices": [TEXT]})
    page.send("How does a rainbow form?")
    page.ended()
    page.press("Settings")
    page.run("document.getElementById('scroller').scrollTop = 0; document.activeElement.blur()")
    shoot(page, "page-chat")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as page:
        with serving(InferenceEngine.from_gguf(demo.STORY)) as client:
            stories(page, client.server.url)
        model = write_tiny_model(Path(folder) / "model.gguf", ends=False)
        with serving(InferenceEngine.from_gguf(model), "model") as client:
            conversation(page, client.server.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
