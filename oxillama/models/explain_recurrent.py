"""The formulas of recurrent token mixers, for `explain`.

S is the state of a sequence; its formula runs once for each token. Braces hold fields of `RecurrentSizes`.
"""

SCAN = "state of the sequence, one step a token"
RECURRENT: dict[str, list[str]] = {  # by `LayerSpec.mixer`
    "mamba": [
        "u, z = split(h @ ssm_in)  # 2 x (tokens, {inner})",
        "u = silu(causal_conv1d(u, ssm_conv1d))  # {taps} tokens",
        "dt, B, C = split(u @ ssm_x)  # (tokens, {heads}), 2 x (tokens, {n})",
        "dt = softplus(dt @ ssm_dt + bias)  # (tokens, {inner})",
        "S = exp(dt * ssm_a) * S + dt * u * B  # ({inner}, {n}), " + SCAN,
        "y = (S @ C + ssm_d * u) * silu(z)  # (tokens, {inner})",
        "out = y @ ssm_out",
    ],
    "mamba2": [
        "z, u, B, C, dt = split(h @ ssm_in)  # B, C: {groups} groups of {n}; dt: {heads} heads",
        "u, B, C = silu(causal_conv1d([u, B, C], ssm_conv1d))  # {taps} tokens",
        "dt = softplus(dt + bias)  # (tokens, {heads})",
        "S = exp(dt * ssm_a) * S + dt * u * B  # ({inner}, {n}), " + SCAN,
        "y = (S @ C + ssm_d * u) * silu(z)  # (tokens, {inner})",
        "out = norm(y) @ ssm_out  # the norm where the file has ssm_norm",
    ],
    "plamo2": [
        "z, u = split(h @ ssm_in)  # 2 x (tokens, {inner})",
        "u = silu(causal_conv1d(u, ssm_conv1d))  # {taps} tokens",
        "B, C, dt = map(rms_norm, split(u @ ssm_x))  # 2 x (tokens, {n}) and the rank of dt",
        "dt = softplus(dt @ ssm_dt + bias)  # (tokens, {heads})",
        "S = exp(dt * ssm_a) * S + dt * u * B  # ({inner}, {n}), " + SCAN,
        "out = ((S @ C + ssm_d * u) * silu(z)) @ ssm_out",
    ],
    "shortconv": [
        "b, c, u = split(h @ shortconv.in_proj)",
        "out = (c * conv1d(b * u, shortconv.conv)) @ shortconv.out_proj  # {taps} tokens",
    ],
    "rwkv6": [
        "d = previous(h) - h  # the row of the token before",
        "m = tanh((h + d * lerp) @ time_mix_w1) @ time_mix_w2 + lerps  # one each for w, k, v, r, g",
        "r, k = (h + d * m) @ time_mix_receptance, (h + d * m) @ time_mix_key",
        "v, g = (h + d * m) @ time_mix_value, (h + d * m) @ time_mix_gate",
        "w = exp(-exp(tanh((h + d * m) @ time_mix_decay_w1) @ time_mix_decay_w2 + bias))",
        "y, S = r @ (S + first * outer(k, v)), w * S + outer(k, v)  # {heads} heads, " + SCAN,
        "out = (group_norm(y) * silu(g)) @ time_mix_output",
    ],
    "rwkv6qwen2": [
        "d = previous(h) - h  # the row of the token before",
        "m = tanh((h + d * lerp) @ time_mix_w1) @ time_mix_w2 + lerps  # one each for w, k, v, r, g",
        "r, k = (h + d * m) @ time_mix_receptance, (h + d * m) @ time_mix_key  # {groups} heads of k, v",
        "v, g = (h + d * m) @ time_mix_value, (h + d * m) @ time_mix_gate",
        "w = exp(-exp(tanh((h + d * m) @ time_mix_decay_w1) @ time_mix_decay_w2 + bias)); k = k * (1 - w)",
        "S = w * S + outer(k, v); y = r @ S / sqrt({n})  # {heads} heads, " + SCAN,
        "out = (y * sigmoid(g)) @ time_mix_output",
    ],
    "rwkv7": [
        "d = previous(h) - h  # the row of the token before; lerp: one each for r, w, k, v, a, g",
        "r, k = (h + d * lerp) @ time_mix_receptance, (h + d * lerp) @ time_mix_key",
        "v = (h + d * lerp) @ time_mix_value  # from the second layer on mixed with the first layer's",
        "each of w, a, v, g: low rank, (h + d * lerp) @ {low}",
        "S = w * S + outer(v, k) - (S @ unit(k)) * outer(unit(k), a)  # {heads} heads, " + SCAN,
        "out = ((group_norm(S @ r) + (r * k * r_k).sum() * v) * g) @ time_mix_output",
    ],
    "delta": [
        "q, k, v, z, beta, dt = split(h @ {first})  # {groups} heads of q and k, {heads} of v and z, of {n}",
        "q, k, v = silu(causal_conv1d([q, k, v], ssm_conv1d)); q, k = unit(q), unit(k)  # {taps} tokens",
        "S = exp(softplus(dt + bias) * ssm_a) * S  # ({n}, {n}) a head, " + SCAN,
        "S = S + sigmoid(beta) * outer(v - S @ k, k)",
        "out = (rms_norm(S @ q) * {gate}(z)) @ ssm_out",
    ],
    "lightning": [
        "q, k, v, g = split(h @ {first}); q, k, v = silu(q), silu(k), silu(v)  # {heads} heads of {n}",
        "S = decay[head] * S + outer(k, v)  # ({n}, {n}) a head, " + SCAN,
        "out = (rms_norm(S @ q) * sigmoid(g)) @ attn_output",
    ],
    "kda": [
        "q, k, v, f, g, beta = split(h @ {first})  # {heads} heads of {n}",
        "q, k, v = silu(causal_conv1d([q, k, v], ssm_conv1d)); q, k = unit(q), unit(k)  # {taps} tokens",
        "S = exp({decay}) * S  # ({n}, {n}) a head, " + SCAN,
        "S = S + sigmoid(beta) * outer(v - S @ k, k)",
        "out = (rms_norm(S @ q) * sigmoid({gate})) @ attn_output",
    ],
}
