"""The facts of all architectures; the import of a module registers them."""

MODULES = (
    "llama", "qwen", "gemma", "phi", "sparse", "deepseek", "glm", "dense", "cohere", "hybrids", "mamba",
    "rwkv", "granite", "delta", "olmo", "gpt", "bert", "stacked", "switch", "gated", "latent", "compressed",
)  # fmt: skip
"""In the order in which an architecture is looked for."""
