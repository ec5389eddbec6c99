"""The choice of a model's chat template: a template of its file, a file of the user, or a well-known format.

The well-known formats are Jinja templates under llama.cpp's names, for model files without a template.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from oxillama.errors import ConfigError
from oxillama.text.chat.bridge import KEY

_BLOCKS = (
    "{% for m in messages %}OPEN{{ m['role'] }}CLOSE{{ m['content'] | trim }}END{% endfor %}"
    "{% if add_generation_prompt %}OPENassistantCLOSE{% endif %}"
)
"""Each message in a block that names its role."""


def _blocks(open: str, close: str, end: str) -> str:
    return _BLOCKS.replace("OPEN", open).replace("CLOSE", close).replace("END", end)


_SPLIT = (
    "{% if messages and messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] | trim %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)
"""Sets ``system`` to the text of the system message, and ``turns`` to the other messages."""


def _inst(before: str, after: str, system: str, answer: str) -> str:
    """User messages between [INST] and [/INST]; the first one begins with the system message."""
    return (
        f"{_SPLIT}{{{{ bos_token }}}}{{% for m in turns %}}"
        f"{{% if m['role'] == 'user' %}}{before}"
        f"{{% if loop.first and system %}}{system}{{% endif %}}{{{{ m['content'] | trim }}}}{after}"
        f"{{% else %}}{answer}{{{{ eos_token }}}}{{% endif %}}{{% endfor %}}"
    )


_ANSWER = "{{ m['content'] | trim }}"

CHAT_FORMATS: dict[str, str] = {
    "chatml": _blocks("<|im_start|>", "\n", "<|im_end|>\n"),
    "gemma": (
        _SPLIT + "{{ bos_token }}{% for m in turns %}"
        "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
        "{% if loop.first and system %}{{ system }}\n\n{% endif %}"
        "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "llama2": (
        _SPLIT + "{% for m in turns %}{% if m['role'] == 'user' %}{{ bos_token }}[INST] "
        "{% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
        "{{ m['content'] | trim }} [/INST]{% else %} {{ m['content'] | trim }} {{ eos_token }}{% endif %}"
        "{% endfor %}"
    ),
    "llama3": "{{ bos_token }}" + _blocks("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    "mistral-v1": _inst(" [INST] ", " [/INST]", "{{ system }}\n\n", " " + _ANSWER),
    "mistral-v3": _inst("[INST] ", "[/INST]", "{{ system }}\n\n", " " + _ANSWER),
    "mistral-v3-tekken": _inst("[INST]", "[/INST]", "{{ system }}\n\n", _ANSWER),
    "mistral-v7": (
        _SPLIT + "{{ bos_token }}{% if system %}[SYSTEM_PROMPT] {{ system }}[/SYSTEM_PROMPT]{% endif %}"
        "{% for m in turns %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }}[/INST]"
        "{% else %} {{ m['content'] | trim }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "phi3": _blocks("<|", "|>\n", "<|end|>\n"),
    "vicuna": (
        _SPLIT + "{{ bos_token }}{% if system %}{{ system }}\n\n{% endif %}{% for m in turns %}"
        "{% if m['role'] == 'user' %}USER: {{ m['content'] | trim }}\n"
        "{% else %}ASSISTANT: {{ m['content'] | trim }}{{ eos_token }}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    "zephyr": _blocks("<|", "|>\n", "{{ eos_token }}\n"),
}
"""Variables of a template: ``messages``, ``add_generation_prompt``, ``bos_token``, ``eos_token``."""


def with_template(metadata: Mapping[str, Any], wanted: str | os.PathLike[str]) -> dict[str, Any]:
    """The metadata of a model file with one chat template, the default.

    Args:
        wanted: the name of a template of the file or of `CHAT_FORMATS`, or the path of a Jinja file.

    Raises ConfigError if the path cannot be read.
    """
    name = os.fspath(wanted)
    found = metadata.get(KEY if name == "default" else f"{KEY}.{name}", CHAT_FORMATS.get(name))
    if found is None:
        from oxillama.text.chat.template import MAX_SOURCE

        try:
            with open(name, encoding="utf-8") as file:  # reads one character too many, to refuse it
                found = file.read(MAX_SOURCE + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"chat_template: {name} is not UTF-8 (at byte {error.start})") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"chat_template: {name} cannot be read: {reason}") from error
    return {**{key: value for key, value in metadata.items() if not key.startswith(KEY)}, KEY: found}
