"""Published fields of requests that have no effect here, or that are refused, and why.

The server's errors, `docs/server-fields.md` (`python tools/make_fields.py`) and a test read these tables. The
test takes the fields from the packages of OpenAI, Anthropic and Ollama: each one is in a table, or honoured.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class NoEffect(NamedTuple):
    """A field that is accepted and has no effect.

    Attributes:
        reason: why nothing is lost.
        values: those that are accepted; None for any. Others are refused.
    """

    reason: str
    values: tuple[Any, ...] | None = None


LABEL, CACHE = "a label of the client", "every prompt is cached"
PLACE = "where and how the model runs is for the server's options"
NO_TOOLS = "outside of chats there are no tools"


def _off(names: str, *values: Any) -> dict[str, NoEffect]:
    return dict.fromkeys(names.split(), NoEffect("the value of a feature that is off", values))


NO_EFFECT: dict[str, NoEffect] = {
    "user": NoEffect(LABEL),
    "metadata": NoEffect(LABEL),
    "client_metadata": NoEffect(f"{LABEL} (Codex)"),
    "request_id": NoEffect(LABEL),
    "session_id": NoEffect(LABEL),
    "safety_identifier": NoEffect(LABEL),
    "prompt_cache_key": NoEffect(CACHE),
    "prompt_cache_retention": NoEffect(CACHE),
    "prompt_cache_options": NoEffect(CACHE),
    "prediction": NoEffect("a hint for speed, on which the text does not depend"),
    "service_tier": NoEffect("there is one tier; a response says `default`"),
    "store": NoEffect("only responses are stored", (False,)),
    "modalities": NoEffect("answers are texts", (["text"],)),
    "verbosity": NoEffect("the default; no chat template has a word for it", ("medium",)),
    "tools": NoEffect(NO_TOOLS, ([],)),
    "tool_choice": NoEffect(NO_TOOLS, ("none", "auto")),
    "parallel_tool_calls": NoEffect(NO_TOOLS),
    "functions": NoEffect("OpenAI replaced it by `tools`", ([],)),
    "function_call": NoEffect("OpenAI replaced it by `tool_choice`", ("none", "auto")),
    **_off("use_beam_search return_progress echo include_stop_str_in_output watermarking", False),
    **_off("return_token_ids return_tokens_as_token_ids return_token_offsets return_prompt_text", False),
    **_off("grammar_lazy reasoning_control logits_all vocab_only embedding_only", False),
    **_off("stop_token_ids bad_words documents image_data preserved_tokens grammar_triggers", []),
    **_off("mm_processor_kwargs media_io_kwargs vllm_xargs kv_transfer_params ec_transfer_params", {}),
    **_off("min_keep n_indent", 0),
    **_off("best_of n_cmpl", 1),
    **_off("id_slot adaptive_target", -1),
    **_off("t_max_prompt_ms t_max_predict_ms", 0, -1),
    "length_penalty": NoEffect("belongs to `use_beam_search`, which is off"),
    "include_reasoning": NoEffect("the default; `reasoning_format` says where reasoning is", (True,)),
    "skip_special_tokens": NoEffect("texts have no special tokens", (True,)),
    "spaces_between_special_tokens": NoEffect("texts have no special tokens"),
    "stream_interval": NoEffect("events are sent as soon as their texts are there"),
    "sse_ping_interval": NoEffect("`--ping-seconds` says how often a silent stream has pings"),
    "n_cache_reuse": NoEffect(CACHE),
    "n_keep": NoEffect("texts end where the context is full", (0, -1)),
    "n_discard": NoEffect("texts end where the context is full", (0,)),
    "num_keep": NoEffect("texts end where the context is full"),
    "guided_decoding_backend": NoEffect("there is one (vLLM)"),
    "backend_sampling": NoEffect("where tokens are chosen changes none (llama-server)", (True, False)),
    **dict.fromkeys(
        (
            *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
            *("speculative.ngram_size_n", "speculative.ngram_size_m", "speculative.ngram_min_hits"),
        ),
        NoEffect("the server chooses how much is drafted; the text does not depend on it (llama-server)"),
    ),
    "adaptive_decay": NoEffect("belongs to `adaptive_target`, which is off"),
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "numa"), NoEffect(PLACE)),
    **dict.fromkeys(("use_mmap", "use_mlock", "f16_kv"), NoEffect(PLACE)),
    "tfs_z": NoEffect("the value that is off; Ollama has removed the option", (1,)),
    **dict.fromkeys(
        ("penalize_newline", "penalize_nl"), NoEffect("penalties treat all tokens alike", (True,))
    ),
}
"""By the names of fields of bodies that ask for text, and of Ollama's ``options``."""

OPENAI, RESPONSES, ANTHROPIC, OLLAMA = "OpenAI", "OpenAI's responses", "Anthropic", "Ollama"
VECTORS, DOWNLOADS = "Ollama's vectors", "Ollama's downloads"

SPEECH = "answers are texts"
HOSTED = "a tool, or a feature, of OpenAI's own servers"
OWN = "a tool, or a feature, of Anthropic's own servers"
FREE_CALLS = "calls have arguments in JSON: no template has calls of free text"
ACCOUNT = "there are no accounts and no bills here"
UNREAD = "it cannot be decrypted here"
NO_FILES = "the server keeps no files, and reads texts, pictures and sounds only"
NO_PADDING = "events are not padded"
NO_CUT = "prompts are never cut"
NO_CHECKS = "nothing is moderated here"

