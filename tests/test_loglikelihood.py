"""Log-likelihoods: every number against a fresh, uncached forward per pair, and against lm-eval's own ``hf``."""

from __future__ import annotations

import json
from types import SimpleNamespace

import datasets
import micro
import oracles
import pytest
import torch
from evaluation_fakes import FakeEngine
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate as lm_eval_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import hash_string

from harness.errors import UserError
from harness.evaluation import loglikelihood
from harness.evaluation.lm import EngineLM
from harness.evaluation.loglikelihood import Document, Scorer
from harness.results.records import DOCUMENT_TYPES

# The scorer, on token ids


def documents(count: int = 12, seed: int = 0) -> list[Document]:
    """Ragged: one to five requests of one to nine tokens, on one or two contexts, some with two windows."""
    generator = torch.Generator().manual_seed(seed)

    def ids(most: int) -> list[int]:
        length = int(torch.randint(1, most + 1, (), generator=generator))
        return torch.randint(0, oracles.VOCAB - 2, (length,), generator=generator).tolist()

    found = []
    for key in range(count):
        contexts = [ids(30) for _ in range(1 + key % 2)]
        requests = [[(contexts[i % len(contexts)], ids(9))] for i in range(1 + key % 5)]
        if key % 4 == 3:
            requests[0].append((ids(30), ids(9)))
        found.append(Document(key, requests))
    return found


def brute_force(model, document: Document) -> tuple[list[float], list[bool]]:
    """One forward per pair: no cache, no batch, no branches."""
    totals, greedy = [], []
    for pairs in document.requests:
        total, is_greedy = 0.0, True
        for context, continuation in pairs:
            logits = oracles.logits_of(model, context + continuation)[len(context) - 1 : -1]
            total += float(logits.log_softmax(-1)[range(len(continuation)), continuation].sum())
            is_greedy &= logits.argmax(-1).tolist() == continuation
        totals.append(total)
        greedy.append(is_greedy)
    return totals, greedy


def target(model, mask_token_id: int | None = oracles.MASK) -> SimpleNamespace:
    return SimpleNamespace(name="micro", model=model, mask_token_id=mask_token_id)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(("piece", "logits"), [(1024, 1 << 25), (7, 3 * oracles.VOCAB), (9, 1)])
def test_equals_a_fresh_forward_per_pair(monkeypatch, kind, batch_size, piece, logits):
    monkeypatch.setattr(loglikelihood, "PIECE", piece)
    monkeypatch.setattr(loglikelihood, "LOGITS", logits)
    model, asked = oracles.micro_model(kind), documents()
    # A choice that greedy AR says, beside one that begins like it.
    said = oracles.greedy(model, [5, 6, 7], 6, eos=())
    asked.append(Document(12, [[([5, 6, 7], said)], [([5, 6, 7], [*said[:-1], (said[-1] + 1) % 60])]]))
    found = {scores.key: scores for scores in Scorer(target(model), batch_size).run(asked)}
    assert sorted(found) == list(range(13))
    for document in asked:
        totals, greedy = brute_force(model, document)
        assert found[document.key].loglikelihoods == pytest.approx(totals, rel=0, abs=1e-9)
        assert found[document.key].is_greedy == greedy
    assert found[12].is_greedy == [True, False]


def test_choices_share_one_reading_of_their_context_and_one_forward():
    model = oracles.micro_model()
    fed = []
    model.get_decoder().register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    context = list(range(20))
    document = Document(0, [[(context, [1, 2, 3])], [(context, [4])], [(context, [5, 6])], [(context, [1, 9])]])
    [scores] = Scorer(target(model)).run([document])
    assert fed == [(1, 20 + 2 + 0 + 1 + 1)]
    assert scores.prompt_tokens == 20


def test_logits_are_made_for_scored_positions_only_and_some_at_a_time(monkeypatch):
    monkeypatch.setattr(loglikelihood, "LOGITS", 4 * oracles.VOCAB)
    model = oracles.micro_model()
    made = []
    model.get_output_embeddings().register_forward_hook(lambda _module, _args, out: made.append(out.shape))
    list(Scorer(target(model)).run([Document(0, [[(list(range(40)), list(range(10)))]])]))
    rows = [int(shape[:-1].numel()) for shape in made]
    assert sum(rows) == 10
    assert max(rows) == 4


