"""The kinds of hostile inputs, by name."""

from __future__ import annotations

from tests.fuzz.harness import Target
from tests.fuzz.targets.adapters import AdapterTarget
from tests.fuzz.targets.calls import CommandTarget, OptionsTarget, PromptTarget
from tests.fuzz.targets.containers import ContainerTarget, ImatrixTarget, ModelTarget
from tests.fuzz.targets.folders import FolderTarget, PeftTarget
from tests.fuzz.targets.grammars import TEXTS, SchemaTarget
from tests.fuzz.targets.media import MediumTarget, ProjectorTarget
from tests.fuzz.targets.messages import MessageTarget, ToolTarget
from tests.fuzz.targets.receipts import ReceiptTarget
from tests.fuzz.targets.snapshots import SnapshotTarget
from tests.fuzz.targets.speculative import SpeculativeTarget
from tests.fuzz.targets.texts import TemplateTarget, TokenizerTarget, VocabularyTarget

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        ContainerTarget(),
        ModelTarget(),
        AdapterTarget(),
        SnapshotTarget(),
        SpeculativeTarget(),
        FolderTarget(),
        PeftTarget(),
        TokenizerTarget(),
        VocabularyTarget(),
        TemplateTarget(),
        MessageTarget(),
        ToolTarget(),
        *TEXTS,
        SchemaTarget(),
        ImatrixTarget(),
        OptionsTarget(),
        PromptTarget(),
        ReceiptTarget(),
        CommandTarget(),
        MediumTarget(),
        ProjectorTarget(),
    )
}
