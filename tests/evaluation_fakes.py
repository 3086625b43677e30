"""A loaded model without a model: a byte-level tokenizer with a BOS to double, and an engine with scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from harness.engine.rows import Completion, Request, Step
from harness.engine.stats import SequenceStats
from harness.evaluation.suites import SuiteConfig

CONF = Path(__file__).parents[1] / "conf"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass
class OnlyASuite:
    """A configuration with nothing but a typed suite."""

    suite: SuiteConfig = field(default_factory=SuiteConfig)


def suite(name: str, *overrides: str) -> SuiteConfig:
    """A suite as the command line composes it: typed, with overrides."""
    ConfigStore.instance().store(name="only_a_suite", node=OnlyASuite)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("only_a_suite", overrides=[f"+suite={name}", *overrides])
    return OmegaConf.to_object(config.suite)


def loaded(context_length: int = 100_000, chat_template: str | None = TEMPLATE) -> SimpleNamespace:
    """What the adapter reads of a loaded model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = chat_template
    return SimpleNamespace(name="fake", tokenizer=fast, context_length=context_length)


class FakeEngine:
    """Answers with ``answer(prompt text, request)``, last request first; commits two tokens per forward."""

    def __init__(self, model: SimpleNamespace, answer: Callable[[str, Request], str], fail_after: int | None = None):
        self.model, self.answer, self.fail_after = model, answer, fail_after
        self.requests: list[Request] = []

    def prompt(self, request: Request) -> str:
        return self.model.tokenizer.decode(request.prompt_ids)

    def run(self, requests: Iterable[Request]) -> Iterator[Completion]:
        self.requests = list(requests)
        for count, request in enumerate(reversed(self.requests)):
            if count == self.fail_after:
                raise RuntimeError("killed")
            text = self.answer(self.prompt(request), request)
            stats = SequenceStats(
                prompt_tokens=len(request.prompt_ids),
                new_tokens=10,
                target_forwards=5,
                positions=20,
                acceptance_lengths=[2] * 5,
                finish_reason="eos",
            )
            trace = [Step([1, 2], [1.0, 0.123456789])] * 5
            yield Completion(request.key, request.prompt_ids, [1, 2] * 5, text, stats, trace)