def test_a_mask_token_counts_as_in_stock_and_is_told_where_it_matters(caplog):
    model = oracles.micro_model()
    document = Document(0, [[([1, 2, 3], oracles.greedy(model, [1, 2, 3], 3, eos=()))]])
    with torch.no_grad():
        model.lm_head.weight[oracles.MASK] = 0  # its logit is 0, far below the others' best
    scorer = Scorer(target(model))
    [before] = scorer.run([document])
    assert before.is_greedy == [True]
    assert scorer.mask_share == pytest.approx(mask_probability(model, document), rel=1e-6)
    caplog.clear()
    with torch.no_grad():
        model.lm_head.weight[oracles.MASK] = model.lm_head.weight[document.requests[0][0][1][0]] * 1.5
    [after] = Scorer(target(model)).run([document])
    assert (after.loglikelihoods, after.is_greedy) == (pytest.approx(brute_force(model, document)[0]), [False])
    [record] = caplog.records
    assert "mask token has up to" in record.getMessage()
    caplog.clear()
    list(Scorer(target(model, mask_token_id=None)).run([document]))
    assert not caplog.records


def mask_probability(model, document: Document) -> float:
    [(context, continuation)] = document.requests[0]
    logits = oracles.logits_of(model, context + continuation)[len(context) - 1 : -1]
    return float(logits.softmax(-1)[:, oracles.MASK].max())


# The adapter, on texts


def loaded(kind: str = "qwen2", adds_bos: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        name="micro", model=micro.model(kind), tokenizer=micro.tokenizer(adds_bos), mask_token_id=None,
        context_length=512,
    )  # fmt: skip


def adapter(model: SimpleNamespace, **options) -> EngineLM:
    return EngineLM(FakeEngine(model, lambda *_: "text"), model, **options)


def instance(*args, method: str = "loglikelihood", doc_id: int = 0, idx: int = 0, task: str = "t") -> Instance:
    return Instance(method, {}, args, idx, (task, doc_id, 1))


