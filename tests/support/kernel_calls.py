"""A valid call of everything that the compiled modules offer, and what can be wrong with each argument.

``python -m tests.support.kernel_calls TARGET`` makes every call once as it should be and then with one wrong
argument after the other. It writes each case before it runs, so that a crash has a name, and at the end what
was taken and should not have been.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from oxillama import _kernels
from oxillama._kernels import Kernels, load
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.grammar.builder import Builder
from oxillama._kernels.grammar.classes import Classes
from oxillama._kernels.grammar.closure import Closure
from oxillama._kernels.grammar.corrections import Corrections
from oxillama._kernels.grammar.covers import Covers
from oxillama._kernels.grammar.dfa import Dfa, of_texts
from oxillama._kernels.grammar.languages import Language, meet
from oxillama._kernels.grammar.machines import Machine
from oxillama._kernels.grammar.matcher import Matcher
from oxillama._kernels.grammar.network import Network, Program
from oxillama._kernels.grammar.nodes import (
    find_calls,
    is_nullable,
    matches,
    nullable_rules,
    productive_rules,
    references,
    repeat_copies,
    size,
)
from oxillama._kernels.grammar.numbers import compared, multiples
from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama._kernels.grammar.registers import Registers
from oxillama._kernels.grammar.spelling import spell
from oxillama._kernels.grammar.stacks import Stacks
from oxillama._kernels.grammar.trie import Trie
from oxillama._kernels.machine import team
from oxillama._kernels.media.polyphase import polyphase
from oxillama._kernels.recurrent.state_batch import StateBatch
from oxillama.base.formats import FORMATS
from oxillama.base.targets import TARGETS
from oxillama.errors import GrammarError
from oxillama.text.grammar.grammar import Grammar
from oxillama.text.grammar.rules import Chars, Ref, Repeat
from tests.support.kernels import linear, matrix, normal, packed

KERNELS = Path(_kernels.__file__).parent
REFUSED = (TypeError, ValueError, OverflowError, IndexError, AttributeError)
"""What a wrong argument may end in."""

HUGE = (2**31 - 1, 2**62)


class Call:
    """A callable and arguments that it takes.

    Attributes:
        outputs: names of arrays that are written.
        optional: names of arguments that may be None.
        sizes: names of arguments that may be of another size, or any number, because they say what is meant;
            ``x:0`` is only the first axis of x.
    """

    def __init__(self, of: Callable[..., Any], spec: str, given: dict[str, Any]) -> None:
        self.of = of
        self.arguments: dict[str, Any] = {}
        self.outputs, self.optional, self.sizes = set[str](), set[str](), set[str]()
        for name, written, optional, sized, axis, value in ARGUMENT.findall(spec):
            self.arguments[name] = made(value) if value else given[name]
            self.outputs |= {name} if written else set()
            self.optional |= {name} if optional else set()
            self.sizes |= {f"{name}:{axis}" if axis else name} if sized else set()
        self.arguments |= {name: value for name, value in given.items() if name not in self.arguments}


Maker = Callable[[], Call]
ARGUMENT = re.compile(r"(\w+)(!?)(\??)(\*?)(\d?)(?:=(\S+))?")
ARRAY = re.compile(r"([fiu])(\d+(?:x\d+)*)")


def made(value: str) -> Any:
    """``f3x20``: random float32 (3, 20); ``i3``, ``u3``: zeros, int32 or uint8; else a literal of Python."""
    found = ARRAY.fullmatch(value)
    if found is None:
        return ast.literal_eval(value)
    shape = [int(n) for n in found[2].split("x")]
    return normal(*shape) if found[1] == "f" else np.zeros(shape, {"i": np.int32, "u": np.uint8}[found[1]])


def call(of: Callable[..., Any], spec: str = "", **given: Any) -> Maker:
    """Makes a call from words ``name=value``, or ``name`` for an argument that is given.

    Behind a name: ``!`` if the array is written, ``?`` if it may be None, ``*`` if it may be of any size,
    ``*0`` if it may be of any size in axis 0. Arguments that need no mark may be given without a word.
    """
    return lambda: Call(of, spec, given)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


# --- the calls of a target -----------------------------------------------------------------------------


def of_vector(k: Kernels) -> dict[str, Maker]:
    v = k.vector
    norm = "x*0=f3x20 weight?=f20 eps=1e-5 out!=f3x20 n_threads=1 bias?=f20 accumulate=False"
    positions = i32(0, 1, 2**31 - 1)
    return {
        "rms_norm": call(v.rms_norm, norm),
        "layer_norm": call(v.layer_norm, norm),
        "head_norm": call(
            v.head_norm,
            "x!*0=f3x24 heads=2 head_dim=10 weight?=f2x10 eps=1e-5 n_threads=1 column=4 centred=False"
            " bias?=f2x10",
        ),
        "activate": call(v.activate, "x*=f3x20 name='silu' out!=f3x20 n_threads=1"),
        "gate": call(v.gate, "gate_up=f3x40 name='silu' out!*0=f3x20 n_threads=1"),
        "gate_heads": call(
            v.gate_heads, "x!*0=f3x20 heads=2 gates=f3x40 column=10 step=20 name='sigmoid' n_threads=1"
        ),
        "cut": call(v.cut, "x!*=f3x20 d*=12 scale=0.5 n_threads=1"),
        "soft_cap": call(v.soft_cap, "x!*=f3x20 cap=30.0 n_threads=1"),
        "add_scaled": call(v.add_scaled, "x!=f3x20 y*0=f3x20 factor=0.5 n_threads=1"),
        "add_rows": call(v.add_rows, "x!=f4x20 rows factors=f3 y*0=f3x20 n_threads=1", rows=i32(3, 0, 3)),
        "mix_streams": call(
            v.mix_streams,
            "x*=f3x64 streams*=3 weights*1=f3x6 out!=f3x40 n_threads=1 added?=f3x20 factors?=f3x2",
        ),
        "balance": call(v.balance, "x!*0=f3x9 streams*=3 epsilon=0.01 rounds*=4 n_threads=1"),
        "rope_table": call(
            v.rope_table,
            "positions* frequencies magnitude=1.0 out!=f3x2x2",
            positions=positions,
            frequencies=np.array([1.0, 1e9]),
        ),
        "rope": call(v.rope, "x!*0=f3x24 heads=2 head_dim=10 table*2=f3x2x5 neox=True n_threads=1 column=4"),
        "softmax": call(v.softmax, "x*=f20 out!=f20"),
        "apply_mask": call(v.apply_mask, "logits!*=f65 mask", mask=zeros(3, dtype=np.uint32)),
    }


def of_routing(k: Kernels) -> dict[str, Maker]:
    return {
        "route": call(
            k.routing.route,
            "logits*0=f3x8 bias?=f8 gating='softmax' groups=4 kept=2 normalize=True scale=1.0 chosen!=i3x2"
            " weights!=f3x2",
        ),
        "group": call(
            k.routing.group,
            "chosen*0 weights=f2x2 counts!=i8 rows!=i4 factors!=f4",
            chosen=i32([0, 7], [1, 7]),
        ),
    }


def of_roofline(k: Kernels) -> dict[str, Maker]:
    r = k.roofline
    return {
        "read_bytes": call(r.read_bytes, "data*=u512 n_threads=1"),
        "integer_products": call(r.integer_products, "rounds=3 n_threads=1"),
        "float_products": call(r.float_products, "rounds=3 n_threads=1"),
    }


def of_quantize(k: Kernels) -> dict[str, Maker]:
    def quantize(name: str) -> Maker:
        fmt = FORMATS[name]
        return call(
            k.quantize.quantize,
            f"format_id={fmt.id} x=f2x256 rows=2 cols=256 importance? out!=u{2 * fmt.nbytes(256)}"
            " n_threads=1",
            importance=np.ones(256, np.float32),
        )

    return {"quantize": quantize("Q4_K"), "quantize (nibbles)": quantize("Q4_0")}


def of_linear(k: Kernels) -> dict[str, Maker]:
    rows = matrix("Q4_0", 20, 64)
    layer = linear(k, [("Q4_0", rows)], 64)
    layout, n_rows, panels = packed("Q4_0", rows, 64)
    late = k.linear.Linear([(layout, n_rows, None)], 64)
    a, b = (linear(k, [("F32", matrix("F32", n, cols))], cols) for n, cols in ((4, 64), (20, 4)))
    low_rank = k.linear.LowRank(a, [(b, 0, 0)], np.ones(4))
    plan = k.linear.LowRankPlan([low_rank], np.ones(1), i32(0), i32(2))
    room = layer.scratch_bytes(3) + plan.scratch_bytes
    matrices = [packed("Q4_0", rows, 64), packed("Q8_0", matrix("Q8_0", 7, 64), 64)]
    factors = [low_rank, low_rank]
    return {
        "LowRank": call(k.linear.LowRank, a=a, parts=[(b, 0, 7)], factors=np.ones(4)),
        "LowRank.scratch_bytes": call(low_rank.scratch_bytes, "n*=3"),
        "LowRankPlan": call(
            k.linear.LowRankPlan,
            "factors scales starts* counts*",
            **{"factors": factors, "scales": np.ones(2), "starts": i32(0, 2), "counts": i32(1, 3)},
        ),
        "Linear": call(k.linear.Linear, "matrices cols=64 bias?=f27", matrices=matrices),
        "computes_bf16_dot": call(k.linear.computes_bf16_dot, "way=1"),
        "use_unpacked": call(k.linear.use_unpacked, "quick=True"),
        "use_nodes": call(k.linear.use_nodes, "nodes?* n_threads=2", nodes=i32(0, -1, 0)),
        "units_taken": call(k.linear.units_taken),
        "use_tiles": call(k.linear.use_tiles, "rows=16 products=32 blocks=32"),
        "Linear.give": call(late.give, "panels?", panels=[panels]),
        "Linear.unit_panels": call(layer.unit_panels, "n*=3 n_threads=1"),
        "Linear.scratch_bytes": call(layer.scratch_bytes, "n*=3"),
        "Linear.apply": call(
            layer.apply,
            f"x*=f3x64 out!=f3x20 scratch!=u{room} n_threads=1 accumulate=True",
            plans=(plan,),
        ),
        "apply_groups": call(
            k.linear.apply_groups,
            f"linears counts x=f3x64 rows? out!=f3x20 scratch!=u{room} n_threads=1",
            **{"linears": [layer, layer], "counts": i32(1, 2), "rows": i32(2, 1, 2), "plans": (plan,)},
        ),
    }


def of_attention(k: Kernels) -> dict[str, Maker]:
    shape = k.attention.KvShape(2, 2, 16, 16, 0, 0, 16)
    pages = PageTable(shape.page_bytes)
    pages.put(0, zeros(3, shape.page_bytes, dtype=np.uint8))
    where: dict[str, Any] = {
        "tables": i32([0, 1], [2, 2]),
        "row_start": i32(0, 2, 3),
        "position": i32(20, 19),
    }
    made = k.attention.PagedBatch(shape, pages, **where)
    keys = k.attention.KvShape(1, 1, 16, 0, 0, 0, 16)
    choosing = k.attention.PagedBatch(keys, pages, **where)
    attend = f"layer=1 q=f3x64 n_heads=4 scale=0.25 out!=f3x64 scratch!=u{made.scratch_bytes(2)} n_threads=2 "
    return {
        "KvShape": call(
            k.attention.KvShape,
            "n_layers=2 n_heads=2 key_dim=16 value_dim=16 key_type=0 value_type=0 page_size*=16",
        ),
        "PagedBatch": call(
            k.attention.PagedBatch,
            "shape pages tables*0 row_start position",
            shape=shape,
            pages=pages,
            **where,
        ),
        "PagedBatch.store": call(made.store, "layer=1 x=f3x64 key_column=0 value_column=32 n_threads=1"),
        "PagedBatch.scratch_bytes": call(made.scratch_bytes, "n_threads=2"),
        "PagedBatch.attend": call(
            made.attend,
            attend + "window*=5 chunk*=8 causal=True softcap=3.0 sinks?=f4 slopes?=f4 biases?=f4x7",
        ),
        "PagedBatch.attend (chosen)": call(
            made.attend, attend + "chosen?*1", chosen=i32([0, 2, 20], [1, 8, 21], [0, 1, 2])
        ),
        "PagedBatch.attend (counts)": call(
            made.attend,
            attend + "chosen*1 counts*",
            chosen=i32([2, 0, 20], [1, 21, 5], [0, 1, 2]),
            counts=i32(3, 3, 3),
        ),
        "PagedBatch.choose (blocks)": call(
            choosing.choose,
            f"layer=0 q*1=f3x64 n_heads=1 weights=f3x1 scores!*0=f2x64 out!*1=i3x2"
            f" scratch!=u{choosing.scratch_bytes(2)} n_threads=2 block*=4 whole=True local*=1",
        ),
        "PagedBatch.choose": call(
            choosing.choose,
            f"layer=0 q=f3x64 n_heads=4 weights=f3x4 scores!*0=f2x64 out!*1=i3x5"
            f" scratch!=u{choosing.scratch_bytes(2)} n_threads=2",
        ),
    }


STATES = [normal(800), normal(800)]
RECORDS = [normal(150) for _ in range(5)]


def state_batch() -> dict[str, Any]:
    """Arguments of a `StateBatch`: two sequences with three rows, the first of them with earlier ones."""
    return {
        "before": [None, STATES[1]],
        "after": list(STATES),
        "row_start": i32(0, 2, 3),
        "floats": 800,
        "earlier": [[RECORDS[0], RECORDS[1]], []],
        "recorded": [[RECORDS[2], RECORDS[3]], [RECORDS[4]]],
        "settled": i32(1, 0),
        "record_floats": 150,
    }


def of_recurrent(k: Kernels) -> dict[str, Maker]:
    r = k.recurrent
    states = StateBatch(**state_batch())
    wkv = "offset=16 record=10 heads=2 r=f3x20 w=f3x20 k=f3x20 v=f3x20 out!=f3x20 n_threads=1 "

    def scan(of: Any, spec: str) -> Maker:
        return call(of, f"states offset=10 record=20 {spec}", states=states)

    return {
        "causal_conv1d": scan(
            r.causal_conv1d,
            "x=f3x24 column=4 weight*0=f4x20 bias?=f20 silu=True out!=f3x20 n_threads=1",
        ),
        "shift": scan(r.shift, "x=f3x20 out!=f3x20"),
        "selective_scan": scan(
            r.selective_scan,
            "x=f3x20 dt=f3x20 a*1=f2x5x16 d=f20 bc=f3x12 b_column=2 c_column=7 z=f3x24 z_column=4 out!=f3x20"
            " n_threads=1",
        ),
        "head_scan": scan(
            r.head_scan,
            "heads=2 groups=1 n=5 xbc=f3x30 dt=f3x2 decay=f3x2 d=f2 z=f3x24 z_column=4 out!=f3x20"
            " n_threads=1",
        ),
        "wkv": call(r.wkv, wkv + "u=f20", states=states),
        "wkv (version 7)": call(r.wkv, wkv + "a=f3x20 b=f3x20", states=states),
        "head_steps": call(r.head_steps, "x*0=f3x10 column=4 bias*=f6 a=f6 dt!=f3x6 decay!=f3x6 n_threads=1"),
        "unit_heads": call(r.unit_heads, "x!*=f3x20 heads=2 least=1e-6"),
        "add_bonus": call(r.add_bonus, "r*0=f3x20 k=f3x20 weight=f20 v=f3x20 heads=2 out!=f3x20"),
    }


def of_delta(k: Kernels) -> dict[str, Maker]:
    def delta_scan(decays: int) -> Maker:
        return call(
            k.delta.delta_scan,
            "offset=20 record=10 heads=4 interleaved=True qkv=f3x40 beta=f3x4 out!=f3x20 n_threads=1 "
            f"decay=f3x{decays}",
            states=StateBatch(**state_batch()),
        )

    return {"delta_scan": delta_scan(4), "delta_scan (by channel)": delta_scan(20)}


def of_state_batch() -> dict[str, Maker]:
    return {"StateBatch": call(StateBatch, **state_batch())}


def of_sampling(k: Kernels) -> dict[str, Maker]:
    s = k.sampling
    breakers = (zeros(70, dtype=np.uint8) + np.uint8(3), i32(2, 5, 6, 1, 7))
    stages = [
        ("ban", (), (i32(3), np.float32([-np.inf]))),
        ("bias", (), (i32(3, 69), np.float32([1, 2]))),
        ("allow", (), (i32(3, 5, 68),)),
        ("mask", (), ()),
        ("penalties", (1.1, 0.1, 0.1, 5), ()),
        ("dry", (1.0, 2.0, 1, -1), breakers),
        ("top_k", (40,), ()),
        ("top_p", (0.9,), ()),
        ("xtc", (0.5, 0.1), ()),
        ("temperature", (0.7, 0.1, 1.0), ()),
    ]
    program, cut = s.Program(stages), s.Program([("top_k", (5,), ())])
    history, mask = i32(1, 2, 3, 1, 2), np.full(3, 0xFFFFFFFF, np.uint32)

    def ready() -> Any:
        workspace = s.Workspace(70)
        assert workspace.start(normal(70)) == 0
        return workspace

    def of_workspace(method: str, spec: str = "", **given: Any) -> Maker:
        return lambda: Call(getattr(ready(), method), spec, given)

    all_rows = [
        (program, normal(70), history, mask, 0.5, 3.0, 0.5),
        (cut, normal(70), history, None, 0, 0, 0.9),
    ]
    return {
        "Program": call(s.Program, stages=stages),
        "Workspace": call(s.Workspace, "vocab=70"),
        "Workspace.start": of_workspace("start", "logits=f70"),
        "Workspace.apply": of_workspace(
            "apply", "program history* mask? chance=0.5 mu=3.0", program=program, history=history, mask=mask
        ),
        "Workspace.draw": of_workspace("draw", "u=0.5"),
        "Workspace.candidates": of_workspace("candidates"),
        "Workspace.replace": of_workspace("replace", "ids* logits=f2", ids=i32(4, 69)),
        "Workspace.distribution": of_workspace("distribution"),
        "Workspace.top": of_workspace("top", "k*=3"),
        "Workspace.logprob": of_workspace("logprob", "token=69"),
        "sample_rows": lambda: Call(s.sample_rows, "", {"rows": all_rows, "workspaces": [ready(), ready()]}),
        "log": call(s.log, "x=2.0"),
        "exp": call(s.exp, "x=2.0"),
    }


OF_TARGET: dict[str, Callable[[Kernels], dict[str, Maker]]] = {
    "attention.attention": of_attention, "linear.linear": of_linear, "machine.roofline": of_roofline,
    "quantize.quantize": of_quantize, "recurrent.delta": of_delta, "recurrent.recurrent": of_recurrent,
    "sampling.sampling": of_sampling, "vector.routing": of_routing, "vector.vector": of_vector,
}  # fmt: skip
"""The calls of a module that is built for each target."""


# --- the calls of what is built once -------------------------------------------------------------------


BLOCKS = tempfile.TemporaryFile()  # noqa: SIM115
"""A file with the blocks of a matrix."""
BLOCKS.write(bytes(20 * FORMATS["Q4_K"].nbytes(256)))
BLOCKS.flush()


def of_pack() -> dict[str, Maker]:
    pack, fmt = _kernels.pack, FORMATS["Q4_K"]
    rows = f"format_id={fmt.id} rows=20 cols=256 "
    out = f"out!=u{pack.packed_bytes(fmt.id, 20, 256)} n_threads=1"
    return {
        "dequantize": call(
            pack.dequantize, f"format_id={fmt.id} blocks=u{fmt.nbytes(512)} out!*=f512 n_threads=1"
        ),
        "packed_bytes": call(pack.packed_bytes, f"format_id={fmt.id} rows*=20 cols=256"),
        "pack": call(pack.pack, f"{rows} blocks=u{20 * fmt.nbytes(256)} {out}"),
        "pack_file": call(pack.pack_file, f"{rows} fd*={BLOCKS.fileno()} start*=0 {out}"),
    }


def of_polyphase() -> dict[str, Maker]:
    weights = np.ones((2, 4))
    spec = "samples*=f17 first* weights*1 step*=3 out!*0=f5x2"
    return {"polyphase": call(polyphase, spec, first=i32(0, 1), weights=weights)}


def of_cpu() -> dict[str, Maker]:
    return {
        "has": call(_kernels.cpu.has, "feature*='avx2'"),
        "openmp_threads": call(_kernels.cpu.openmp_threads),
        "ask_for_tiles": call(_kernels.cpu.ask_for_tiles),
    }


def of_team() -> dict[str, Maker]:
    return {
        "processors": call(team.processors, "n_threads=1"),
        "spread": call(team.spread, "n_threads=1"),
        "place": call(team.place, "memory!*=u9 nodes*0", nodes=i32(0, 1)),
    }


def of_page_table() -> dict[str, Maker]:
    def of_table(method: str, spec: str) -> Maker:
        def maker() -> Call:
            table = PageTable(100)
            table.put(0, zeros(2, 128, dtype=np.uint8))
            return Call(getattr(table, method), spec, {})

        return maker

    return {
        "PageTable": call(PageTable, "page_bytes*=100"),
        "PageTable.has": of_table("has", "page*=1"),
        "PageTable.put": of_table("put", "first=2 memory!*=u3x100"),
        "PageTable.remove": of_table("remove", "first=0"),
    }


TRIE = Trie([b"a", b"b", b"ab", b"<tool>", *(b"%d" % i for i in range(40))], bytes([1, 1, 1, 0]) + bytes(40))
PROGRAM = Grammar.parse('root ::= ("a" | "b"){2,40} [0-9]*').program


def of_trie() -> dict[str, Maker]:
    return {
        "Trie": call(Trie, strings=[b"a", b"", b"ab"], inside=bytes(3)),
        "Trie.token_bytes": call(TRIE.token_bytes, "token=2"),
        "Trie.holds": call(TRIE.holds, "token*=2"),
    }


def of_builder() -> dict[str, Maker]:
    given: dict[str, Any] = {
        "rules": {"root": Chars(((0x61, 0x7A),))},
        "called": {"root"},
        "known_sizes": {"root": 1},
    }
    given |= {"nullable": set(), "productive": set(), "units": {}, "most": 99}
    return {
        "Builder": call(Builder, **given | {"known_sizes": {}}),
        "Builder.build": lambda: Call(Builder(*given.values()).build, "root='root' pieces?=None", {}),
    }


def of_dfa() -> dict[str, Maker]:
    edges = (((97, 97, 1), (98, 99, 0)), ())
    made = Dfa(edges, {1})
    return {
        "Dfa": call(Dfa, edges=edges, accepting={1}),
        "Dfa.size": call(made.size),
        "Dfa.to_the_end": call(made.to_the_end, "spelled?=1"),
        "Dfa.accepts_empty": call(made.accepts_empty),
        "Dfa.holds_text": call(made.holds_text),
        "of_texts": call(of_texts, texts=("a", "ab"), others=True),
    }


def of_numbers() -> dict[str, Maker]:
    return {
        "compared": call(compared, "bound='12.5' positive=4 negative=0 exponents=True"),
        "multiples": call(multiples, "modulus*=25 places*=1"),
    }


def of_languages() -> dict[str, Maker]:
    made = Language(Chars(((97, 122),)))
    return {
        "Language": call(Language, node=Chars(((97, 122),))),
        "Language.accepts": call(made.accepts, "text*='a'"),
        "Language.automaton": call(made.automaton),
        "meet": call(meet, "least*=1 most?*=3", wanted=(made.automaton(),), unwanted=()),
    }


def of_nodes() -> dict[str, Maker]:
    node = Repeat(Ref("a"), 1, 2)
    return {
        "references": call(references, node=node),
        "productive_rules": call(productive_rules, rules={"a": node}, refs={"a": ["a"]}),
        "nullable_rules": call(nullable_rules, rules={"a": node}, refs={"a": []}),
        "find_calls": call(find_calls, rules={"a": node}, root="a", deferred=(), refs={"a": []}),
        "size": call(size, node=node, called={"b"}, known={"a": 3}),
        "repeat_copies": call(repeat_copies, "item_size*=3", node=node),
        "is_nullable": call(is_nullable, node=node, rules={"b"}),
        "matches": call(matches, node=node, rules={"a"}),
    }


def of_spelling() -> dict[str, Maker]:
    return {"spell": call(spell, dfa=Dfa((((97, 97, 0),),), {0}), ways=0)}


def of_network() -> dict[str, Maker]:
    return {"Program": call(Program), "Network": call(Network, program=PROGRAM)}


LIMITS = f"limit*={1 << 20} budget*=99"


def of_parser_states() -> dict[str, Maker]:
    def of_states(method: str, spec: str = "", **given: Any) -> Maker:
        return lambda: Call(getattr(ParserStates(PROGRAM, 1 << 20, 1 << 20), method), spec, given)

    return {
        "ParserStates": call(ParserStates, LIMITS, program=PROGRAM),
        "ParserStates.start": of_states("start"),
        "ParserStates.accepts": of_states("accepts", "state=0"),
        "ParserStates.advance": of_states("advance", "state=0 text=b'ab'"),
        "ParserStates.advance_token": of_states("advance_token", "state=0 after_bytes=0 hits=b''"),
        "ParserStates.next_token_sets": of_states("next_token_sets", "state=0"),
        "ParserStates.located": of_states("located", "state=0", error=GrammarError("no")),
    }


def of_matcher() -> dict[str, Maker]:
    def of_matcher(method: str, spec: str, **given: Any) -> Maker:
        def maker() -> Call:
            states = ParserStates(PROGRAM, 1 << 20, 1 << 20)
            states.start()
            return Call(getattr(Matcher(TRIE, states), method), spec, given)

        return maker

    return {
        "Matcher": lambda: Call(Matcher, "", {"trie": TRIE, "states": ParserStates(PROGRAM, 1 << 20, 99)}),
        "Matcher.advance": of_matcher("advance", "state=1 token=2"),
        "Matcher.compute_bitmask": of_matcher(
            "compute_bitmask", "state=1 mask!", mask=zeros(2, dtype=np.uint32)
        ),
    }


def of_class(of: Callable[..., Any], spec: str = "", **given: Any) -> Callable[[], dict[str, Maker]]:
    """The calls of a module that offers one class."""
    return lambda: {of.__name__: call(of, spec, **given)}


STATE = ParserStates(PROGRAM, 1 << 20, 99)
ONCE: dict[str, Callable[[], dict[str, Maker]]] = {
    "attention.page_table": of_page_table,
    "grammar.automata": dict,  # this and others: for kernels alone
    "grammar.builder": of_builder,
    "grammar.classes": of_class(Classes),
    "grammar.characters": dict,
    "grammar.closure": of_class(Closure, LIMITS, program=PROGRAM),
    "grammar.corrections": of_class(Corrections, trie=TRIE, states=STATE),
    "grammar.covers": of_class(Covers, states=STATE),
    "grammar.dfa": of_dfa,
    "grammar.languages": of_languages,
    "grammar.machines": of_class(Machine),
    "grammar.matcher": of_matcher,
    "grammar.network": of_network,
    "grammar.parser_states": of_parser_states,
    "grammar.nodes": of_nodes,
    "grammar.numbers": of_numbers,
    "grammar.pruning": dict,
    "grammar.registers": of_class(Registers),
    "grammar.rows": dict,
    "grammar.slices": dict,
    "grammar.spelling": of_spelling,
    "grammar.stacks": of_class(Stacks, LIMITS, program=PROGRAM),
    "grammar.told_apart": dict,
    "grammar.trie": of_trie,
    "machine.cpu": of_cpu,
    "machine.team": of_team,
    "media.polyphase": of_polyphase,
    "packing.pack": of_pack,
    "recurrent.state_batch": of_state_batch,
}
"""The calls of the other modules."""


# --- what there is, and what can be wrong --------------------------------------------------------------


def modules() -> Iterator[tuple[str, str | None]]:
    """Every compiled module below ``_kernels``, and its target."""
    suffixes = {f"_{target.name}": target.name for target in TARGETS}
    for path in sorted(p for kind in ("*.so", "*.pyd") for p in KERNELS.rglob(kind)):
        name = f"{path.parent.name}.{path.name.partition('.')[0]}"
        target = next((t for ending, t in suffixes.items() if name.endswith(ending)), None)
        yield (name.removesuffix(f"_{target}") if target else name), target


def offered(module: str, built: ModuleType) -> set[str]:
    """What Python can call of a module: functions, classes, methods."""
    found = set()
    for name, thing in vars(built).items():
        if name.startswith("_") or getattr(thing, "__module__", "") != f"oxillama._kernels.{module}":
            continue
        if isinstance(thing, type):
            methods = {m for m, body in vars(thing).items() if callable(body) and not m.startswith("_")}
            found |= {name, *(f"{name}.{method}" for method in methods)}
        elif callable(thing):
            found.add(name)
    return found


def wrong_arrays(a: np.ndarray, written: bool) -> Iterator[tuple[str, Any, int | None]]:
    """(what is wrong, the array, the axis of another size or None)."""
    other = {"f": np.float64 if a.dtype.itemsize == 4 else np.float32, "i": np.int64, "u": np.int8}[
        a.dtype.kind
    ]
    yield "another dtype", a.astype(other), None
    yield "a list", a.tolist(), None
    yield "another object", object(), None
    yield "a subclass of objects", a.astype(object), None
    strided = np.empty((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    strided[..., ::2] = a
    yield "strides", strided[..., ::2], None
    if a.dtype.itemsize > 1:
        yield "a swapped dtype", a.astype(a.dtype.newbyteorder("S")), None
        unaligned = np.zeros(a.nbytes + 1, np.uint8)[1:]
        unaligned[:] = np.frombuffer(a.tobytes(), np.uint8)
        yield "an odd address", unaligned.view(a.dtype).reshape(a.shape), None
    if written:
        fixed = a.copy()
        fixed.flags.writeable = False
        yield "read-only", fixed, None
    for axis in range(a.ndim):
        yield f"shorter in axis {axis}", np.ascontiguousarray(np.delete(a, -1, axis)), axis
        yield (
            f"empty in axis {axis}",
            np.empty([0 if i == axis else n for i, n in enumerate(a.shape)], a.dtype),
            axis,
        )
        huge = [0 if i == axis else 2**40 if i == (axis == 0) else n for i, n in enumerate(a.shape)]
        yield f"empty in axis {axis} and huge", np.empty(huge, a.dtype), axis
    yield "a scalar array", np.zeros((), a.dtype), 0


def more_dimensions(a: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Arrays of the right numbers in another number of dimensions: refused, or taken as what they hold."""
    yield "one dimension more", a[None]
    if a.ndim > 1:
        yield "one dimension", a.reshape(-1)


