"""OpenAI's interface: completions, chats, embeddings, and the reranking of compatible servers."""
