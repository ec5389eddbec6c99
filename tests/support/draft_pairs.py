"""Tiny drafters with files of their own, for targets of the zoo; and what they compute, stated in NumPy.

The statement is plain: float64 products, and a softmax over the positions that a mask lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxillama.reference.rows import frequencies
from tests.support import gguf_writer as ggufwriter
from tests.support.zoo import VOCAB, Model, of_kind, stored

N_ROT, BASE, EPS = 8, 100.0, 1e-3
HEADS, KV_HEADS, DIM = 4, 2, 8
Arrays = dict[str, np.ndarray]


@dataclass
class Drafter:
    """A drafter's file.

    ``parts`` are optional tensors: "table" and "output" of its own, "d2t" (part of the vocabulary), "freqs",
    "sinks", "posts" (norms behind blocks), "scale" (of layers), "no_v", "markov", "confidence", "selector".
    ``keys`` are metadata without prefix.
    """

    kind: str
    target: Model
    parts: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    n_layers: int = 1
    n_embd: int = 32
    n_ff: int = 40
    taps: tuple[int, ...] = (0, 1)
    block: int = 5
    seed: int = 0

    def metadata(self) -> dict[str, Any]:
        keys = {
            "block_count": self.n_layers,
            "context_length": 256,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": DIM,
            "attention.value_length": DIM,
            "attention.layer_norm_rms_epsilon": EPS,
            "rope.dimension_count": N_ROT,
            "rope.freq_base": BASE,
        }
        if self.kind == "gemma4-assistant":
            wide = self.target.metadata()
            same = ("attention.head_count_kv", "attention.sliding_window", "attention.key_length",
                    "attention.value_length", "attention.key_length_swa", "attention.value_length_swa",
                    "rope.dimension_count_swa")  # fmt: skip
            keys |= {key: wide[key][1] for key in same}
            keys |= {"embedding_length_out": self.target.n_embd, "nextn_predict_layers": self.n_layers}
            keys |= {"attention.sliding_window_pattern": [i % 2 == 0 for i in range(self.n_layers)]}
        else:
            keys["target_layers"] = list(self.taps)
        if self.kind == "eagle3":
            keys["target_hidden_size"] = self.target.n_embd
        if self.kind == "dflash":
            keys["block_size"] = self.block
        if "selector" in self.parts:
            keys |= {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 4}
        return {key: value for key, value in (keys | self.keys).items() if value is not None}

    def dims(self, i: int) -> int:
        """Width of a head in layer i."""
        keys = self.metadata()
        if self.kind != "gemma4-assistant":
            return int(keys["attention.key_length"])
        local = "_swa" if keys["attention.sliding_window_pattern"][i] else ""
        return int(keys[f"attention.key_length{local}"])

    def tensors(self) -> Arrays:
        rng, d, wide, made = np.random.default_rng(self.seed + 5), self.n_embd, self.target.n_embd, {}
        parts, keys = self.parts.split(), self.metadata()

        def add(name: str, *shape: int) -> None:
            values = rng.standard_normal(shape)
            values = values * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.3 * values
            made[f"{name}.weight"] = values.astype(np.float32)

        assistant, dflash = self.kind == "gemma4-assistant", self.kind == "dflash"
        known = 30 if "d2t" in parts else VOCAB
        add("output_norm", d)
        if assistant or "table" in parts:
            add("token_embd", VOCAB, d)
        if "output" in parts or "d2t" in parts:
            add("output", known, d)
        if "d2t" in parts:
            made["d2t"] = rng.permutation(VOCAB)[:known].astype(np.int64)
        if assistant or "freqs" in parts:
            made["rope_freqs.weight"] = rng.uniform(1, 3, N_ROT // 2).astype(np.float32)
        if assistant:
            add("nextn.pre_projection", d, 2 * wide)
            add("nextn.post_projection", wide, d)
        else:
            add("fc", d, len(self.taps) * wide)
        if dflash or keys.get("norm_before_fc"):
            add("enc.output_norm", d if dflash else len(self.taps) * wide)
        for i in range(self.n_layers):
            block, dim, width = f"blk.{i}", self.dims(i), d if assistant or dflash else 2 * d
            for name in ("attn_norm", "ffn_norm", *([] if assistant or dflash else ["attn_norm_2"])):
                add(f"{block}.{name}", d)
            add(f"{block}.attn_q", HEADS * dim, width)
            for name in () if assistant else ("k",) if "no_v" in parts else ("k", "v"):
                add(f"{block}.attn_{name}", KV_HEADS * dim, width)
            add(f"{block}.attn_output", d, HEADS * dim)
            for name in ("q",) if assistant else ("q", "k") if dflash else ():
                add(f"{block}.attn_{name}_norm", dim)
            add(f"{block}.ffn_gate", self.n_ff, d)
            add(f"{block}.ffn_up", self.n_ff, d)
            add(f"{block}.ffn_down", d, self.n_ff)
            if assistant or "posts" in parts:
                add(f"{block}.post_attention_norm", d)
                add(f"{block}.post_ffw_norm", d)
            if assistant or "scale" in parts:
                add(f"{block}.layer_output_scale", 1)
            if "sinks" in parts:
                add(f"{block}.attn_sinks", HEADS)
            if "selector" in parts:
                taps, groups = keys["conv_kernel_size"], d // keys["conv_group_size"]
                for name in ("attn", "ffn"):
                    add(f"{block}.{name}_conv_proj", 2 * taps * groups, d)
                    base = rng.standard_normal((2, taps, d)) / 2
                    made[f"{block}.{name}_conv_base"] = base.astype(np.float32)
        if "markov" in parts:
            add("markov_w1", VOCAB, 7)
            add("markov_w2", known, 7)
        if "confidence" in parts:
            add("conf_proj", 1, d + 7)
            made["conf_proj.bias"] = np.array([0.2], np.float32)
        if "selector" in parts:
            add("selector_predecessor", VOCAB, 6)
            add("selector_successor", VOCAB, 6)
            add("selector_hidden", 6, d)
        return made

    def file(self, tensors: Arrays | None = None) -> bytes:
        """GGUF bytes, with other ``tensors`` if any are given."""
        pairs = [
            ("general.architecture", "str", self.kind),
            ("tokenizer.ggml.mask_token_id", "u32", VOCAB - 1),
        ]
        for key, value in self.metadata().items():
            kind, value = of_kind(key, value) or ("", None)
            pairs.append((f"{self.kind}.{key}", kind, value))
        written = []
        for name, values in (self.tensors() if tensors is None else tensors).items():
            if values.dtype == np.int64:
                written.append(ggufwriter.Tensor(name, values.shape, 27, values.tobytes()))
            else:
                written.append(stored(name, values, "F32"))
        return ggufwriter.write(pairs, written)


class Stated:
    """What a drafter computes.

    Args:
        target: tensors of the model that it drafts for.
    """

    def __init__(self, drafter: Drafter, target: Arrays) -> None:
        self.keys, self.drafter = drafter.metadata(), drafter
        own = {name: values.astype(np.float64) for name, values in drafter.tensors().items() if name != "d2t"}
        self.tensors = {n: target[n].astype(np.float64) for n in ("token_embd.weight",)}
        self.tensors["output.weight"] = target.get("output.weight", target["token_embd.weight"]).astype(float)
        self.tensors |= own
        self.own, self.ids = own, drafter.tensors().get("d2t")

    def norm(self, name: str, x: np.ndarray, weighted: bool = True) -> np.ndarray:
        found: np.ndarray = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)
        return found * self.tensors[f"{name}.weight"] if weighted else found

    def product(self, name: str, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = x @ self.tensors[f"{name}.weight"].T
        return found

    def embedded(self, tokens: list[int]) -> np.ndarray:
        return self.tensors["token_embd.weight"][tokens]

    def rotated(self, x: np.ndarray, positions: np.ndarray, neox: bool) -> np.ndarray:
        turns = frequencies(N_ROT, BASE)
        if "rope_freqs.weight" in self.own:
            turns = turns / self.own["rope_freqs.weight"]
        angles, out = positions[:, None, None] * turns, x.copy()
        i = np.arange(N_ROT // 2)
        one, two = (i, i + N_ROT // 2) if neox else (2 * i, 2 * i + 1)
        a, b = x[..., one], x[..., two]
        out[..., one] = a * np.cos(angles) - b * np.sin(angles)
        out[..., two] = a * np.sin(angles) + b * np.cos(angles)
        return out

    def attended(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float, block: str
    ) -> np.ndarray:
        """(n, heads * dim), where row i sees the positions ``seen[i]``."""
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.where(seen[:, None], scale * np.einsum("ihd,jhd->ihj", q, k), -np.inf)
        sinks = self.own.get(f"{block}.attn_sinks.weight")
        most = scores.max(axis=2, keepdims=True)
        weights = np.exp(scores - most)
        total = weights.sum(axis=2, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[None, :, None] - most)
        return np.einsum("ihj,jhd->ihd", weights / total, v).reshape(len(q), -1)

    def fed(self, block: str, h: np.ndarray) -> np.ndarray:
        gates = self.product(f"{block}.ffn_gate", h)
        if self.keys.get("hidden_activation", "silu") == "silu" and self.drafter.kind != "gemma4-assistant":
            gates = gates / (1 + np.exp(-gates))
        else:
            inner = np.sqrt(2 / np.pi) * (gates + 0.044715 * gates**3)
            gates = 0.5 * gates * (1 + np.tanh(inner))
        return self.product(f"{block}.ffn_down", gates * self.product(f"{block}.ffn_up", h))

    def logits(self, normed: np.ndarray) -> np.ndarray:
        found = self.product("output", normed)
        if "selector" in self.drafter.parts:
            found = found * self.keys.get("logit_scale", 1.0)
            cap = self.keys.get("final_logit_softcapping", 0.0)
            found = cap * np.tanh(found / cap) if cap else found
        if self.ids is None:
            return found
        whole = np.full((len(found), VOCAB), -np.inf)
        whole[:, self.ids] = found
        return whole

    # --- EAGLE-3

    def fused(self, features: np.ndarray) -> np.ndarray:
        given = self.norm("enc.output_norm", features) if self.keys.get("norm_before_fc") else features
        return self.product("fc", given)

    def eagle(self, tokens: list[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """States and logits of rows with these tokens and states."""
        n, dim, at = len(tokens), self.drafter.dims(0), np.arange(len(tokens))
        normed = self.norm("blk.0.attn_norm_2", states)
        both = np.hstack([self.norm("blk.0.attn_norm", self.embedded(tokens)), normed])
        q, k, v = (self.product(f"blk.0.attn_{part}", both).reshape(n, -1, dim) for part in "qkv")
        q, k = (self.rotated(x, at, neox=False) for x in (q, k))
        found = self.attended(q, k, v, at[:, None] >= at, dim**-0.5, "blk.0")
        x = normed if self.keys.get("norm_before_residual") else states
        x = x + self.product("blk.0.attn_output", found)
        x = x + self.fed("blk.0", self.norm("blk.0.ffn_norm", x))
        return x, self.logits(self.norm("output_norm", x))

    # --- DFlash

    def keys_of(self, block: str, h: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
        raw = self.product(f"{block}.attn_k", h).reshape(len(h), KV_HEADS, -1)
        k = self.rotated(self.norm(f"{block}.attn_k_norm", raw), positions, neox=True)
        if "no_v" in self.drafter.parts:
            return [k, self.norm("", raw, weighted=False)]
        return [k, self.product(f"{block}.attn_v", h).reshape(len(h), KV_HEADS, -1)]

    def convolved(self, name: str, y: np.ndarray, normed: np.ndarray, side: int) -> np.ndarray:
        if "selector" not in self.drafter.parts:
            return y
        taps, group = self.keys["conv_kernel_size"], self.keys["conv_group_size"]
        numbers = self.product(f"{name}_proj", normed).reshape(len(y), 2, taps, -1)
        base, out = self.own[f"{name}_base"], np.zeros_like(y)
        for i in range(len(y)):
            for t in range(min(taps, i + 1)):
                out[i] += (np.repeat(numbers[i, side, t], group) + base[side, t]) * y[i - t]
        return out

    def block(self, features: np.ndarray, anchor: int) -> tuple[np.ndarray, np.ndarray]:
        """Normed states and logits of a block behind the injected features."""
        n, size, keys = len(features), self.drafter.block, self.keys
        g = self.norm("enc.output_norm", self.product("fc", features))
        before, at = np.arange(n), n + np.arange(size)
        every, scale = np.arange(n + size), keys.get("attention.scale") or DIM**-0.5
        x = self.embedded([anchor, *[VOCAB - 1] * (size - 1)]) * (keys.get("embedding_scale") or 1.0)
        for i in range(self.drafter.n_layers):
            block = f"blk.{i}"
            normed = self.norm(f"{block}.attn_norm", x)
            h = self.convolved(f"{block}.attn_conv", normed, normed, 0)
            q = self.product(f"{block}.attn_q", h).reshape(size, HEADS, -1)
            q = self.rotated(self.norm(f"{block}.attn_q_norm", q), at, neox=True)
            both = zip(self.keys_of(block, g, before), self.keys_of(block, h, at))
            k, v = (np.concatenate(parts) for parts in both)
            seen = np.ones((size, n + size), bool)
            if keys.get("attention.sliding_window_pattern", [False] * 9)[i]:
                seen &= at[:, None] - every < keys["attention.sliding_window"]
            if keys.get("attention.causal"):
                seen &= at[:, None] >= every
            y = self.product(f"{block}.attn_output", self.attended(q, k, v, seen, scale, block))
            y = self.convolved(f"{block}.attn_conv", y * keys.get("attention.value_scale", 1.0), normed, 1)
            x = x + (self.norm(f"{block}.post_attention_norm", y) if "posts" in self.drafter.parts else y)
            normed = self.norm(f"{block}.ffn_norm", x)
            y = self.fed(block, self.convolved(f"{block}.ffn_conv", normed, normed, 0))
            y = self.convolved(f"{block}.ffn_conv", y, normed, 1)
            x = x + (self.norm(f"{block}.post_ffw_norm", y) if "posts" in self.drafter.parts else y)
            x = x * self.own.get(f"{block}.layer_output_scale.weight", 1.0)
        x = self.norm("output_norm", x)
        return x, self.logits(x)

    def chosen(self, states: np.ndarray, logits: np.ndarray, anchor: int) -> list[tuple[np.ndarray, float]]:
        """The logits that each token of a draft is chosen from, and the estimate of its acceptance."""
        own, found, previous = self.own, [], anchor
        first = 0 if "markov" in self.drafter.parts and self.keys.get("sample_from_anchor", True) else 1
        for h, row in zip(states[first:], logits[first:]):
            chance = np.nan
            if "markov" in self.drafter.parts:
                w = own["markov_w1.weight"][previous]
                bias, row = own["markov_w2.weight"] @ w, row.copy()
                row[slice(None) if self.ids is None else self.ids] += bias
                if "confidence" in self.drafter.parts:
                    odds = own["conf_proj.weight"][0] @ np.concatenate([h, w]) + own["conf_proj.bias"][0]
                    chance = float(1 / (1 + np.exp(-odds)))
            if "selector" in self.drafter.parts:
                best = np.argsort(row)[-self.keys["selector_top_k"] :]
                gate = own["selector_hidden.weight"] @ h * own["selector_predecessor.weight"][previous]
                scores = row[best] + own["selector_successor.weight"][best] @ gate
                row = np.full_like(row, -np.inf)
                row[best] = scores
            found.append((row, chance))
            previous = int(row.argmax())
        return found

    # --- Gemma 4's assistant

    def assistant(
        self, token: int, h: np.ndarray, kv: dict[bool, list[np.ndarray]], embedding: np.ndarray, base: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits and the next state, on keys and values (n, heads, dim) for windowed and other layers."""
        wide, keys = len(h), self.keys
        x = self.product("nextn.pre_projection", np.concatenate([embedding[token] * wide**0.5, h])[None])
        for i in range(self.drafter.n_layers):
            block, windowed = f"blk.{i}", bool(keys["attention.sliding_window_pattern"][i])
            k, v = kv[windowed]
            n = len(k)
            q = self.product(f"{block}.attn_q", self.norm(f"{block}.attn_norm", x)).reshape(1, HEADS, -1)
            q = self.norm(f"{block}.attn_q_norm", q)
            if windowed:
                n_rot = keys["rope.dimension_count_swa"]
                turns = frequencies(n_rot, base)
            else:
                turns = frequencies(N_ROT, BASE) / self.own["rope_freqs.weight"]
            m, rotated = len(turns), q.copy()
            a, b, angles = q[..., :m], q[..., m : 2 * m], n * turns
            rotated[..., :m] = a * np.cos(angles) - b * np.sin(angles)
            rotated[..., m : 2 * m] = a * np.sin(angles) + b * np.cos(angles)
            seen = np.ones((1, n), bool)
            if windowed:
                seen &= n - np.arange(n) < keys["attention.sliding_window"]
            y = self.product(f"{block}.attn_output", self.attended(rotated, k, v, seen, 1.0, block))
            x = x + self.norm(f"{block}.post_attention_norm", y)
            y = self.fed(block, self.norm(f"{block}.ffn_norm", x))
            x = (x + self.norm(f"{block}.post_ffw_norm", y)) * self.own[f"{block}.layer_output_scale.weight"]
        y = self.norm("output_norm", x)
        return self.product("token_embd", y)[0], self.product("nextn.post_projection", y)[0]