def wrong_values(name: str, value: Any, call: Call) -> Iterator[tuple[str, Any, bool]]:
    """(what is wrong, the value, whether it may be taken all the same) for an argument."""
    free = name in call.sizes
    if value is None:
        return
    if not isinstance(value, bool):
        yield "None", None, name in call.optional
    if isinstance(value, np.ndarray):
        for what, wrong, axis in wrong_arrays(value, name in call.outputs):
            yield what, wrong, axis is not None and (free or f"{name}:{axis}" in call.sizes)
        for what, wrong in more_dimensions(value):
            yield what, wrong, True
        if value.dtype == np.int32 and name not in call.outputs and not free:
            for number in (-1, 2**31 - 1):
                wrong = value.copy()
                wrong.flat[-1] = number
                yield f"{number} in it", wrong, number > 0 and name == "row_start"
        if value.dtype == np.float32 and name not in call.outputs:
            for number in (np.nan, np.inf, 3e38):
                wrong = value.copy()
                wrong.flat[-1] = number
                yield f"{number} in it", wrong, True
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        yield "a text", "1", False
        yield "a fraction", 1.5, True  # C's int takes the whole part
        yield "2**70", 2**70, False
        yield "-1", -1, free
        yield "its negative", -(2**62), free
        for number in HUGE:
            yield str(number), number, free
        yield "0", 0, True
    elif isinstance(value, float):
        yield "a text", "1", False
        for number in (np.nan, np.inf, -np.inf, -1.0, 1e308, 0.0):
            yield str(number), number, True
    elif isinstance(value, str):
        yield "another text", "nonsense", free
        yield "bytes", b"silu", False
    elif isinstance(value, bytes):
        yield "a number", 3, False
        yield "another length", value + b"a", name == "text"
    elif isinstance(value, list):
        yield "a number", 3, False
        yield "others", [None, *value], False
        yield "tuples of none", [()], False
        yield "less", value[:-1], name in ("stages", "matrices", "rows", "workspaces")
        yield "none", [], name in ("stages", "rows")
    else:
        yield "an object", object(), False
        yield "a class", type(value), False


