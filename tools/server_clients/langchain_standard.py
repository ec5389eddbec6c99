"""LangChain's standard tests of chat models and embeddings, by `langchain-openai` and a running server.

    pip install langchain-openai langchain-tests pytest pytest-asyncio
    SERVER_URL=http://127.0.0.1:8080 SERVER_MODEL=NAME pytest tools/server_clients/langchain_standard.py

Some tests check what the model writes; they need a model that was trained to call tools.
"""

from __future__ import annotations

import os
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

HERE = {
    "base_url": os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1",
    "api_key": "none",
    "model": os.environ.get("SERVER_MODEL", ""),
    "max_retries": 0,
}


class TestChatModel(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**HERE, "max_tokens": 3000, "stream_usage": True}

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "json_schema"}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {**HERE, "check_embedding_ctx_length": False}
