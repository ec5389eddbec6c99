"""``/v1/embeddings`` and ``/v1/rerank``: the library's numbers."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.routes import RERANK
from tests.engine.features.test_rerank import DOCUMENTS, QUERY, Pairs
from tests.support.server import Client, serving
from tests.support.serving import zoo_engine

MODEL = demo.STORY
PATH = "/v1/embeddings"


def vectors(answer: object) -> np.ndarray:
    data = answer["data"]  # type: ignore[index]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return np.array([entry["embedding"] for entry in data], np.float32)


def test_embeddings_are_the_librarys(client: Client) -> None:
    engine = client.hosted.ready()
    texts = ["Mia went to the sea.", "Rita"]
    expected = engine.embed_batch(texts, normalize=True)
    tokens = [engine.tokenizer.encode(text) for text in texts]
    alone = ((texts[0], expected[:1]), (tokens[1], expected[1:]))
    for given, wanted in ((texts, expected), (tokens, expected), *alone):
        answer = client.ask(PATH, {"input": given, "model": "story", "user": "me"}).json
        assert (vectors(answer) == wanted).all()
    n = len(tokens[1])
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    mean = client.ask(PATH, {"input": texts, "pooling": "mean"}).json
    assert (vectors(mean) == engine.embed_batch(texts, pooling="mean", normalize=True)).all()


def test_base64_has_the_same_bits(client: Client) -> None:
    plain = vectors(client.ask(PATH, {"input": "Rita"}).json)[0]
    text = client.ask(PATH, {"input": "Rita", "encoding_format": "base64"}).json["data"][0]["embedding"]
    assert (np.frombuffer(base64.b64decode(text), "<f4") == plain).all()


def test_fewer_dimensions_are_scaled_again(client: Client) -> None:
    whole = vectors(client.ask(PATH, {"input": "Rita"}).json)[0]
    cut = vectors(client.ask(PATH, {"input": "Rita", "dimensions": 8}).json)[0]
    assert cut.shape == (8,)
    assert np.linalg.norm(cut) == pytest.approx(1, abs=1e-6)
    assert cut == pytest.approx(whole[:8] / np.linalg.norm(whole[:8]), abs=1e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input: expected a value, got none"),
        ({"input": ""}, "input: is empty"),
        ({"input": []}, "input: expected a text, token ids, or a list"),
        ({"input": [[1], {"content": "a"}]}, "input: expected a text, token ids, or a list"),
        ({"input": {"content": [{"type": "image_url"}]}}, "input: expected a text, token ids, or a list"),
        ({"input": "x", "dimensions": 257}, "dimensions: expected at most 256, got 257"),
        ({"input": "x", "dimensions": 0}, "dimensions: expected greater than or equal to 1"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format: expected 'float' or 'base64'"),
        ({"input": "x", "pooling": "none"}, "pooling: expected one vector for a text"),
        ({"input": "x", "pooling": "sum"}, "pooling: expected one of last, mean, max, cls"),
        ({"input": "x", "truncate": True}, "truncate: is no option"),
        ({"input": [5000]}, "prompt: expected token ids below 1024"),
    ],
)
def test_what_is_refused(client: Client, body: dict[str, object], message: str) -> None:
    answer = client.ask(PATH, body, status=400)
    assert answer.error["message"].startswith(message), answer.error
    long = client.ask(PATH, {"input": [5] * 600})
    assert (long.error["type"], long.error["param"]) == ("exceed_context_size_error", "input")
    assert client.ask(PATH, {"input": [5] * 512}).status == 200


def test_a_model_that_is_no_reranker(client: Client) -> None:
    answer = client.ask("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert answer.refusal("param") == (400, "model")
    assert "expected a reranker" in answer.error["message"]


def test_documents_by_their_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = zoo_engine(monkeypatch, "bert-rank", Pairs())
    scores = engine.rerank(QUERY, DOCUMENTS)
    order = np.argsort(-scores, kind="stable").tolist()
    with serving(engine, "ranker") as client:
        body = {"query": QUERY, "documents": [DOCUMENTS[0], *({"text": text} for text in DOCUMENTS[1:])]}
        for path in RERANK:
            answer = client.ask(path, body).json
            found = [(entry["index"], entry["relevance_score"]) for entry in answer["results"]]
            assert found == [(i, float(scores[i])) for i in order]
        pairs = [Pairs().encode_pair(QUERY, document) for document in DOCUMENTS]
        assert answer["usage"]["total_tokens"] == sum(map(len, pairs))
        best = client.ask("/v1/rerank", {**body, "top_n": 1, "return_documents": True}).json["results"]
        assert [entry["document"]["text"] for entry in best] == [DOCUMENTS[order[0]]]
        texts = {"query": QUERY, "texts": DOCUMENTS, "top_n": 2}
        plain = [{"index": i, "score": float(scores[i])} for i in order[:2]]
        assert client.ask("/rerank", texts).json == plain
        named = [{**entry, "text": DOCUMENTS[entry["index"]]} for entry in plain]
        assert client.ask("/rerank", {**texts, "return_text": True}).json == named
        assert client.ask("/rerank", {**body, "texts": ["a"]}).error["param"] == "documents"
        assert client.ask("/rerank", {"query": QUERY}).error["param"] == "documents"
        documents = ({"documents": []}, {"documents": [{"txt": "a"}]})
        for wrong in ({"return_text": True}, {"top_n": 0}, {"oops": 1}, *documents):
            client.ask("/v1/rerank", {**body, **wrong}, status=400)


def test_vectors_in_llama_servers_form(client: Client) -> None:
    engine = client.hosted.ready()
    texts = ["Mia went to the sea.", "Rita"]
    for normalize, value in ((True, 2), (False, -1)):
        wanted = engine.embed_batch(texts, pooling="mean", normalize=normalize).tolist()
        for path in ("/embedding", "/embeddings"):
            body = {"content": texts, "pooling": "mean", "embd_normalize": value}
            assert client.ask(path, body).json == [
                {"index": i, "embedding": [vector]} for i, vector in enumerate(wanted)
            ]
    assert client.ask("/embedding", {"input": "Rita"}).json[0]["embedding"] == [
        engine.embed("Rita", normalize=True).tolist()
    ]
    for given, message in (({}, "got none"), ({"input": "a", "content": "a"}, "got both")):
        assert client.ask("/embedding", given).error["message"].endswith(message)


def test_vectors_of_all_tokens() -> None:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    with serving(engine, pooling="none") as client:
        wanted = engine.hidden_states("Rita went").tolist()
        assert len(wanted) == len(engine.tokenizer.encode("Rita went")) > 1
        assert client.ask("/embedding", {"content": "Rita went"}).json == [{"index": 0, "embedding": wanted}]
        assert client.ask(PATH, {"input": "Rita went"}).refusal("param") == (400, "pooling")
        own = client.ask(PATH, {"input": "Rita went", "pooling": "max"}).json
        assert (vectors(own) == engine.embed_batch(["Rita went"], pooling="max", normalize=True)).all()