REFUSED: dict[str, dict[str, str]] = {
    OPENAI: {
        "audio": SPEECH,
        "messages<assistant>.audio": SPEECH,
        "messages<user>.content<file>": NO_FILES,
        "messages<assistant>.tool_calls<custom>": FREE_CALLS,
        "tools<custom>": FREE_CALLS,
        "tool_choice<custom>": FREE_CALLS,
        "moderation": NO_CHECKS,
        "stream_options.include_obfuscation": NO_PADDING,
        "web_search_options": "the server fetches nothing",
    },
    RESPONSES: {
        "access_programs": ACCOUNT,
        "background": "a response ends with its connection",
        "background_options": "a response ends with its connection",
        "context_management": NO_CUT,
        "truncation=auto": NO_CUT,
        "conversation": "conversations go on by `previous_response_id`",
        "prompt": "no prompts are stored here",
        "image": "answers are texts",
        "moderation": NO_CHECKS,
        "personality": "no chat template has a word for it",
        "text.verbosity=low": "no chat template has a word for it",
        "text.verbosity=high": "no chat template has a word for it",
        "reasoning.mode": "no chat template has a word for it",
        **dict.fromkeys(
            ("reasoning.*summary=concise", "reasoning.*summary=detailed"),
            "reasoning is sent whole, there are no summaries",
        ),
        "reasoning.context=*_turn*": "the chat template decides which reasoning of the input it shows",
        "stream_options.include_obfuscation": NO_PADDING,
        **dict.fromkeys(
            ("input.id", "input.type=item_reference"),
            "an id of no item that is kept here: send the item, or `previous_response_id`",
        ),
        "input<message>.content<input_file>": NO_FILES,
        "input<function_call_output>.output<input_file>": NO_FILES,
        "input<function_call*>.caller<program>": HOSTED,
        "input<function_call*>.async": HOSTED,
        "input<reasoning>.encrypted_content": UNREAD,
        "input<compaction*>": UNREAD,
        "input<custom_tool_call*>": FREE_CALLS,
        **{
            f"input<{name}>": HOSTED
            for name in (
                *("*search_*", "computer_call*", "code_interpreter_call", "program*", "*shell_call*"),
                *("apply_patch_call*", "mcp_*", "additional_tools", "image_generation_call"),
                "configuration_update",
            )
        },
        **{
            f"tool_choice{name}": "tools of OpenAI's own servers are left out, and so cannot be chosen"
            for name in (".type", "<mcp>", "<programmatic_tool_calling>", "<apply_patch>", "<shell>")
        },
        "tool_choice<custom>": FREE_CALLS,
        "tools<function>.async": HOSTED,
        "tools<function>.output_schema": "the client runs the function, and knows what it returns",
    },
    ANTHROPIC: {
        "container": OWN,
        "diagnostics": OWN,
        "thread": "the whole conversation is sent",
        "fallbacks": "a request has one model",
        "compaction": NO_CUT,
        **dict.fromkeys(
            ("inference_geo", "speed=fast", "output_config.task_budget"),
            "the model runs where the server runs",
        ),
        **dict.fromkeys(
            ("billing_policy", "fallback_credit_token", "user_profile_id", "workspace_id"), ACCOUNT
        ),
        "tools.input_examples": "no chat template has a place for examples of calls",
        "mcp_servers": "tools of MCP servers are for `/v1/chat/completions`",
        "context_management.edits<compact_20260112>": NO_CUT,
        "context_management.edits<clear_tool_uses_20250919>": NO_CUT,
        "context_management.edits<clear_thinking_20251015>.type": NO_CUT,
        "context_management.edits<clear_thinking_20251015>.keep<thinking_turns>": NO_CUT,
        "thinking<between_tools>": "no chat template has a switch for it",
        "thinking<*>.display=updates": "reasoning is sent whole, or not at all",
        "thinking<*>.block_binding": "signatures are not checked",
        "messages<system>.clear_at": NO_CUT,
        "messages<system>.output_config": "an effort is for the whole request",
        "*<text>.citations": "the model is given no documents to cite",
        "messages<*>.content<document>": NO_FILES,
        "messages<*>.content<search_result>": NO_FILES,
        "messages<*>.content<container_upload>": NO_FILES,
        "*.source<url>": "the server fetches nothing",
        "*.source<file>": NO_FILES,
        "messages<assistant>.content<image>": "no chat template has pictures in answers",
        "messages<user>.content<thinking>": "only the assistant thinks",
        "messages<*>.content<redacted_thinking>": UNREAD,
        "messages<user>.content<tool_use>": "only the assistant calls tools",
        "messages<assistant>.content<tool_result>": "only the user has results",
        "*.transformations": "a picture is scaled to what the model takes",
        "*.toolset_name": OWN,
        **{
            f"messages<*>.content<{name}>": OWN
            for name in (
                *("server_tool_use", "*_tool_result", "mcp_*", "tool_addition", "tool_removal", "fallback"),
                *("compaction", "tool_reference", "browser_state"),
            )
        },
    },
    OLLAMA: {
        **dict.fromkeys(("width", "height", "steps"), "answers are texts"),
        "template": "the chat template is the model's; the same text is accepted",
    },
    DOWNLOADS: {"insecure": "downloads are encrypted"},
    VECTORS: dict.fromkeys(
        (
            *("options.*_penalty", "options.mirostat*", "options.num_predict", "options.repeat_last_n"),
            *("options.seed", "options.stop", "options.temperature", "options.top_*", "options.typical_p"),
        ),
        "no token is chosen for a vector",
    ),
}
"""By interface: the places of fields and values in a body, and why they are refused.

``a<b>.c=d`` is the value d of the field c of those objects in a whose type, or role, is b; ``*`` is any text.
What is inside of a refused field is refused, too.
"""
