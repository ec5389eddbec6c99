"""Grammars beyond single masks: JSON, limits, the life of a state, vocabularies, masks over logits."""

from __future__ import annotations

import doctest
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from oxillama._kernels import load, targets
from oxillama._kernels.grammar.nodes import productive_rules, references
from oxillama.errors import GrammarError, TokenizerError
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary, apply_grammar_mask, constraint
from oxillama.text.grammar.rules import Alt, Node, Ref, Repeat, Rules, Seq, Text
from tests.support.automata import allowed
from tests.support.interpreter import FREE_THREADED
from tests.support.paths import DOCS, SHARED
from tests.text.tokenizer.test_tokenizer import KINDS, make

PAGE = DOCS / "grammar.md"
SUITE = SHARED / "suites" / "JSONTestSuite" / "test_parsing"
BYTES = [bytes([i]) for i in range(256)]
WORDS = [b"", b"<end>", b'{"', b'":', b"true", b"null", b", ", b"12", "é".encode(), b"ab", b"abc", b"abcd"]
VOCABULARY = Vocabulary([*BYTES, *WORDS], end_ids=[257])
END = 257


def ids(text: str) -> list[int]:
    """Byte by byte."""
    return list(text.encode())


def follow(grammar: Grammar, tokens: list[int]) -> GrammarState:
    state = GrammarState(grammar, VOCABULARY)
    for token in tokens:
        state.advance(token)
    return state


# --------------------------------------------------------------------------- JSON


@pytest.mark.skipif(not SUITE.exists(), reason=f"{SUITE}: not there")
def test_json_accepts_and_refuses_what_the_suite_says() -> None:
    files = sorted(SUITE.glob("[yn]_*.json"))
    assert len(files) > 250
    wrong = [p.name for p in files if Grammar.json().matches(p.read_bytes()) != p.name.startswith("y_")]
    assert not wrong


def test_json_accepts_what_python_writes() -> None:
    value = {"a": [1, -0.5, 1e300, True, None, {}], 'é"\\\n\u2028🙂': {"": [[]]}}
    for indent in (None, 1):
        for plain in (True, False):
            assert Grammar.json().matches(json.dumps(value, indent=indent, ensure_ascii=plain))
    for text in ('{"a":1,}', "[01]", "'a'", '"\t"', "nul", "", "[1 2]", '{"a" 1}', "\ufeff1"):
        assert not Grammar.json().matches(text)
    assert Grammar.json() is Grammar.json()


@pytest.mark.skipif(not PAGE.exists(), reason="only the package was unpacked")
def test_the_examples_in_the_documentation() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False) == (0, 13)


# --------------------------------------------------------------------------- whole texts


def test_text_may_be_bytes_and_what_is_no_text_does_not_match() -> None:
    grammar = Grammar.parse("root ::= .")
    assert grammar.matches("é") and grammar.matches("é".encode())
    assert (
        not grammar.matches(b"\xe9")
        and not grammar.matches("\ud800")
        and not grammar.matches(b"\xed\xa0\x80")
    )


def test_left_recursion_that_llama_cpp_refuses() -> None:
    grammar = Grammar.parse(
        'root ::= asdf\nasdf ::= "a" | foo "b"\nfoo ::= "c" | empty asdf "d" | "e"\nempty ::= "blah" | '
    )
    for text in ("a", "cb", "adb", "blahadb", "blahcbdb", "ebdbdb", "blahblahadbdb"):
        assert grammar.matches(text), text
    for text in ("", "b", "blah", "ad", "blahadbd", "blaadb"):
        assert not grammar.matches(text), text


def test_a_rule_that_waits_for_many_is_looked_at_once_for_each() -> None:
    """The work must not double with each rule, or the check would not end."""
    names = [f"{side}-{i}" for i in range(40) for side in "ab"]
    rules: dict[str, Node] = {name: Text("x") for name in reversed(names)}
    rules["root"] = Alt((Seq(tuple(map(Ref, names[::2]))), Seq(tuple(map(Ref, names[1::2])))))
    refs = {name: references(rule) for name, rule in rules.items()}
    assert productive_rules(rules, refs) == rules.keys()
    rules |= {names[-2]: Alt(()), names[-1]: Alt(())}
    assert productive_rules(rules, refs) == rules.keys() - {"root", *names[-2:]}


