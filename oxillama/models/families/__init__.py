"""The facts of all architectures; the import of a module registers them."""

MODULES = (
    *(
        "llama",
        "qwen",
        "gemma",
        "phi",
        "sparse",
        "deepseek",
        "glm",
        "dense",
        "cohere",
        "hybrids",
        "mamba",
        "rwkv",
    ),
    *("delta", "olmo", "gpt", "bert"),
)
"""In the order in which an architecture is looked for."""
