"""Options are declared once: what is derived from a declaration, and how often values are checked."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc
import re
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from oxillama import (
    ConfigError,
    EngineConfig,
    GenerationOptions,
    InferenceEngine,
    OffloadPolicy,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.base.config.option import Option, Options, declared, option
from oxillama.base.config.option_texts import interval, placeholder
from oxillama.base.config.server import ServerConfig
from tests.support.paths import ROOT

CLASSES = (EngineConfig, SchedulerConfig, GenerationOptions, SamplerConfig, ServerConfig)
OPTIONS = [(cls, each) for cls in CLASSES for each in declared(cls).values()]
TOOL = ROOT / "tools" / "make_options.py"


@pytest.mark.parametrize("cls", CLASSES)
def test_each_field_is_declared(cls: type) -> None:
    assert all("option" in field.metadata for field in fields(cls))
    hints = typing.get_type_hints(cls)
    assert list(declared(cls)) == [name for name in hints if name in declared(cls)]


@pytest.mark.parametrize(("cls", "each"), OPTIONS)
def test_each_default_is_a_value_as_it_is_kept(cls: type, each: Option) -> None:
    assert each.checked(each.default) == each.default
    assert type(each.checked(each.default)) is type(each.default)
    assert each.help and not each.help.endswith(".")
    assert not each.cli or each.type == "bool" or placeholder(each)


@pytest.mark.parametrize(("cls", "each"), OPTIONS)
def test_a_value_of_no_type_is_refused(cls: type, each: Option) -> None:
    if each.kind == "Any":
        return
    with pytest.raises(ConfigError, match=f"^{each.name}: expected "):
        each.checked(object())


@dataclass(frozen=True, kw_only=True)
class Cooking(Options):
    """How long to cook.

    Raises:
        ConfigError: too long.
    """

    minutes: int = option(3, low=1, high=9, help="how long; it is hot")
    salt: float | None = option(0.5, low=0, help="grams of salt")
    herbs: tuple[str, ...] = option((), help="what makes it green")
    oven: str = option("gas", choices=("gas", "coal"), help="what heats")
    recipe: str | None = None

    def _check_together(self) -> None:
        if self.oven == "coal" and self.minutes < 5:
            raise ConfigError("oven: coal needs 5 minutes")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": 0}, "minutes: expected an integer >= 1 and <= 9, got 0"),
        ({"minutes": 10}, "minutes: expected an integer >= 1 and <= 9, got 10"),
        ({"minutes": True}, "minutes: expected an integer >= 1 and <= 9, got True"),
        ({"minutes": None}, "minutes: expected an integer >= 1 and <= 9, got None"),
        ({"salt": -0.5}, "salt: expected a number >= 0, got -0.5"),
        ({"salt": float("inf")}, "salt: expected a number >= 0, got inf"),
        ({"herbs": "dill"}, "herbs: expected strings that are not empty, got 'dill'"),
        ({"herbs": [""]}, "herbs: expected strings that are not empty, got ['']"),
        ({"oven": "wood"}, "oven: expected one of gas, coal, got 'wood'"),
        ({"oven": "coal"}, "oven: coal needs 5 minutes"),
        ({"recipe": 5}, "recipe: expected a str, got int"),
    ],
)
def test_checks_follow_from_the_declaration(given: dict[str, Any], message: str) -> None:
    for make in (
        lambda: Cooking(**given),
        lambda: replace(Cooking(), **given),
        lambda: Cooking()._with(given),
    ):
        with pytest.raises(ConfigError) as error:
            make()
        assert str(error.value) == message


def test_values_are_kept_as_the_check_returns_them() -> None:
    made = Cooking(herbs=["dill"], salt=None, minutes=5, oven="coal")  # type: ignore[arg-type]
    assert made == Cooking()._with({"herbs": ["dill"], "salt": None, "minutes": 5, "oven": "coal"})
    assert made.herbs == ("dill",) and made.salt is None
    assert replace(made, minutes=6) == made._changed(minutes=6)
    assert made.minutes == 5 and Cooking().herbs == ()


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (declared(SamplerConfig)["temperature"], "[0, inf)"),
        (declared(SamplerConfig)["typical_p"], "(0, 1]"),
        (declared(SamplerConfig)["eta_cutoff"], "[0, 1)"),
        (declared(SamplerConfig)["seed"], "[0, 2^64)"),
        (declared(SamplerConfig)["frequency_penalty"], "(-inf, inf)"),
        (declared(GenerationOptions)["priority"], "(-inf, inf)"),
        (declared(EngineConfig)["page_size"], "[1, 1048576]"),
        (declared(EngineConfig)["compute"], ""),
    ],
)
def test_intervals(each: Option, wanted: str) -> None:
    assert interval(each) == wanted


def test_the_documentation_of_a_class_has_its_options() -> None:
    assert inspect.getdoc(Cooking) == (
        "How long to cook.\n\nAttributes:\n"
        "    minutes (int): how long; it is hot. [1, 9]\n"
        "    salt (float | None): grams of salt. [0, inf)\n"
        "    herbs (tuple[str, ...]): what makes it green\n"
        "    oven (str): what heats\n"
        "    recipe (str | None):\n\n"
        "Raises:\n    ConfigError: too long."
    )
    for cls in CLASSES:
        text = pydoc.plain(pydoc.render_doc(cls))
        for name, each in declared(cls).items():
            assert f" {name} ({each.type}): " in text
        assert "Raises:\n" in text


def test_what_is_made_of_the_declarations_is_up_to_date() -> None:
    if not (ROOT / "oxillama").is_dir():  # the tests of a wheel stand beside the tools alone
        pytest.skip("the package is not that of a checkout")
    spec = importlib.util.spec_from_file_location("make_options", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.is_made(), "run tools/make_options.py"


def test_options_need_neither_numpy_nor_keyword_types() -> None:
    names = "{'numpy', 'argparse', 'oxillama.base.config.fields'}"
    code = f"import sys, oxillama; print(*{names} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_names_belong_to_one_option() -> None:
    flags = Counter(flag for _, each in OPTIONS for flag in each.flags.split())
    names = Counter(
        name
        for cls in (GenerationOptions, SamplerConfig)
        for each in declared(cls).values()
        for name in (each.name, *each.names.split())
    )
    assert max(flags.values()) == max(names.values()) == 1
    assert all(flag.startswith("-") for flag in flags)


def test_what_no_body_can_set_by_its_name() -> None:
    own = {"sampler", "window", "keep_logits", "request_id", "tenant"}
    of_each_interface = {"logprobs", "top_logprobs"}
    of_chats = {"tools", "tool_choice", "parallel_tool_calls", "message_format"}
    found = {each.name for cls, each in OPTIONS if not each.server}
    assert found == own | of_each_interface | of_chats | {"adapters"}


# --- each request is checked once --------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often values have been checked together, by class."""
    found: Counter[str] = Counter()

    def counting(cls: type[Options]) -> Any:
        check = cls._check_together

        def counted(self: Options) -> None:
            found[cls.__name__] += 1
            check(self)

        return counted

    for cls in (GenerationOptions, SamplerConfig):
        monkeypatch.setattr(cls, "_check_together", counting(cls))
    yield found


