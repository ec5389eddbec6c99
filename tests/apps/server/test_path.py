"""The path of a streamed chat through the server: few files, and one worker thread before the engine's."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import oxillama
from oxillama import InferenceEngine, demo
from tests.support.server import serving
from tests.support.waiting import until

ROOT = str(Path(oxillama.__file__).parent) + "/"

MOST_FILES = 66
"""Files of the package, those of the engine's thread included; to be lowered, never raised."""

BODY = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "stream": True,
    "max_tokens": 3,
    "temperature": 0,
}


class CallPath:
    """(thread, file, function) of each call of the package while `is_noting`, in all threads begun since."""

    def __init__(self) -> None:
        self.is_noting = False
        self.calls: list[tuple[str, str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_noting and event == "call" and frame.f_code.co_filename.startswith(ROOT):
            file = frame.f_code.co_filename.removeprefix(ROOT)
            self.calls.append((threading.current_thread().name, file, frame.f_code.co_name))

    @property
    def n_hops(self) -> int:
        """Jobs of worker threads until the request is submitted to the engine's thread."""
        names = [(file, name) for _, file, name in self.calls]
        until_submitted = names[: names.index(("engine/thread.py", "submit"))]
        return until_submitted.count(("apps/server/workers.py", "__call__"))


def path_of_a_chat() -> CallPath:
    path = CallPath()
    threading.setprofile(path)  # type: ignore[arg-type]
    try:
        engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
        with serving(engine) as client:
            for _ in range(2):  # what is made once is made
                client.ask("/v1/chat/completions", BODY)
            until(lambda: not engine.model.scheduler.running)
            gc.collect()  # else the finalizers of other tests' engines may be noted, too
            gc.disable()
            path.is_noting = True
            answer = client.ask("/v1/chat/completions", BODY)
            path.is_noting = False
        assert answer.status == 200 and answer.events[-1] == "[DONE]"
    finally:
        gc.enable()
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    return path


def test_a_streamed_chat_takes_few_files_and_one_worker_thread() -> None:
    path = path_of_a_chat()
    files = sorted({file for _, file, _ in path.calls})
    assert len(files) <= MOST_FILES, files
    assert path.n_hops == 1


def test_a_second_hop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.apps.server.openai.chat.start_at_once", lambda *how: None)
    assert path_of_a_chat().n_hops == 2