def run(target: str) -> list[str]:
    """Makes all calls of a target and of what is built once; the wrong ones that were taken."""
    kernels, taken = load(target), []
    tables = [(module, makers(kernels)) for module, makers in OF_TARGET.items()]
    tables += [(module, once()) for module, once in ONCE.items()]
    for module, makers in tables:
        for name, maker in makers.items():
            call = maker()
            print(module, name, file=sys.stderr, flush=True)
            call.of(**call.arguments)
            if isinstance(call.of, type):
                taken += run_class(f"{module} {name}", call)
            for argument in call.arguments:
                taken += run_wrong(f"{module} {name} {argument}", maker, argument)
    return taken


def run_wrong(label: str, maker: Maker, argument: str) -> list[str]:
    """Calls with one argument wrong in each way."""
    taken = []
    call = maker()
    for what, value, allowed in list(wrong_values(argument, call.arguments[argument], call)):
        print(label, what, file=sys.stderr, flush=True)
        call = maker()
        try:
            call.of(**{**call.arguments, argument: value})
        except REFUSED:
            continue
        except MemoryError:
            allowed = True
        if not allowed:
            taken.append(f"{label}: {what}")
    return taken


def run_class(label: str, call: Call) -> list[str]:
    """An object is whole from the start, or there is none; a second ``__init__`` changes nothing."""
    cls: Any = call.of
    print(label, "twice and never", file=sys.stderr, flush=True)
    taken = []
    if call.arguments:
        try:
            cls.__new__(cls)
            taken.append(f"{label}: made without arguments")
        except TypeError:
            pass
    made = cls(**call.arguments)
    numbers = {
        n: getattr(made, n) for n, v in inspect.getmembers(cls) if inspect.isdatadescriptor(v) and n[0] != "_"
    }
    for _ in range(3):
        try:
            made.__init__(**call.arguments)
        except TypeError:
            break
    if {n: getattr(made, n) for n in numbers} != numbers:
        taken.append(f"{label}: changed by a second __init__")
    return taken


def check_complete(target: str) -> list[str]:
    """What a built module offers and no table calls, and what a table calls that is not there."""
    kernels, missing = load(target), []
    for module, of in modules():
        if of not in (None, target):
            continue
        built = importlib.import_module(f"oxillama._kernels.{module}{f'_{of}' if of else ''}")
        makers = OF_TARGET[module](kernels) if of else ONCE[module]()
        called = {name.partition(" (")[0] for name in makers}
        missing += [f"{module}: {name}" for name in offered(module, built) ^ called if name not in INNER]
    return missing


INNER = {
    *("Allowed", "Automata", "Cover", "Slice", "NotBuilt", "Subsets", "Product", "Speller"),
    *("Comparison", "Remainders", "Leads", "Rows"),
}
"""Classes that only kernels fill; as Python makes them they are empty and have no methods."""


if __name__ == "__main__":
    problems = check_complete(sys.argv[1]) + run(sys.argv[1])
    print("\n".join(problems))
    sys.exit(bool(problems))
