"""The kinds of hostile inputs, by name."""

from __future__ import annotations

from tests.fuzz.harness import Target
from tests.fuzz.targets.calls import CommandTarget, OptionsTarget, PromptTarget
from tests.fuzz.targets.containers import ContainerTarget, ImatrixTarget, ModelTarget
from tests.fuzz.targets.folders import FolderTarget
from tests.fuzz.targets.grammars import GbnfTarget, RegexTarget, SchemaTarget
from tests.fuzz.targets.texts import TemplateTarget, TokenizerTarget, VocabularyTarget

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        ContainerTarget(),
        ModelTarget(),
        FolderTarget(),
        TokenizerTarget(),
        VocabularyTarget(),
        TemplateTarget(),
        GbnfTarget(),
        RegexTarget(),
        SchemaTarget(),
        ImatrixTarget(),
        OptionsTarget(),
        PromptTarget(),
        CommandTarget(),
    )
}
