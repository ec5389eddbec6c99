"""Row by row: norms, activations, rotary embedding, softmax, the choice of experts."""
