"""Makes the screenshots of the web page in ``docs/images``, with chromium and its driver.

    python tools/screenshots.py

The demo model writes the stories. A conversation with Markdown and a call of a tool are prescribed
(`choices`, `tool_choice`), because the package has no model that writes them.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from oxillama import InferenceEngine, demo
from tests.apps.server.test_page_media_in_browser import GIVE
from tests.support.browser import Page, chromium
from tests.support.media import projector_file
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

TIDES = """
from typing import Literal

from mcp.server import MCPServer

server = MCPServer("almanac")

@server.tool()
def tides(harbour: Literal["Lisbon"], day: Literal["tomorrow"]) -> str:
    '''The times of high and low water at a harbour.'''
    return "high water 05:12 and 17:38, low water 11:20 and 23:47"

server.run("stdio")
"""
TEMPLATE = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sunset() -> str:
    """A PNG of the sun above the sea, in base64."""
    y, x = np.mgrid[0:200, 0:320] / 200
    near = np.exp(-12 * ((x - 0.8) ** 2 + (y - 0.52) ** 2))
    sky = np.stack([120 + 135 * np.maximum(y, near), 70 + 120 * near + 60 * y, 130 - 60 * y + 40 * near], -1)
    sky[np.hypot(x - 0.8, y - 0.52) < 0.11] = 255, 236, 170
    gleam = np.exp(-90 * (x - 0.8) ** 2) * (0.5 + 0.5 * np.sin(160 * y**2))
    sea = np.stack([40 + 190 * gleam, 52 + 110 * gleam, 84 + 20 * gleam], -1)
    held = io.BytesIO()
    colours = np.where((y > 0.6)[..., None], sea, sky).clip(0, 255).astype(np.uint8)
    Image.fromarray(colours).save(held, "PNG")
    return base64.b64encode(held.getvalue()).decode()


def shoot(page: Page, name: str) -> None:
    """Writes a screenshot, once no animation runs."""
    page.until(lambda: page.run("return document.getAnimations().every(a => a.playState !== 'running')"))
    page.driver.save_screenshot(str(FOLDER / f"{name}.png"))


def look(page: Page, width: int, height: int, scheme: str) -> None:
    """Sets the size of the window, and dark or light colours."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def stories(page: Page, url: str) -> None:
    """A story of the demo model: its probabilities in dark colours, and the page on a phone."""
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
    """A conversation with Markdown, and the settings."""
    look(page, 1440, 900, "light")
    page.ready(url)
    page.set(system="You explain the weather to pupils.", temperature="0.6", more={"choices": [TEXT]})
    page.send("How does a rainbow form?")
    page.ended()
    page.press("Settings")
    page.run("document.getElementById('scroller').scrollTop = 0; document.activeElement.blur()")
    shoot(page, "page-chat")


def tools(page: Page, url: str) -> None:
    """A picture in a message, and a tool call that waits for permission."""
    look(page, 1200, 760, "light")
    page.ready(url)
    page.until(lambda: page.texts(".served-tools code"))
    page.set(more={"tool_choice": "almanac__tides", "parallel_tool_calls": False}, max_tokens="200")
    page.run(GIVE, "harbour.png", "image/png", sunset(), "attach-file")
    page.one("#files canvas")
    page.send("This is the harbour of Lisbon today. When is high water tomorrow?")
    page.one(".call-buttons")
    page.set(more="", max_tokens="")
    page.run("document.activeElement.blur(); document.getElementById('scroller').scrollTop = 0")
    shoot(page, "page-tools")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as page:
        with serving(InferenceEngine.from_gguf(demo.STORY)) as client:
            stories(page, client.server.url)
        model = write_tiny_model(Path(folder) / "model.gguf", ends=False)
        with serving(InferenceEngine.from_gguf(model), "model") as client:
            conversation(page, client.server.url)
        model = write_tiny_model(Path(folder) / "calls.gguf", chat_template=TEMPLATE)
        projector, servers, script = (Path(folder) / n for n in ("mmproj.gguf", "mcp.json", "almanac.py"))
        projector.write_bytes(projector_file())
        script.write_text(TIDES)
        almanac = {"command": sys.executable, "args": [str(script)]}
        servers.write_text(json.dumps({"mcpServers": {"almanac": almanac}}))
        engine = InferenceEngine.from_gguf(model, mmproj=projector)
        with serving(engine, "model", mcp=servers) as client:
            tools(page, client.server.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