BOTH = {"GenerationOptions": 1, "SamplerConfig": 1}


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"temperature": 0, "max_tokens": 3}, BOTH),
        ({"max_tokens": 3}, {"GenerationOptions": 1}),
        ({}, {"GenerationOptions": 1}),  # the engine's sampler is put in
        ({"response_format": {"type": "json_object"}, "temperature": 0}, BOTH),
        ({"response_format": {"type": "text"}}, {"GenerationOptions": 1}),
    ],
)
def test_values_are_merged_and_then_checked_once(
    given: dict[str, Any], counts: dict[str, int], checked: Counter[str]
) -> None:
    sampler = SamplerConfig()
    checked.clear()
    options = GenerationOptions.of(None, given, sampler)
    assert checked == counts
    assert GenerationOptions.of(options, {}, sampler) is options
    assert checked == counts


def test_only_what_is_given_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    options, names = GenerationOptions(stop="a", max_tokens=5, sampler=SamplerConfig(top_k=3)), []
    usual = SamplerConfig.greedy()
    expected = replace(options, timeout=1, sampler=SamplerConfig(top_k=3, temperature=0.5))
    for cls in (GenerationOptions, SamplerConfig):
        for each in declared(cls).values():
            check = each.checked
            monkeypatch.setattr(
                each, "checked", lambda value, n=each.name, c=check: (names.append(n), c(value))[1]
            )
    made = GenerationOptions.of(options, {"temperature": 0.5, "timeout": 1}, usual)
    assert made == expected
    assert names == ["temperature", "timeout", "sampler"]


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as made:
        yield made


