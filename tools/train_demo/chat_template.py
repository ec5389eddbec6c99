"""Writes `story.jinja` into the story model and the draft as their chat template. Tensors do not change.

    python chat_template.py ../../oxillama/apps/demo/story.gguf ../../oxillama/apps/demo/draft.gguf

A receipt contains the hash of the model file, so `tests/data/receipt.json` must be made again afterwards
(see test_recorded.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from oxillama.base.atomic_file import replaced_file
from oxillama.gguf import writer
from oxillama.gguf.model_file import ModelFile

TEMPLATE = Path(__file__).parent / "story.jinja"
KEY = "tokenizer.chat_template"


def set_template(path: Path, template: str) -> None:
    """Rewrites a model file with another chat template."""
    file = ModelFile.open(path.read_bytes())
    pairs: dict[str, writer.Data] = {**file.raw_metadata(), KEY: writer.pair(KEY, template)}
    tensors = [writer.Tensor(t.name, t.format, t.shape) for t in file.tensors.values()]
    with replaced_file(path) as out:
        out.write(writer.header(pairs.values(), tensors, file.alignment))
        for tensor in tensors:
            writer.write_tensor(out, tensor, [file.data(tensor.name)], file.alignment)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        set_template(path, TEMPLATE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
