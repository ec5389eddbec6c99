"""Reference of the whole model, for every architecture of the zoo: float64, a head, an expert at a time.

Written from published facts: those of `tests.support.architectures`, and what only one architecture does, by
its name; it knows nothing of the library. It takes what `tests.support.zoo.Model` writes into a file, and
agrees with llama.cpp on all of that.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.references import recurrent, routing, vector
from tests.references import rope as rope_reference
from tests.support.zoo import Model

LIKE_DEEPSEEK2 = ("deepseek2", "deepseek32", "glm-dsa", "mistral4")


class Reference:
    """A model's weights and metadata, and its forward pass."""

    def __init__(
        self, model: Model, weights: dict[str, np.ndarray] | None = None, context: int | None = None
    ) -> None:
        self.model = model
        self.name = model.architecture
        self.facts = model.facts
        self.keys = {key: value for key, (_, value) in model.metadata().items()}
        self.w = {name: values.astype(np.float64) for name, values in (weights or model.tensors()).items()}
        self.context = context or model.context
        self.n_layers = model.n_layers
        for name in [name for name in self.w if name.endswith("_norm")]:  # some have no suffix
            self.w[f"{name}.weight"] = self.w[name]
        if self.name == "t5encoder":
            names = {name: name.removeprefix("enc.") if ".blk." in name else name for name in self.w}
            self.w = {names[n].replace("attn_o.", "attn_output."): values for n, values in self.w.items()}
        self.chosen: np.ndarray | None = None  # what the last selector chose
        self.given = np.zeros(())  # the input of a layer, which a router may read
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # keys and values of layers
        self.own = np.zeros(())  # embeddings of layers

    def get(self, key: str, default: Any) -> Any:
        value = self.keys.get(key, default)
        return float(np.float32(value)) if isinstance(value, float) else value

    # --- parts ------------------------------------------------------------------------------------

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: np.ndarray, layer: bool | None = None) -> np.ndarray:
        """A norm over the last axis with whatever parameters the file has for it."""
        layer = self.facts.norm == "layer" if layer is None else layer
        eps = self.get("attention.layer_norm_rms_epsilon", self.get("attention.layer_norm_epsilon", 0.0))
        if self.name == "qwen2vl":
            eps = 0.0
        weight, bias = self.w.get(f"{name}.weight", 1.0), self.w.get(f"{name}.bias", 0.0)
        kind = vector.layer_norm if layer else vector.rms_norm
        return kind(x, weight, eps, bias).astype(np.float64)

    def feed(self, block: str, h: np.ndarray, ending: str = "") -> np.ndarray:
        """A dense block, gated if it has a gate or twice the rows."""
        up, down = self.linear(f"{block}.ffn_up{ending}", h), f"{block}.ffn_down{ending}"
        width = self.w[f"{down}.weight"].shape[1]
        if f"{block}.ffn_gate{ending}.weight" in self.w:
            gate = self.linear(f"{block}.ffn_gate{ending}", h)
            fed = self.gated(block, gate, up, "swiglu_clamp_shexp")
        elif up.shape[1] == 2 * width:
            fed = self.gated(block, up[:, :width], up[:, width:], "swiglu_clamp_shexp")
        elif self.facts.activation == "xielu":
            fed = self.xielu(int(block.split(".")[1]), up)
        else:
            ungated = "relu" if self.name == "t5encoder" else self.facts.activation
            fed = vector.activate(ungated, up)
        return self.linear(down, fed.astype(np.float64) / self.w.get(f"{block}.ffn.act.scales", 1.0))

    def gated(self, block: str, gate: np.ndarray, up: np.ndarray, key: str) -> np.ndarray:
        """activation(gate) * up; in Step 3.5 both may have a limit."""
        limit = self.get(key, 0.0)
        limit = float(np.float32(limit[int(block.split(".")[1])] if isinstance(limit, list) else limit))
        fed = vector.gate(self.activation(), gate, np.clip(up, -limit, limit) if limit else up)
        if limit:
            active = vector.activate(self.activation(), gate)
            fed = np.minimum(active, limit) * np.clip(up, -limit, limit)
        return fed.astype(np.float64)

    def activation(self) -> str:
        """ModernBERT states its own."""
        stated: str = self.get("hidden_activation", self.facts.activation)
        return stated

    def xielu(self, i: int, x: np.ndarray) -> np.ndarray:
        """Apertus's activation (Huang and Schlag, 2024)."""

        def number(name: str) -> float:
            value = self.get(f"/xielu.{name}", 0.0)
            return float(np.float32(value[i] if isinstance(value, list) else value))

        b = number("beta")
        p, n = np.log1p(np.exp(number("alpha_p"))), b + np.log1p(np.exp(number("alpha_n")))
        return np.where(x > 0, p * x**2 + b * x, n * (np.expm1(np.minimum(x, number("eps"))) - x) + b * x)

    def experts(self, block: str, h: np.ndarray) -> np.ndarray:
        """Each row through its own experts, one at a time."""
        logits = self.linear(
            f"{block}.ffn_gate_inp", self.given if self.name in ("smallthinker", "gemma4") else h
        )
        normalize = self.facts.normalize or self.get("expert_weights_norm", False)
        stated = {1: "softmax", 2: "sigmoid"}
        gating = stated.get(self.get("expert_gating_func", 0), self.facts.gating)
        n_used = self.get("expert_used_count", 1)
        if isinstance(n_used, list):
            n_used = n_used[int(block.split(".")[1])]
        chosen, weights = routing.route(
            logits,
            n_used,
            gating,
            bias=self.w.get(f"{block}.exp_probs_b.bias"),
            groups=self.get("expert_group_count", 1),
            kept=self.get("expert_group_used_count", 1),
            normalize=normalize,
            scale=self.get("expert_weights_scale", 1.0),
        )
        latent = f"{block}.ffn_latent_down.weight" in self.w
        given = self.linear(f"{block}.ffn_latent_down", h) if latent else h
        out = np.zeros_like(given)
        for row, (experts, shares) in enumerate(zip(chosen, weights)):
            for e, share in zip(experts, shares):
                x = given[row] * share if self.name == "llama4" else given[row]
                y = self.one_expert(block, int(e), x[None])[0]
                share = share * self.w.get(f"{block}.ffn_down_exps.scale", np.ones(e + 1))[e]
                out[row] += y if self.name == "llama4" else share * y
        out = self.linear(f"{block}.ffn_latent_up", out) if latent else out
        if f"{block}.ffn_up_shexp.weight" in self.w:
            shared = self.feed(block, h, "_shexp")
            gate = f"{block}.ffn_gate_inp_shexp.weight"
            if gate in self.w:
                shared = shared / (1 + np.exp(-(h @ self.w[gate])))[:, None]
            out = out + shared
        if self.name == "grok" and f"{block}.ffn_up.weight" in self.w:
            out = (out + self.feed(block, h)) * math.sqrt(2) / 2
        return out

    def one_expert(self, block: str, e: int, x: np.ndarray) -> np.ndarray:
        def linear(part: str, x: np.ndarray) -> np.ndarray:
            name, zero = f"{block}.ffn_{part}_exps", np.zeros((e + 1, 1))
            y: np.ndarray = x @ self.w[f"{name}.weight"][e].T + self.w.get(f"{name}.bias", zero)[e]
            return y

        if f"{block}.ffn_gate_exps.weight" in self.w:
            fed = self.gated(block, linear("gate", x), linear("up", x), "swiglu_clamp_exp")
        else:
            fed = vector.activate(self.facts.activation, linear("up", x))
        return linear("down", fed.astype(np.float64))

    # --- attention --------------------------------------------------------------------------------

    def window(self, i: int) -> int:
        """Positions that layer i sees back, 0 for all."""
        facts = self.facts
        if facts.windows is None:
            return self.large_window(i) if self.name == "exaone4" and self.n_layers == 64 else 0
        window, pattern = self.get("attention.sliding_window", facts.window), facts.windows
        if pattern:
            pattern = self.get("attention.sliding_window_pattern", pattern)
        else:
            stated = self.get("attention.sliding_window_pattern", 0)
            pattern = stated if isinstance(stated, list) else 0
        if self.name == "smallthinker":
            window = 4096 if window else 0
        if isinstance(pattern, list):
            return window if pattern[i] else 0
        full = 0 if facts.full_layer == "first" else pattern - 1
        return window if not pattern or i % pattern != full else 0

    def large_window(self, i: int) -> int:
        """Of the large EXAONE 4."""
        window: int = self.get("attention.sliding_window", 4096)
        return window if i % 4 < 3 else 0

    def rotation(self, i: int) -> tuple[np.ndarray, float] | None:
        """Radians per position and the magnitude, or None for a layer that does not rotate."""
        windowed = bool(self.window(i))
        facts = self.facts
        of_windows = facts.rope_on_windows or (self.name == "exaone4" and self.n_layers == 64)
        turns = facts.rope != "none" or (self.name == "baichuan" and self.n_layers == 32)
        if not turns or (of_windows and not windowed):
            return None
        if self.name == "smallthinker" and self.get("attention.sliding_window", 0) and i % 4 == 0:
            return None
        if not self.get("attention.rope_pattern", [1] * self.n_layers)[i]:
            return None
        plain_llama4 = self.name == "llama4" and self.get("attention.sliding_window", 1) == 0
        if facts.no_rope_every and not plain_llama4 and (i + 1) % facts.no_rope_every == 0:
            return None
        if self.name in ("granite", "granitehybrid") and not self.get("rope.scaling.finetuned", True):
            return None
        kind, s = self.get("rope.scaling.type", "linear"), self.get("rope.scaling.factor", 1.0)
        base = self.get("rope.freq_base", 10000.0)
        if windowed and facts.local_base is not None:
            base = self.get("rope.freq_base_swa", facts.local_base or base)
        plain = windowed and facts.plain_windows
        first = self.get("rope.scaling.original_context_length", self.model.context)
        alpha = self.get("rope.scaling.alpha", 1.0)
        if alpha > 1:
            kind, s = "ntk", alpha
        n_rot = self.n_rot(i)
        if self.name == "gemma4" and not windowed:
            plain = False
        rope = SimpleNamespace(
            n_rot=n_rot,
            base=base,
            kind="none" if plain else kind,
            factor=s,
            original_context=first,
            mix=1.0,
            beta_fast=8.0 if self.name == "grok" else 32.0,
            beta_slow=1.0,
            sections=self.sections(),
        )
        factors = self.w.get("rope_freqs.weight")
        if factors is None and (kind == "longrope" or self.name in ("phi3", "phimoe", "minicpm3", "apertus")):
            factors = self.w.get(f"rope_factors_{'long' if self.context > first else 'short'}.weight")
        factors = None if factors is None or (plain and self.name != "gemma3") else factors[: n_rot // 2]
        turning = rope_reference.frequencies(rope, self.context, factors).astype(np.float64)
        turning[self.still_pairs(n_rot // 2)] = 0
        magnitude = self.get("rope.scaling.attn_factor", 1.0)
        if plain:
            return turning, magnitude if self.name == "gemma3" else 1.0
        if kind == "yarn":
            m = self.get("rope.scaling.yarn_log_multiplier", 0.0)
            if self.name in LIKE_DEEPSEEK2:
                gain = 1.0 if m else 1 + 0.1 * math.log(s)
            else:
                gain = (1 + 0.1 * math.log(s)) / (1 + 0.1 * m * math.log(s))
            magnitude *= gain
        return turning, magnitude

    def turn(self, i: int, x: np.ndarray, neox: bool | None = None) -> np.ndarray:
        """Heads (n, heads, dim) with the first dimensions of each turned."""
        rotation = self.rotation(i)
        if rotation is None:
            return x
        turning, magnitude = rotation
        neox = self.facts.rope == "neox" or bool(self.sections()) if neox is None else neox
        angles = np.arange(len(x))[:, None] * turning
        turned = vector.rope(x, angles, neox)
        n_rot = self.n_rot(i)
        return np.concatenate([turned[..., :n_rot] * magnitude, turned[..., n_rot:]], axis=-1)

    def n_rot(self, i: int) -> int:
        """Dimensions that turn: in Step 3.5 half of them in layers without a window."""
        if self.name == "gemma4" and self.window(i):
            return self.model.half_dim
        if self.name != "step35":
            return self.model.n_rot
        n: int = self.get("rope.dimension_count", self.model.n_rot)
        return self.get("rope.dimension_count_swa", n) if self.window(i) else n // 4 * 2

    def still_pairs(self, n: int) -> np.ndarray:
        """Pairs of interleaved sections that do not turn."""
        still = np.zeros(n, bool)
        sections = self.get("rope.dimension_sections", ())
        if not self.name.startswith(("qwen3vl", "qwen35")) or not sum(sections):
            return still
        for pair in range(n):
            place = pair % sum(sections)
            kind = (0, 1, 2)[place % 3]
            still[pair] = place >= 3 * sections[kind]
        return still

    def sections(self) -> Any:
        """Pairs that turn with each coordinate of a token; GLM-4 has some if it sees images."""
        sections = (
            () if self.name.startswith(("qwen3vl", "qwen35")) else self.get("rope.dimension_sections", ())
        )
        return () if self.name in ("glm4", "glm4moe") and not all(sections[:2]) else sections

    def temperature(self, i: int, n: int) -> np.ndarray:
        """(n, 1, 1): what queries are multiplied by."""
        rate, length, offset = self.get("attention.temperature_scale", 0.0), 1, 0
        if self.name == "mistral3":
            length = self.get("rope.scaling.original_context_length", self.model.context)
        elif self.name in LIKE_DEEPSEEK2:
            length = self.get("attention.temperature_length", 1)
        elif self.name == "llama4" and self.get("attention.sliding_window", 1) and self.rotation(i) is None:
            rate, length, offset = 0.1, 8192, 1
        steps = (np.arange(n) + offset) // length + 1
        return (1 + rate * np.log(steps))[:, None, None]

    def scores_scale(self, key_dim: int) -> float:
        if self.name == "grok":
            return self.get("attention.output_scale", 0.08838834764831845)
        if (self.name, self.n_layers) in (("gemma2", 46), ("gemma3", 62)):
            return (self.model.n_embd // self.model.n_heads) ** -0.5
        if self.name == "t5encoder":
            return 1.0
        scale = self.get("attention.scale", 0.0) or key_dim**-0.5
        if self.name in LIKE_DEEPSEEK2:  # the multiplier stands in for YaRN's gain, and joins any other
            s, m = self.get("rope.scaling.factor", 1.0), self.get("rope.scaling.yarn_log_multiplier", 0.0)
            own = 0.0 if m and self.get("rope.scaling.type", "") == "yarn" else 0.1
            scale *= ((1 + m * math.log(s)) * (1 + own * math.log(s))) ** 2
        return scale

    def attend(
        self,
        i: int,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        scale: float,
        only: np.ndarray | None = None,
    ) -> np.ndarray:
        """(n, heads * value_dim): softmax(q k) v with every variation, a head and a row at a time."""
        n, heads = q.shape[:2]
        group, window = heads // k.shape[1], self.window(i)
        caps = {"gemma2": 50.0, "grok": 30.0}
        cap = self.get("attn_logit_softcapping", caps.get(self.name, 0.0))
        bias = (
            8.0
            if self.name in ("bloom", "jina-bert-v2") or (self.name, self.n_layers) == ("baichuan", 40)
            else self.get("attention.max_alibi_bias", 0.0)
        )
        q = q * self.temperature(i, n)
        distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
        both_ways = self.facts.encoder or not self.get("attention.causal", True)
        seen = np.ones((n, n), bool) if both_ways else np.tri(n, dtype=bool)
        seen = seen if only is None else seen & only
        if window:
            back = np.arange(n)[:, None] - np.arange(n)[None]
            seen &= np.abs(back) <= window // 2 if self.facts.centred else np.abs(back) < window
        out = []
        for h in range(heads):
            scores = q[:, h] @ k[:, h // group].T * scale
            scores = cap * np.tanh(scores / cap) if cap else scores
            if self.name == "t5encoder":
                scores = scores + self.relative_bias(i, h, n)
            if bias:
                two = 2 ** int(math.log2(heads))
                exponent = bias * (h + 1) / two if h < two else bias * (2 * (h - two) + 1) / (2 * two)
                scores = scores - 2**-exponent * distance
            powers = np.where(seen, np.exp(np.where(seen, scores, -np.inf)), 0.0)
            total = powers.sum(axis=1, keepdims=True)
            if f"blk.{i}.attn_sinks.weight" in self.w:
                total = total + np.exp(self.w[f"blk.{i}.attn_sinks.weight"][h])
            out.append(powers / total @ v[:, h // group])
        return np.concatenate(out, axis=1)

    def relative_bias(self, i: int, h: int, n: int) -> np.ndarray:
        """(n, n): what T5 adds to the scores of head h, by the distance of key and query."""
        stored = f"blk.{i}.attn_rel_b.weight"
        table = self.w[stored if stored in self.w else "blk.0.attn_rel_b.weight"][:, h]
        half = len(table) // 2
        exact, found = half // 2, np.zeros((n, n))
        for query in range(n):
            for key in range(n):
                d = abs(key - query)
                bucket = d
                if d >= exact:
                    ratio = math.log(d / exact) / math.log(128 / exact)
                    bucket = min(half - 1, exact + math.floor(round(ratio * (half - exact), 9)))
                found[query, key] = table[bucket + (half if key > query else 0)]
        return found

    def mixer(self, i: int, h: np.ndarray) -> np.ndarray:
        """The mixer of layer i."""
        mixed, block = self.facts.mixed, f"blk.{i}"
        if "single" in self.facts.layer and i % 3 == 0:
            return recurrent.mamba2(self, block, h)
        if self.name == "falcon-h1":
            return recurrent.mamba2(self, block, h) + self.attention(i, h)
        if "single" in self.facts.layer:
            return self.attention(i, h)
        if self.facts.recurrent and not (mixed and self.model.attends(i)):
            return recurrent.MIXERS[mixed or self.name](self, f"blk.{i}", h)
        if f"blk.{i}.attn_kv_a_mqa.weight" in self.w:
            return self.latent(i, h)
        return self.attention(i, h)

    def attention(self, i: int, h: np.ndarray) -> np.ndarray:
        """Attention of layer i."""
        m, block, n = self.model, f"blk.{i}", len(h)
        heads, kv = m.heads_of_layers[i][:2] if m.heads_of_layers else (m.n_heads, m.n_kv_heads)
        if self.name in ("gemma4", "gemma3n"):
            return self.gemma_mixer(i, h, heads, kv)
        if f"{block}.attn_qkv.weight" in self.w:
            widths = np.cumsum([heads * m.key_dim, kv * m.key_dim])
            q, k, v = np.split(self.linear(f"{block}.attn_qkv", h), widths, axis=1)
        else:
            q, k, v = (self.linear(f"{block}.attn_{c}", h) for c in "qkv")
        gate: np.ndarray | float = 1.0
        if self.facts.gated:
            by_head = q.reshape(n, heads, 2, -1)
            q, gate = by_head[:, :, 0].reshape(n, -1), 1 / (1 + np.exp(-by_head[:, :, 1].reshape(n, -1)))
        clamp = self.get("attention.clamp_kqv", 0.0)
        if clamp:
            q, k, v = (np.clip(part, -clamp, clamp) for part in (q, k, v))
        if not self.facts.norm_after_rope:
            q, k = self.qk_norm(f"{block}.attn_q_norm", q, heads), self.qk_norm(f"{block}.attn_k_norm", k, kv)
        q, k = self.turn(i, q.reshape(n, heads, -1)), self.turn(i, k.reshape(n, kv, -1))
        if self.facts.norm_after_rope and self.rotation(i) is not None:
            q = self.qk_norm(f"{block}.attn_q_norm", q.reshape(n, -1), heads).reshape(q.shape)
            k = self.qk_norm(f"{block}.attn_k_norm", k.reshape(n, -1), kv).reshape(k.shape)
        if self.name == "llama4" and self.rotation(i) is not None and m.n_experts != 128:
            q, k = (self.norm("", part, layer=False) for part in (q, k))
        attended = self.attend(i, q, k, v.reshape(n, kv, -1), self.scores_scale(m.key_dim))
        if f"{block}.attn_gate.weight" in self.w:
            gates = 1 / (1 + np.exp(-self.linear(f"{block}.attn_gate", h)))
            attended = (attended.reshape(*gates.shape, -1) * gates[:, :, None]).reshape(n, -1)
        attended = attended * self.get("attention.value_scale", 1.0)
        return self.linear(f"{block}.attn_output", attended * gate)

    def gemma_mixer(self, i: int, h: np.ndarray, heads: int, kv: int) -> np.ndarray:
        """Attention of Gemma 3n and 4: no score scale, normed values; the last layers share keys, values."""
        block, n = f"blk.{i}", len(h)
        usual = max(0, self.n_layers - 20) if self.name == "gemma3n" else 0
        first = self.n_layers - self.get("attention.shared_kv_layers", usual)
        q = self.qk_norm(f"{block}.attn_q_norm", self.linear(f"{block}.attn_q", h), heads)
        if i < first:
            k = self.linear(f"{block}.attn_k", h)
            v = self.linear(f"{block}.attn_v", h) if f"{block}.attn_v.weight" in self.w else k
            k = self.turn(i, self.qk_norm(f"{block}.attn_k_norm", k, kv).reshape(n, kv, -1))
            self.kept[i] = k, self.norm("", v.reshape(n, kv, -1))
        source = i
        if i >= first:
            source = max(j for j in range(first) if bool(self.window(j)) == bool(self.window(i)))
        attended = self.attend(i, self.turn(i, q.reshape(n, heads, -1)), *self.kept[source], 1.0)
        return self.linear(f"{block}.attn_output", attended)

    def own_embeddings(self, tokens: list[int], x: np.ndarray) -> np.ndarray:
        """Float64 (layers, n, width): the embeddings that layers have of their own."""
        table = self.w["per_layer_token_embd.weight"][tokens]
        n, width = len(tokens), table.shape[1] // self.n_layers
        made = self.linear("per_layer_model_proj", x / math.sqrt(x.shape[1])).reshape(n, self.n_layers, width)
        made = self.norm("per_layer_proj_norm", made)
        both = (table.reshape(made.shape) * math.sqrt(width) + made) / math.sqrt(2)
        return both.transpose(1, 0, 2)

    def own_part(self, i: int, x: np.ndarray) -> np.ndarray:
        """What layer i adds of its own embedding."""
        block = f"blk.{i}"
        gate = vector.activate("gelu", self.linear(f"{block}.inp_gate", x)).astype(np.float64)
        return self.norm(f"{block}.post_norm", self.linear(f"{block}.proj", gate * self.own[i]))

    def gemma4_layer(self, i: int, x: np.ndarray) -> np.ndarray:
        block, w = f"blk.{i}", self.w

        def norm(name: str, x: np.ndarray) -> np.ndarray:
            return self.norm(f"{block}.{name}", x)

        x = x + norm("post_attention_norm", self.mixer(i, norm("attn_norm", x)))
        fed = self.feed(block, norm("ffn_norm", x))
        if f"{block}.ffn_gate_inp.weight" in w:
            scale = w[f"{block}.ffn_gate_inp.scale"] / math.sqrt(x.shape[1])
            self.given = self.norm("", x) * scale
            routed = self.experts(block, norm("pre_ffw_norm_2", x))
            fed = norm("post_ffw_norm_1", fed) + norm("post_ffw_norm_2", routed)
        x = x + norm("post_ffw_norm", fed)
        if f"{block}.inp_gate.weight" in w:
            x = x + self.own_part(i, x)
        return x * w.get(f"{block}.layer_output_scale.weight", 1.0)

    def modes(self, block: str, x: np.ndarray) -> np.ndarray:
        """What mixes the streams of Gemma 3n, (n, 4)."""
        return np.tanh(
            self.linear(f"{block}.altup_router", self.norm(f"{block}.altup_router_norm", x) / x.shape[1])
        )

    def gemma3n_layer(self, i: int, streams: np.ndarray) -> np.ndarray:
        """Streams (4, n, d) after layer i (Gemma 3n)."""
        block, n = f"blk.{i}", streams.shape[1]

        def norm(name: str, x: np.ndarray) -> np.ndarray:
            return self.norm(f"{block}.{name}", x)

        c = self.linear(f"{block}.altup_predict_coef", self.modes(block, streams[0])).reshape(n, 4, 4)
        guessed = streams + np.einsum("noi,ind->ond", c, streams)
        h = norm("attn_norm", guessed[0])
        laurel = self.linear(f"{block}.laurel_r", self.linear(f"{block}.laurel_l", h))
        laurel = h + norm("laurel_post_norm", laurel)
        b = guessed[0] + norm("post_attention_norm", self.mixer(i, h)) + laurel
        b = b / math.sqrt(2)
        x = norm("ffn_norm", b)
        gate, up = self.linear(f"{block}.ffn_gate", x), self.linear(f"{block}.ffn_up", x)
        usual = [1.6448533535003662 if j < 10 else -math.inf for j in range(self.n_layers)]
        cut = float(np.float32(self.get("activation_sparsity_scale", usual)[i]))
        if cut > -math.inf:
            least = gate.mean(axis=1, keepdims=True) + cut * gate.std(axis=1, ddof=1, keepdims=True)
            gate = np.maximum(gate - least, 0)
        fed = vector.gate("gelu", gate, up).astype(np.float64)
        act = b + norm("post_ffw_norm", self.linear(f"{block}.ffn_down", fed))
        c = 1 + self.linear(f"{block}.altup_correct_coef", self.modes(block, act))
        found = guessed + c.T[:, :, None] * (act - guessed[0])
        found[1:] += self.own_part(i, found[0] * self.w[f"{block}.altup_correct_scale.weight"])
        return found

    def streamed(self, x: np.ndarray) -> np.ndarray:
        """All layers of Gemma 3n; hidden states before the last norm."""

        def projected(name: str, i: int, y: np.ndarray, like: np.ndarray) -> np.ndarray:
            y = y @ self.w[f"{name}.weight"][i].T
            ratio = np.linalg.norm(like, axis=1) / np.linalg.norm(y, axis=1)
            found: np.ndarray = y * ratio[:, None]
            return found

        streams = np.stack([x, *(projected("altup_proj", i, x, x) for i in range(3))])
        for i in range(self.n_layers):
            streams = self.gemma3n_layer(i, streams)
        ends = [projected("altup_unembd_proj", i, streams[i + 1], streams[0]) for i in range(3)]
        found: np.ndarray = (streams[0] + sum(ends)) / 4
        return found

    def qk_norm(self, name: str, x: np.ndarray, heads: int) -> np.ndarray:
        """By head, by head with its own weights, or over the whole row: as the weights' shape has it."""
        if f"{name}.weight" not in self.w:
            return x
        if self.w[f"{name}.weight"].shape == x.shape[1:]:
            return self.norm(name, x)
        return self.norm(name, x.reshape(len(x), heads, -1)).reshape(len(x), -1)

    def latent(self, i: int, h: np.ndarray) -> np.ndarray:
        """Latent attention with keys and values made for every head, as in training."""
        m, block, n = self.model, f"blk.{i}", len(h)
        heads, fixed, rank = m.n_heads, m.key_dim - m.n_rot, m.kv_rank
        if f"{block}.attn_q.weight" in self.w:
            q = self.linear(f"{block}.attn_q", h)
        else:
            narrow = self.norm(f"{block}.attn_q_a_norm", self.linear(f"{block}.attn_q_a", h))
            q = self.linear(f"{block}.attn_q_b", narrow)
            if f"{block}.indexer.proj.weight" in self.w:
                self.chosen = self.choose(i, h, narrow)
        q = q.reshape(n, heads, -1)
        both = self.linear(f"{block}.attn_kv_a_mqa", h)
        compressed = self.norm(f"{block}.attn_kv_a_norm", both[:, :rank])
        if m.old_latent:
            parts = self.linear(f"{block}.attn_kv_b", compressed).reshape(n, heads, -1)
            keys, values = parts[..., :fixed], parts[..., fixed:]
        else:
            keys = np.einsum("nr,hrf->nhf", compressed, self.w[f"{block}.attn_k_b.weight"])
            values = np.einsum("nr,hvr->nhv", compressed, self.w[f"{block}.attn_v_b.weight"])
        turned = self.turn(i, both[:, None, rank:])
        k = np.concatenate([keys, np.repeat(turned, heads, axis=1)], axis=2)
        q = np.concatenate([q[..., :fixed], self.turn(i, q[..., fixed:])], axis=2)
        attended = self.attend(i, q, k, values, self.scores_scale(m.key_dim), self.chosen)
        return self.linear(f"{block}.attn_output", attended)

    def choose(self, i: int, h: np.ndarray, narrow: np.ndarray) -> np.ndarray:
        """bool (n, n): the positions that a selector chooses for each row."""
        block, n = f"blk.{i}.indexer", len(h)
        key = self.linear(f"{block}.attn_k", h)
        weight, bias = self.w[f"{block}.k_norm.weight"], self.w[f"{block}.k_norm.bias"]
        key = vector.layer_norm(key, weight, 1e-6, bias).astype(np.float64)[:, None]
        q = self.linear(f"{block}.attn_q_b", narrow).reshape(n, -1, key.shape[-1])
        q, key = (self.turn(i, x, self.name == "deepseek32") for x in (q, key))
        scores = (
            np.maximum(np.einsum("nhd,md->nmh", q, key[:, 0]), 0)
            @ self.linear(f"{block}.proj", h)[:, :, None]
        )
        chosen = np.zeros((n, n), bool)
        for row in range(n):
            order = np.argsort(-scores[row, : row + 1, 0], kind="stable")
            chosen[row, order[: self.get("attention.indexer.top_k", 0)]] = True
        return chosen

    # --- the whole --------------------------------------------------------------------------------

    def layer(self, i: int, x: np.ndarray) -> np.ndarray:
        block = f"blk.{i}"

        def has(name: str) -> bool:
            return f"{block}.{name}.weight" in self.w

        def feed(h: np.ndarray) -> np.ndarray:
            if self.name.startswith("rwkv"):
                return recurrent.channel_mix(self, block, h)
            return self.experts(block, h) if has("ffn_gate_inp") else self.feed(block, h)

        def norm(name: str, x: np.ndarray) -> np.ndarray:
            return self.norm(f"{block}.{name}", x)

        if self.name == "gemma4":
            return self.gemma4_layer(i, x)
        if self.facts.residual == "post":
            given = x
            x = norm("attn_output_norm", x + self.mixer(i, x))
            if has("attn_norm_2"):
                x = norm("attn_norm_2", x + given)
            return norm("layer_output_norm", x + feed(x))
        if self.facts.residual == "parallel":
            h = norm("attn_norm", x)
            return x + self.mixer(i, norm("attn_norm_2", x) if has("attn_norm_2") else h) + feed(h)
        if self.name == "gptneox" and self.get("use_parallel_residual", True):
            return x + self.mixer(i, norm("attn_norm", x)) + feed(norm("ffn_norm", x))
        if self.name == "stablelm" and not has("ffn_norm"):
            h = norm("attn_norm", x)
            return x + self.mixer(i, h) + feed(h)
        if "single" in self.facts.layer:
            h = norm("attn_norm", x)
            return x + (feed(h) if i % 3 == 1 else self.mixer(i, h))
        residual, second = self.residual_scale(), self.facts.second_norm
        self.given = x

        def add(x: np.ndarray, y: np.ndarray, after: str) -> np.ndarray:
            return x + residual * (norm(after, y) if has(after) and after != second else y)

        def before(name: str, x: np.ndarray) -> np.ndarray:
            return norm(name, x) if has(name) or self.name == "olmo" else x

        after, last = self.facts.post_norms
        x = add(x, self.mixer(i, before("attn_norm", x)), after)
        if self.name in ("mamba", "mamba2"):
            return x
        last = last if has(last) else "post_ffw_norm"
        x = add(x, feed(before(second, x)), last)
        every = self.get("rescale_every_n_layers", 0)
        return x * 0.5 if every and (i + 1) % every == 0 else x

    def residual_scale(self) -> float:
        usual = 1.4 / math.sqrt(self.n_layers) if self.name in ("minicpm", "minicpm3") else 1.0
        return self.get("residual_scale", usual)

    def hidden_states(self, tokens: list[int]) -> np.ndarray:
        """Hidden states after the last norm, float64 (n, n_embd)."""
        d, w = self.model.n_embd, self.w
        scale = self.get("embedding_scale", self.facts.embedding_scale or math.sqrt(d))
        x = w["token_embd.weight"][tokens] * scale
        if "token_types.weight" in w:
            x = x + w["token_types.weight"][0]
        if "position_embd.weight" in w:
            x = x + w["position_embd.weight"][: len(tokens)]
        if "token_embd_norm.weight" in w and self.facts.last_norm != "token_embd_norm":
            x = self.norm("token_embd_norm", x)
        if "per_layer_token_embd.weight" in w:
            self.own = self.own_embeddings(tokens, x)
        if self.name == "gemma3n":
            x = self.streamed(x)
        for i in range(0 if self.name == "gemma3n" else self.n_layers):
            x = self.layer(i, x)
        return x if self.facts.residual == "post" else self.norm(self.facts.last_norm, x)

    def scores(self, tokens: list[int]) -> np.ndarray:
        """A reranker's scores, float64 (n_labels,): its head is the tensors that the file has."""
        states, w = self.hidden_states(tokens), self.w
        if self.name == "qwen3":
            scores = np.exp(self.linear("cls.output", states[-1]))
            return scores / scores.sum()
        x = states[0]
        if "cls.weight" in w:
            x = np.tanh(self.linear("cls", x))
        return self.linear("cls.output", x) if "cls.output.weight" in w else x

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Logits after each token, float64 (n, vocab)."""
        own = "output.weight" in self.w and not self.facts.tied
        y = self.linear("output" if own else "token_embd", self.hidden_states(tokens))
        scale = self.get("logit_scale", {"grok": 0.5773502691896257}.get(self.name, 0.0))
        if self.name.startswith("granite"):
            y = y / (scale or 1.0)
        elif self.name in ("command-r", "cohere2", "grok"):
            y = y * scale
        elif self.name == "minicpm":
            y = y / (scale or 256 / self.model.n_embd)
        elif self.name == "minicpm3":
            y = y * 256 / self.model.n_embd
        cap = self.get(
            "final_logit_softcapping",
            dict.fromkeys(("gemma2", "gemma4", "gemma3n"), 30.0).get(self.name, 0.0),
        )
        return cap * np.tanh(y / cap) if cap else y