def test_a_grammar_with_tokens_does_not_match_text() -> None:
    with pytest.raises(GrammarError, match="names tokens"):
        Grammar.parse("root ::= <[1]>").matches("a")


# --------------------------------------------------------------------------- limits

HARD = {
    "ambiguous": ('root ::= root root | root root root | "a" | ""', "a" * 2000, True),
    "ambiguous on both sides": ('root ::= "a" root | root "a" | "a" root "a" | ""', "a" * 2000, True),
    "ambiguous loops": ('root ::= (("a"* "a"*)* ("a"* | "a"+)*)* "b"', "a" * 100_000 + "b", True),
    "free loops": ('root ::= x*\nx ::= y* | ""\ny ::= x? ("a"?)* x*', "a" * 3000, True),
    "many": ('root ::= [ab]{0,100000} "c"', "ab" * 50_000 + "c", True),
    "one too many": ('root ::= [ab]{0,100000} "c"', "ab" * 50_000 + "bc", False),
    "covered counts": ('root ::= "a"* "a"{0,30000} "b"', "a" * 100_000 + "b", True),
    "covered counts of groups": ('root ::= "a"* ("a" "c"?){3,30000} "b"', "a" * 100_000 + "b", True),
    "many groups": ('root ::= ("a" "b"+ | "c"){0,100000}', "abbc" * 50_000, True),
    "many of many": ('root ::= ((("a"{1000}){1000}){1000} | "b"){2}', "b" * 2, True),
    "long": ('root ::= ([a-z ]+ "\\n")*', ("some words\n" * 11)[:-1] + "\n", True),
    "nested": ('root ::= "(" root ")" | ""', "(" * 30_000 + ")" * 30_000, True),
    "nested, one short": ('root ::= "(" root ")" | ""', "(" * 30_000 + ")" * 29_999, False),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_grammars_are_followed(name: str) -> None:
    text, document, expected = HARD[name]
    assert Grammar.parse(text).matches(document) == expected  # a naive search takes hours


def test_ten_megabytes_are_followed() -> None:
    line = b'{"a": [1, 2.5e3, true, "some text"], "b": {"c": null}}, \n'
    assert Grammar.json().matches(b"[" + line * (10_000_000 // len(line)) + b"0]")


def test_what_grows_without_end_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.text.grammar.grammar.HARD_BYTES", 4 << 20)
    with pytest.raises(GrammarError, match="at most 4 MB"):
        Grammar.parse('root ::= "(" root ")" | ""').matches("(" * 1_000_000)
    assert Grammar.parse('root ::= "a"*').matches("a" * 1_000_000)


def test_a_grammar_too_wide_raises() -> None:
    with pytest.raises(GrammarError, match="at most 4096 items in a parser state"):
        Grammar.parse('root ::= "a"* "a"{20000,30000} "b"').matches("a" * 25_000)
    with pytest.raises(GrammarError, match=r"at most (4096 returns|256 MB)"):
        Grammar.parse('root ::= ("a" "c"?)* ("a" "c"?){20000,30000} "b"').matches("a" * 25_000)


BUDGET = "expected at most 5000000 units of work for a mask or a token, got more"
AMBIGUOUS = "\n".join([f"r{i} ::= r{i + 1} r{i + 1}" for i in range(45)]) + '\nr45 ::= "a"?'


def test_a_mask_beyond_the_budget_of_work_raises() -> None:
    with pytest.raises(GrammarError, match=BUDGET):
        GrammarState(Grammar.parse(AMBIGUOUS, root="r0"), VOCABULARY).mask()
    state = follow(Grammar.from_regex("(ab)?" * 3300), ids("a"))
    with pytest.raises(GrammarError, match=BUDGET):
        state.mask()
    assert state.tokens == ids("a")


def test_the_budget_is_counted_in_work_and_for_each_mask_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_failure(budget: int) -> int:
        monkeypatch.setattr(constraint, "MASK_WORK", budget)
        state = GrammarState(Grammar(Grammar.json().rules), VOCABULARY)
        for i, token in enumerate(ids('{"a": [1, true]}')):
            try:
                state.mask()
            except GrammarError:
                return i
            state.advance(token)
        return -1

    needed = next(budget for budget in range(100, 100_000, 100) if first_failure(budget) < 0)
    assert first_failure(needed - 100) >= 0
    assert [first_failure(needed) for _ in range(3)] == [-1] * 3


def test_the_work_of_a_sequence_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask is within its budget; each token gives a new parser state, so no mask is cached."""
    monkeypatch.setattr("oxillama.text.grammar.state.REQUEST_WORK", 3000)
    monkeypatch.setattr("oxillama.text.grammar.state.TOKEN_WORK", 10)
    grammar = Grammar.parse('root ::= "(" root ")" | [a-z]+')
    state = GrammarState(grammar, VOCABULARY)
    with pytest.raises(GrammarError, match="at most 3000 units of work, and 10 a token, got more within"):
        for _ in range(1000):
            state.mask()
            state.advance(*ids("("))
    depth = len(state.tokens)
    assert depth > 10
    with pytest.raises(GrammarError, match="3000 units"):
        state.fork().mask()

    known = GrammarState(grammar, VOCABULARY)
    for _ in range(depth):  # what others have found costs nothing
        known.mask()
        known.advance(*ids("("))

    monkeypatch.setattr("oxillama.text.grammar.state.TOKEN_WORK", 1000)
    longer = GrammarState(Grammar(grammar.rules), VOCABULARY)
    for _ in range(4 * depth):
        longer.mask()
        longer.advance(*ids("("))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Rules("root", {"x": Text("a")}), "expected a rule 'root'"),
        (Rules("root", {"root": Ref("x")}), "refers to 'x', which is not defined"),
        (Rules("root", {"root": Ref("root")}), "no text matches"),
        (Rules("root", {"root": Seq((Text("a"), Ref("root")))}), "no text matches"),
        (Rules("root", {"root": Alt(())}), "no text matches"),
        (Rules("root", {"root": Text("\ud800")}), "no text matches"),
        (Rules("root", {"root": Repeat(Text("a"), 3, 2)}), "repeats from 3 to 2 times"),
        (Rules("root", {"root": Text("a" * 400_000)}), "at most 300000 states, got more"),
    ],
)
def test_rules_that_are_no_grammar_raise(rules: Rules, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        Grammar.from_rules(rules)


def test_deep_rules_raise_and_long_chains_do_not() -> None:
    node = Text("a")
    for _ in range(300):
        node = Seq((node,))  # type: ignore[assignment]
    with pytest.raises(GrammarError, match="at most 200 nodes inside each other"):
        Grammar.from_rules(Rules("root", {"root": node}))
    chain = {f"r{i}": Seq((Text("a"), Ref(f"r{i + 1}"))) for i in range(5000)}
    grammar = Grammar.from_rules(Rules("r0", {**chain, "r5000": Text("b")}))
    assert grammar.matches("a" * 5000 + "b") and not grammar.matches("a" * 4999 + "b")


# --------------------------------------------------------------------------- the state of a sequence


def test_a_token_may_cross_rules_and_characters_may_be_cut() -> None:
    state = follow(Grammar.json(), [256 + 2])  # {"
    assert state.allows_token(0xC3) and not state.allows_token(0xA9)
    state.advance(0xC3)
    assert state.allows_token(0xA9) and not state.allows_token(ord("a")) and not state.is_complete
    state.advance(0xA9)
    assert state.allows_token(256 + 3)
    state.advance(256 + 3)  # ":
    assert state.allows_token(256 + 4) and not state.allows_token(256 + 6)


def test_the_end_is_allowed_exactly_where_the_grammar_may_end() -> None:
    state = GrammarState(Grammar.parse('root ::= "a" ("bc")?'), VOCABULARY)
    for token, complete in ((ord("a"), True), (ord("b"), False), (ord("c"), True)):
        assert state.allows_token(END) == state.is_complete == (END in allowed(state.mask()))
        state.advance(token)
        assert state.is_complete == complete
    assert allowed(state.mask()) == [END]
    state.advance(END)
    assert state.has_ended and state.is_complete and not allowed(state.mask())
    with pytest.raises(GrammarError, match="not allowed after 4 tokens"):
        state.advance(ord("a"))
    state.rollback(1)
    assert not state.has_ended and allowed(state.mask()) == [END]


def test_a_refused_token_changes_nothing() -> None:
    state = follow(Grammar.json(), ids('{"a"'))
    before = state.state(), state.mask().copy()
    for token in (ord("}"), 256, END):
        with pytest.raises(GrammarError, match=f"token {token} is not allowed after 4 tokens"):
            state.advance(token)
    with pytest.raises(IndexError):
        state.advance(len(BYTES) + len(WORDS))
    assert state.state() == before[0] and (state.mask() == before[1]).all()


def test_forks_are_independent_and_rollback_goes_back() -> None:
    state = follow(Grammar.json(), ids("[1"))
    masks = [state.mask()]
    fork = state.fork()
    for token in ids(", [true"):
        state.advance(token)
        masks.append(state.mask())
    assert fork.tokens == ids("[1") and fork.mask() is masks[0]
    fork.advance(ord("]"))
    assert fork.is_complete and not state.is_complete
    for mask in reversed(masks[:-1]):
        state.rollback(1)
        assert state.mask() is mask
    state.rollback(0)
    with pytest.raises(GrammarError, match="expected 0 to 2 tokens to take back, got 3"):
        state.rollback(3)


def test_a_state_is_kept_as_plain_values() -> None:
    state = follow(Grammar.json(), ids('{"a": [1, "b'))
    kept = json.loads(json.dumps(state.state()))
    again = GrammarState.restore(Grammar(Grammar.json().rules), VOCABULARY, kept)
    assert again.tokens == state.tokens and (again.mask() == state.mask()).all()
    with pytest.raises(GrammarError, match="belongs to another grammar"):
        GrammarState.restore(Grammar.parse('root ::= "a"'), VOCABULARY, kept)
    with pytest.raises(GrammarError, match="not allowed after 0 tokens"):
        GrammarState.restore(Grammar.json(), VOCABULARY, {**kept, "tokens": ids("}")})


def test_tables_are_replaced_and_sequences_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "TABLE_BYTES", 2000)
    grammar = Grammar(Grammar.json().rules)
    text = '{"a": [1, {"b": [true, "é"]}, [[[["x"]]]]], "c": {"d": 5}}'
    plain = follow(Grammar.json(), ids(text))
    state, first = GrammarState(grammar, VOCABULARY), None
    forks = []
    for i, token in enumerate(ids(text)):
        forks.append(state.fork())
        assert (state.mask() == follow(Grammar.json(), ids(text)[:i]).mask()).all()
        first = first or state._tables
        state.advance(token)
    assert state._tables is not first and state.is_complete
    for i, fork in enumerate(forks):
        assert fork.tokens == ids(text)[:i]
        fork.advance(ids(text)[i])
    for k in (3, 20, 11):
        state.rollback(k)
        plain.rollback(k)
        assert (state.mask() == plain.mask()).all()


def test_masks_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "MASK_BYTES", 0)
    state = follow(Grammar(Grammar.json().rules), ids("[" * 40))
    while state.tokens:
        state.mask()
        state.rollback(1)
    assert len(state._tables.masks) == 16


def test_threads_share_a_grammar_and_a_vocabulary() -> None:
    """Threads meet in parser states, masks and slices; with free-threaded Python at the same time."""
    words = [bytes(97 + (i * k) % 26 for k in range(2 + i % 5)) for i in range(4000)]  # enough for slices
    strings = [*BYTES, *WORDS, *words]
    texts = [json.dumps({"k" * n: [n, {"x": [None] * n}, "abc" * n]}) for n in range(1, 9)]

    def masks(grammar: Grammar, vocabulary: Vocabulary, text: str, start: threading.Barrier) -> list[bytes]:
        state, found = GrammarState(grammar, vocabulary), []
        start.wait()
        for token in ids(text):
            found.append(state.mask().tobytes())
            state.advance(token)
        return found

    at_once, together = threading.Barrier(1), threading.Barrier(len(texts))
    alone = Vocabulary(strings, end_ids=[257])
    expected = [masks(Grammar(Grammar.json().rules), alone, text, at_once) for text in texts]
    with ThreadPoolExecutor(len(texts)) as threads:
        for _ in range(60 if FREE_THREADED else 3):
            shared = Grammar(Grammar.json().rules), Vocabulary(strings, end_ids=[257])
            found = [threads.submit(masks, *shared, text, together) for text in texts]
            assert [each.result() for each in found] == expected


# --------------------------------------------------------------------------- vocabularies and logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_s_vocabulary(kind: str) -> None:
    tokenizer = make(kind)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.n_vocab == tokenizer.n_vocab and vocabulary.end_ids == tokenizer.eog_ids
    for id in range(tokenizer.n_vocab):
        is_text = (
            bool(tokenizer.token_bytes(id)) and not tokenizer.is_control(id) and not tokenizer.is_eos(id)
        )
        assert vocabulary.is_text(id) == (is_text and id != tokenizer.unk_id), id
    state = GrammarState(Grammar.parse("root ::= .*"), vocabulary)
    assert set(allowed(state.mask())) >= tokenizer.eog_ids


def test_a_vocabulary_of_other_ids_raises() -> None:
    with pytest.raises(TokenizerError, match="token 3: the vocabulary has 2 tokens"):
        Vocabulary([b"a", b"b"], end_ids=[3])
    with pytest.raises(TokenizerError, match="token -1: the vocabulary has 2 tokens"):
        Vocabulary([b"a", b"b"], end_ids=[1], excluded=[-1])
    with pytest.raises(GrammarError, match="names token 2, the vocabulary has 2 tokens"):
        GrammarState(Grammar.parse("root ::= <[2]>"), Vocabulary([b"a", b"b"], end_ids=[]))


def test_equal_prefixed_and_long_strings_all_count() -> None:
    strings = [b"a", b"ab", b"a", b"x" * 5000, b"abc" * 100, b"a\0", b"a", b"ab"]
    vocabulary = Vocabulary(strings, end_ids=[])
    for text, expected in (
        ('"a"', [0, 2, 6]),
        ('"a" [\\x00]', [0, 2, 5, 6]),
        ('"x"{6000}', [3]),
        ('"abc"{100}', [0, 1, 2, 4, 6, 7]),
        ('"abc"{99}', [0, 1, 2, 6, 7]),
    ):
        assert allowed(GrammarState(Grammar.parse(f"root ::= {text}"), vocabulary).mask()) == expected


@pytest.mark.parametrize("target", [name for name, reason in targets().items() if reason is None])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000, 4097])
def test_a_mask_over_logits(target: str, n: int) -> None:
    rng = np.random.default_rng(n)
    for share in (0.0, 0.02, 0.5, 1.0):
        bits = rng.random((n + 31) // 32 * 32) < share
        bits[: n // 2] &= rng.random() < 0.5
        logits = rng.standard_normal(n).astype(np.float32)
        expected = np.where(bits[:n], logits, np.float32(-np.inf))
        load(target).vector.apply_mask(logits, np.packbits(bits, bitorder="little").view(np.uint32))
        assert (logits == expected).all()


def test_a_mask_of_another_shape_raises() -> None:
    logits = np.zeros(100, np.float32)
    with pytest.raises(ValueError, match="mask"):
        apply_grammar_mask(logits, np.zeros(3, np.uint32))
    with pytest.raises(TypeError, match="mask"):
        apply_grammar_mask(logits, np.zeros(4, np.uint8))


class Counted:
    """A node whose hash is counted."""

    hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return 5


@pytest.mark.parametrize("kind", [Seq, Alt])
def test_the_hash_of_a_large_node_is_computed_once(kind: type) -> None:
    item = Counted()
    node = kind((item,))
    assert hash(node) == hash(node) and item.hashed == 1
