"""The choice of tokens among logits."""
