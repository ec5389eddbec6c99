"""Row-wise kernels: norms, activations, rotary embedding, softmax, routing to experts."""