TEXTS = [
    ("Two and two is", " four"),
    ("Two and two is ", "four"),  # whose space goes to the continuation
    ("Two and two is   ", " \n"),
    ("<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", "Hi"),  # rendered: BOS is there
    ("", "It begins."),
    ("", "<s>It begins with BOS."),
    ("Où ?\n", "là"),
    ("Two and two is", " five"),
    ("Three", " five"),  # one continuation after several contexts, as in winogrande
    ("x" * 400, "y" * 60),
]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_equals_stock_lm_eval_on_the_same_weights(kind, adds_bos):
    model = loaded(kind, adds_bos)
    stock = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=3)
    requests = [instance(*texts, doc_id=i // 2, idx=i % 2) for i, texts in enumerate(TEXTS)]
    first = int(micro.logits(model.model, model.tokenizer("Hello")["input_ids"])[-1, :256].argmax())
    requests.append(instance("Hello", model.tokenizer.decode([first]), doc_id=9))
    ours, theirs = adapter(model, batch_size=3).loglikelihood(requests), stock.loglikelihood(requests, True)
    assert [total for total, _ in ours] == pytest.approx([total for total, _ in theirs], rel=0, abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_a_context_of_white_space_alone_is_none():
    """Its spaces go to the continuation. (Stock stops there, where the tokenizer adds no BOS.)"""
    for adds_bos in (True, False):
        requests = [
            instance(*texts, idx=i) for i, texts in enumerate(((" ", "b"), ("", " b"), (" ", "bc"), ("", " bc")))
        ]
        answers = adapter(loaded(adds_bos=adds_bos)).loglikelihood(requests)
        assert answers[::2] == answers[1::2]
        assert answers[0] != answers[2]


def test_a_tokenizer_without_bos_and_eos_uses_the_models_end():
    model = loaded(adds_bos=False)
    end = model.tokenizer.eos_token_id
    requests = [instance("", "a b"), instance("a", " b", doc_id=1)]
    model.tokenizer.bos_token = None
    expected = adapter(model).loglikelihood(requests)
    model.tokenizer.eos_token = None
    model.eos_token_ids = (end,)
    assert adapter(model).loglikelihood(requests) == expected
    model.eos_token_ids = ()
    with pytest.raises(UserError, match="a token that ends a text"):
        adapter(model).loglikelihood(requests)


def test_a_greedy_choice_is_one_in_stock_too():
    model = loaded()
    found = []

    def encode(text: str) -> list[int]:
        return model.tokenizer(text)["input_ids"]

    for text in "abcdefghijklmnopqrstuvwxyz":
        top = int(micro.logits(model.model, encode(text))[-1].argmax())
        if encode(text + (said := model.tokenizer.decode([top]))) == [*encode(text), top]:
            found.append((text, said))
    [ours] = adapter(model).loglikelihood([instance(*found[0])])
    [theirs] = HFLM(pretrained=model.model, tokenizer=model.tokenizer).loglikelihood([instance(*found[0])], True)
    assert ours[1] is theirs[1] is True


def test_whole_texts_equal_stock_in_windows_of_the_models_length():
    model = loaded()
    texts = ["short", "a text of some length. " * 60, ""]  # 1,380 tokens: three windows
    requests = [instance(text, method="loglikelihood_rolling", doc_id=i) for i, text in enumerate(texts)]
    stock = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=2)
    lm = adapter(model, batch_size=2)
    ours, theirs = lm.loglikelihood_rolling(requests), stock.loglikelihood_rolling(requests, True)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-4)
    assert lm.rows["t", 1]["loglikelihoods"] == [ours[1]]
    assert lm.rows["t", 1]["is_greedy"] == []


def multiple_choice() -> ConfigurableTask:
    rows = [
        {"question": f"{a} + {b}?", "choices": [str(a + b), "none", str(a * b + 100)], "answer": 0}
        for a, b in ((1, 2), (30, 4), (5, 66), (7, 7))
    ]
    return ConfigurableTask(
        config={
            "task": "choose",
            "output_type": "multiple_choice",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_mutual_info")],
            "metadata": {"version": 1.0},
        }
    )


@pytest.mark.parametrize("chat", [False, True])
def test_a_multiple_choice_task_gives_stocks_samples(chat):
    model = loaded()
    lm = adapter(model, batch_size=2)
    found = [
        lm_eval_evaluate(lm=one, task_dict={"tasks": {"choose": multiple_choice()}}, apply_chat_template=chat)
        for one in (lm, HFLM(pretrained=model.model, tokenizer=model.tokenizer))
    ]
    for ours, theirs in zip(*(one["samples"]["choose"] for one in found), strict=True):
        assert ours["prompt_hash"] == theirs["prompt_hash"] == lm.rows["choose", ours["doc_id"]]["prompt_hash"]
        for mine, stock in zip(ours["filtered_resps"], theirs["filtered_resps"], strict=True):
            assert mine == (pytest.approx(stock[0], abs=1e-4), stock[1])
        assert len(lm.rows["choose", ours["doc_id"]]["loglikelihoods"]) == 6  # with and without the question


# Rows


def test_a_scored_document_has_a_row_like_a_generated_one():
    rows = []
    lm = adapter(loaded(), on_row=rows.append)
    requests = [instance("Q: 1?", choice, idx=i) for i, choice in enumerate((" yes", " no"))]
    answers = lm.loglikelihood(requests)
    lm.generate_until([instance("Q: 1?", {"until": []}, method="generate_until", doc_id=1)])
    row = lm.rows["t", 0]
    assert rows[0] == row == json.loads(json.dumps(row))
    assert set(row) - {"loglikelihoods", "is_greedy"} == set(lm.rows["t", 1])
    assert set(row) <= set(DOCUMENT_TYPES)
    assert row["share_seconds"] > 0
    assert row["prompt_hash"] == hash_string("Q: 1?")
    assert (row["loglikelihoods"], row["is_greedy"]) == tuple(map(list, zip(*answers, strict=True)))
    expected = {"text": "", "token_ids": [], "finish_reason": "scored", "acceptance_lengths": [], "prompt_tokens": 6}
    expected |= dict.fromkeys(("new_tokens", "target_forwards", "positions", "timed_forwards"), 0)
    assert {name: row[name] for name in expected} == expected


def test_turns_that_a_chat_template_refuses_are_told_and_not_left_out():
    model = loaded()
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q?"}]
    assert "Be brief." in adapter(model).apply_chat_template(turns)
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    model.tokenizer.chat_template = refuses + model.tokenizer.chat_template
    with pytest.raises(UserError, match=r"these turns: system, user \(no system here\)"):
        adapter(model).apply_chat_template(turns)
    assert "Q?" in adapter(model).apply_chat_template(turns[1:])


def test_repeats_and_order():
    rows = []
    lm = adapter(loaded(), on_row=rows.append, batch_size=2)
    requests = [instance("a" * (9 * d + 1), f" {c}", doc_id=d, idx=i) for d in (0, 1, 2) for i, c in enumerate("xyz")]
    answers = lm.loglikelihood([*requests, *reversed(requests)])
    assert answers[:9] == answers[:8:-1]
    assert len(set(answers)) == 9
    assert [row["doc_id"] for row in rows] == [2, 1, 0]  # as finished
    assert [len(row["loglikelihoods"]) for row in rows] == [3, 3, 3]


def test_what_an_earlier_attempt_scored_is_not_scored_again(monkeypatch):
    model, kept = loaded(), []
    requests = [instance(f"question {d}", f" {c}", doc_id=d, idx=i) for d in range(4) for i, c in enumerate("xy")]
    rolled = [instance(f"text {d}", method="loglikelihood_rolling", doc_id=d, task="u") for d in range(2)]
    first = adapter(model, on_row=kept.append)
    answers, totals = first.loglikelihood(requests), first.loglikelihood_rolling(rolled)
    kept = json.loads(json.dumps(kept))
    scored = []
    original = Scorer.run
    monkeypatch.setattr(Scorer, "run", lambda self, asked: scored.extend(asked) or original(self, asked))
    again = adapter(model, done=kept)
    assert (again.loglikelihood(requests), again.loglikelihood_rolling(rolled)) == (answers, totals)
    assert not scored
    assert again.rows == first.rows
    # Rows of another prompt, or of another number of choices, say nothing.
    changed = [kept[0] | {"prompt_hash": "other"}, kept[1] | {"loglikelihoods": [0.0]}, *kept[2:]]
    assert adapter(model, done=changed).loglikelihood(requests) == answers
    assert {document.key for document in scored} == {("t", row["doc_id"]) for row in kept[:2]}


def test_a_document_that_is_generated_and_scored_keeps_both():
    model, kept = loaded(), []
    generated = instance("Q?", {"until": []}, method="generate_until")
    scored = [instance("Q?", " unanswerable"), instance("Q?", " other", idx=1)]
    whole = instance("Q? A.", method="loglikelihood_rolling")
    for first in (True, False):
        lm = adapter(model, on_row=kept.append)
        if first:
            lm.generate_until([generated])
        answers = lm.loglikelihood(scored)
        [total] = lm.loglikelihood_rolling([whole])
        if not first:
            lm.generate_until([generated])
        row = lm.rows["t", 0]
        assert (row["text"], row["new_tokens"], row["finish_reason"]) == ("text", 10, "eos")
        assert sorted(row["loglikelihoods"]) == sorted([*(value for value, _ in answers), total])
        assert row["is_greedy"] == [greedy for _, greedy in answers]
        assert row["share_seconds"] == pytest.approx(sum(one["share_seconds"] for one in kept[-3:]))
        again = adapter(model, done=json.loads(json.dumps(kept)))
        again.generate_until([generated])
        assert not again._engine.requests
        assert (again.loglikelihood(scored), again.loglikelihood_rolling([whole])) == (answers, [total])


def test_the_bar_counts_documents(capfd):
    lm = adapter(loaded(), progress=True, label="choose")
    lm.loglikelihood([instance("Q?", f" {c}", doc_id=d, idx=i) for d in range(3) for i, c in enumerate("xy")])
    assert "choose: 100%" in (last := capfd.readouterr().err.strip().split("\r")[-1])
    assert " 3/3 " in last
    assert "tok/fwd" not in last


def test_texts_that_do_not_fit_or_are_empty_are_named_before_anything_is_scored(monkeypatch):
    monkeypatch.setattr(Scorer, "run", lambda *_: pytest.fail("scored"))
    lm = adapter(loaded())
    with pytest.raises(UserError, match=r"document 3 has 514 tokens, a choice included, and micro reads 512 \(1 of 2"):
        lm.loglikelihood([instance("a" * 508, " x", doc_id=1), instance("a" * 508, " is it", doc_id=3)])
    with pytest.raises(UserError, match="document 2 has one without any token"):
        lm.loglikelihood([instance("Q?", "", doc_id=2)])


def test_a_text_as_long_as_the_context_is_scored():
    [(total, _)] = adapter(loaded()).loglikelihood([instance("a" * 508, " is ")])  # 509 with BOS, and 3 that are fed
    assert total < 0