def test_a_request_is_checked_once(engine: InferenceEngine, checked: Counter[str]) -> None:
    engine.generate("Mia", temperature=0, max_tokens=3)
    assert checked == BOTH
    checked.clear()
    engine.generate("Mia", max_tokens=3)
    assert checked == {"GenerationOptions": 1}
    checked.clear()
    engine.generate_n("Mia", n=3, best_of=4, temperature=0.5, max_tokens=3)
    assert checked == BOTH


def test_samples_have_seeds_of_their_own(engine: InferenceEngine) -> None:
    generations = engine.stream_n("Mia", n=3, seed=2**64 - 1, max_tokens=1)
    assert [each.options.sampler.seed for each in generations] == [2**64 - 1, 0, 1]  # type: ignore[union-attr]
    for each in generations:
        each.result()


# --- a policy beside its fields ----------------------------------------------------------------------


def test_an_offload_policy_is_a_name_for_two_fields() -> None:
    config = EngineConfig(offload_policy=OffloadPolicy.PinnedHotSet(5, "output.weight"))
    assert config == EngineConfig(offload_budget=5, offload_pinned=("output.weight",))
    assert replace(config, seed=3).offload_budget == 5
    same = EngineConfig(offload_policy=OffloadPolicy.Budget(5), offload_budget=5)
    assert same == EngineConfig(offload_budget=5)
    assert EngineConfig(offload_policy=OffloadPolicy.None_) == EngineConfig()
    with InferenceEngine.from_gguf(demo.STORY, offload_policy=OffloadPolicy.Budget(1 << 20)) as engine:
        assert engine.config.offload_budget == 1 << 20


@pytest.mark.parametrize(
    ("policy", "given", "message"),
    [
        (
            OffloadPolicy.Budget(5),
            {"offload_budget": 6},
            "offload_policy: cannot be combined with offload_budget",
        ),
        (
            OffloadPolicy.None_,
            {"offload_budget": 6},
            "offload_policy: cannot be combined with offload_budget",
        ),
        (OffloadPolicy.Budget(5), {"offload_pinned": ("a",)}, "cannot be combined with offload_pinned"),
        (5, {}, "offload_policy: expected a OffloadPolicy, got int"),
    ],
)
def test_a_policy_that_contradicts_its_fields_is_refused(policy: Any, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(offload_policy=policy, **given)


@pytest.mark.parametrize(
    ("cls", "name", "meant"),
    [
        (EngineConfig, "n_ctx", "context_size"),
        (EngineConfig, "n_threads", "num_threads"),
        (SamplerConfig, "topp", "top_p"),
        (SamplerConfig, "temp", "temperature"),
        (GenerationOptions, "maxtokens", "max_tokens"),
        (ServerConfig, "tls_cert", "ssl_certfile"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(cls: type, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: is no option; did you mean {meant}\?"):
        cls(**{name: 1})


def test_every_number_of_bytes_takes_units() -> None:
    sizes = {each.name for _, each in OPTIONS if re.search("bytes|memory", each.name) and each.kind == "int"}
    assert sizes >= {"kv_memory_limit", "prefix_cache_bytes", "max_body_bytes", "models_memory"}
    assert {each.name for _, each in OPTIONS if placeholder(each) == "BYTES"} >= sizes
