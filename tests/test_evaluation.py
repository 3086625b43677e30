"""Evaluation: every trap that would silently change a number, and what a user sees when the input is wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evaluation_fakes import FakeEngine, loaded, suite
from lm_eval.api.instance import Instance
from lm_eval.utils import hash_string

from harness import problems
from harness.errors import UserError
from harness.evaluation import documents, suites, tasks
from harness.evaluation.evaluate import Evaluation, _number, evaluate
from harness.evaluation.lm import EngineLM, prompt_hash
from harness.evaluation.suites import SuiteConfig, TaskSpec

QUESTIONS = {
    "Two and two?": "It is 2 + 2 = 4.\n#### 4",
    "Ten dozen hundreds?": "It is 12 * 1000.\n#### 12,000",
    "Three less than one?": "It is 1 - 3.\n#### -2",
}


def write_gsm8k(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": q, "answer": a}) for q, a in QUESTIONS.items()]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_bbh(folder: Path) -> None:
    folder.mkdir(parents=True)
    for subtask, count in (("boolean_expressions", 3), ("navigate", 1)):
        rows = [{"input": f"question {i}", "target": "True"} for i in range(count)]
        (folder / f"{subtask}.json").write_text(json.dumps({"canary": "x", "examples": rows}), encoding="utf-8")


def with_bbh(config: SuiteConfig, data_dir: Path) -> SuiteConfig:
    config.protocol["bbh"] = TaskSpec(
        source="lm_eval:bbh/cot_fewshot/{subtask}.yaml",
        version="4.0",
        num_fewshot=3,
        metric="exact_match",
        filter="get-answer",
        subtasks=["boolean_expressions", "navigate"],
        data_files=["bbh/{subtask}.json"],
        fields=["input", "target"],
    )
    config.tasks, config.data_dir = ["bbh"], str(data_dir)
    return config


def oracle(prompt: str, _request: object) -> str:
    """The reference answer of whichever generated problem or GSM8K question is asked."""
    known = {p.question: p.answer for p in problems.generate("test", 30, seed=0)} | QUESTIONS
    return next(answer for question, answer in known.items() if question in prompt)


def run(config: SuiteConfig, answer=oracle, **options) -> tuple[Evaluation, FakeEngine]:
    model = loaded()
    engine = FakeEngine(model, answer)
    return evaluate(engine, model, config, **options), engine


# What a suite is


@pytest.mark.parametrize("name", ["quick", "gsm8k", "humaneval"])
def test_suites_compose_into_the_schema(name):
    config = suite(name)
    assert config.name == name
    assert config.selected()
    assert config.max_gen_toks == 256


def test_quick_is_the_demo():
    config = suite("quick")
    assert (config.tasks, config.limit) == (["word_problems"], 200)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("suite.tasks=[gsm8k_cto]", "did you mean gsm8k_cot"),
        ("suite.tasks=[]", "at least one of"),
        ("suite.limit=0", "suite.limit"),
        ("suite.max_gen_toks=0", "suite.max_gen_toks"),
    ],
)
def test_mistakes_in_a_suite_are_named(override, part):
    with pytest.raises(UserError, match=part):
        suite("quick", override).selected()


def test_another_task_version_or_metric_is_refused(tmp_path):
    config = suite("gsm8k", f"suite.data_dir={write_gsm8k(tmp_path)}")
    config.protocol["gsm8k_cot"].version = "2.0"
    with pytest.raises(UserError, match=r"version 3\.0"):
        tasks.build(config)
    config = suite("gsm8k", f"suite.data_dir={tmp_path}")
    config.protocol["gsm8k_cot"].filter = "flexible"
    with pytest.raises(UserError, match="strict-match, flexible-extract"):
        tasks.build(config)


def test_identity_follows_what_can_change_a_result(tmp_path):
    config = suite("gsm8k", f"suite.data_dir={write_gsm8k(tmp_path)}")
    first = suites.identity(config)
    assert first == suites.identity(suite("gsm8k", f"suite.data_dir={tmp_path}"))
    assert suites.identity(suite("gsm8k"))["tasks"]["gsm8k_cot"]["data"]["gsm8k_cot"].startswith("hub:e53f")
    (tmp_path / "test.jsonl").write_text('{"question": "other", "answer": "#### 1"}\n')
    changed = suites.identity(config)
    assert changed != first
    for field, value in (("limit", 1), ("max_gen_toks", 8), ("fewshot_as_multiturn", True)):
        setattr(config, field, value)
        before, changed = changed, suites.identity(config)
        assert before != changed


def test_identity_needs_no_lm_eval():
    program = (
        "import sys; from harness.evaluation import suites; "
        "s = suites.SuiteConfig(name='x', tasks=['a'], limit=2, protocol={'a': suites.TaskSpec("
        "source='harness.evaluation.word_problems', version='1.0', metric='m', filter='f')}); "
        "assert suites.identity(s)['tasks']['a']['data']['a']; assert 'lm_eval' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])


# What comes back


def test_an_oracle_scores_all_and_silence_nothing():
    found, _ = run(suite("quick", "suite.limit=7"))
    headline = found.headline["word_problems"]
    assert (headline.value, headline.n, headline.metric) == (1.0, 7, "exact_match,strict-match")
    assert found.average == 1.0
    found, _ = run(suite("quick", "suite.limit=7"), answer=lambda *_: "")
    assert found.average == 0.0


def test_the_number_after_the_hashes_is_what_counts():
    answers = iter(["#### {}", "The answer is {}", "#### {}0", "12 #### {}.", "#### x"])

    def answer(prompt, request):
        return next(answers).format(oracle(prompt, request).split("#### ")[1])

    found, _ = run(suite("quick", "suite.limit=5"), answer=answer)
    assert sorted(row["score"] for row in found.rows) == [0, 0, 0, 1, 1]
    assert sum(row["metrics"]["exact_match,flexible-extract"] for row in found.rows) == 3
    assert found.headline["word_problems"].stderr == pytest.approx((0.3 / 5) ** 0.5)  # variance 0.3 over n - 1


def test_one_row_per_document_although_lm_eval_has_one_per_filter():
    found, engine = run(suite("quick", "suite.limit=6"))
    assert [row["doc_id"] for row in found.rows] == list(range(6))
    assert len(engine.requests) == 6
    row = found.rows[0]
    assert set(row["metrics"]) == {"exact_match,strict-match", "exact_match,flexible-extract"}
    assert row["new_tokens"] == 10
    assert row["acceptance_lengths"] == [2] * 5
    assert row["confidences"][:2] == [1.0, 0.123457]
    assert row["extracted"] == row["target"]
    assert json.loads(json.dumps(row)) == row


def test_a_document_is_the_same_whatever_the_limit():
    def view(engine):
        return {r.key: (r.prompt_ids, r.seed) for r in engine.requests}

    _, few = run(suite("quick", "suite.limit=3"), seed=5)
    _, more = run(suite("quick", "suite.limit=9"), seed=5)
    assert view(few).items() <= view(more).items()
    assert len({r.seed for r in more.requests}) == 9
    _, other = run(suite("quick", "suite.limit=3"), seed=6)
    assert not {r.seed for r in other.requests} & {r.seed for r in few.requests}


def test_protocol_and_versions_are_recorded(tmp_path):
    found, _ = run(suite("gsm8k", f"suite.data_dir={write_gsm8k(tmp_path)}"), seed=3)
    assert found.versions == {"gsm8k_cot": "3.0"}
    seeds = {"run": 3, "fewshot": 1234, "langdetect": 0, "shuffle and scoring": "by document"}
    assert found.protocol["seeds"] == seeds
    assert found.protocol["fewshot_as_multiturn"] is False
    assert len(found.protocol["chat_template_sha256"]) == 64
    assert found.protocol["tasks"]["gsm8k_cot"]["filters"] == ["strict-match", "flexible-extract"]
    rows = [{"question": q, "answer": a} for q, a in QUESTIONS.items()]
    assert found.data == {"gsm8k_cot": documents.hash_rows(rows)}


def test_prompt_hash_is_lm_evals():
    assert prompt_hash("Où ?\n") == hash_string("Où ?\n")


def test_several_numbers_of_one_metric_become_their_mean():
    assert _number([True, False, True, True]) == 0.75
    assert _number(True) == 1.0


# GSM8K


@pytest.mark.parametrize("inside", ["", "gsm8k"])
def test_gsm8k_from_its_own_folder_or_the_one_above(tmp_path, inside):
    write_gsm8k(tmp_path / inside)
    found, engine = run(suite("gsm8k", f"suite.data_dir={tmp_path}"))
    assert found.headline["gsm8k_cot"].metric == "exact_match,flexible-extract"
    assert found.headline["gsm8k_cot"].value == 1.0
    assert [row["metrics"]["exact_match,strict-match"] for row in found.rows] == [0, 0, 0]  # no "The answer is"
    assert engine.prompt(engine.requests[0]) == "<s><user>Q: Two and two?\nA:</s><assistant>"


def test_gsm8k_relative_to_the_current_directory(tmp_path, monkeypatch):
    write_gsm8k(tmp_path / "data" / "gsm8k")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(suite("gsm8k", "suite.data_dir=../data", "suite.limit=2"))[0].headline["gsm8k_cot"].n == 2


def test_gsm8k_as_upstream_ships_it():
    data = Path(__file__).parents[2] / "shared" / "data"
    if not (data / "gsm8k" / "test.jsonl").exists():
        pytest.skip("upstream's files are not here")
    reference = [json.loads(line) for line in (data / "gsm8k" / "test.jsonl").read_text().splitlines()]
    by_question = {row["question"]: row["answer"] for row in reference}

    def answer(prompt, _):
        return by_question[prompt.removeprefix("<s><user>Q: ").removesuffix("\nA:</s><assistant>")]

    found, _ = run(suite("gsm8k", f"suite.data_dir={data}", "suite.limit=40"), answer=answer)
    assert (found.average, found.headline["gsm8k_cot"].n) == (1.0, 40)


# Traps


def test_the_suite_limits_new_tokens_whatever_the_task_says(tmp_path):
    write_bbh(tmp_path / "bbh")  # whose YAML asks for 1024
    _, engine = run(with_bbh(suite("quick", "suite.max_gen_toks=77"), tmp_path), answer=lambda *_: "")
    assert {request.max_new_tokens for request in engine.requests} == {77}


def test_aliases_do_not_get_past_the_limit(monkeypatch, tmp_path):
    config = tasks.stock_config(suite("gsm8k").protocol["gsm8k_cot"], "gsm8k_cot")
    config["generation_kwargs"] |= {"max_new_tokens": 9999}
    monkeypatch.setattr(tasks, "stock_config", lambda *_: config)
    _, engine = run(suite("gsm8k", f"suite.data_dir={write_gsm8k(tmp_path)}"))
    assert {request.max_new_tokens for request in engine.requests} == {256}


def test_no_second_bos():
    _, engine = run(suite("quick", "suite.limit=2"))
    bos = engine.model.tokenizer.bos_token_id
    assert engine.model.tokenizer.encode("x").count(bos) == 1  # the trap is set
    assert all(request.prompt_ids[0] == bos and request.prompt_ids.count(bos) == 1 for request in engine.requests)


def instance(doc_id: int = 0, prompt: str = "hello", task: str = "t", **options) -> Instance:
    return Instance("generate_until", {}, (prompt, options), 0, (task, doc_id, 1))


@pytest.mark.parametrize(
    ("until", "stop"),
    [(["Q:", "", "\n", "Q:"], ("Q:", "\n")), ("Q:", ("Q:",)), ([], ()), (None, ())],
)
def test_stop_strings_once_each_and_none_empty(until, stop):
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    EngineLM(engine, model).generate_until([instance(until=until)])
    assert engine.requests[0].stop == stop


def test_gsm8k_stops_reach_the_engine(tmp_path):
    _, engine = run(suite("gsm8k", f"suite.data_dir={write_gsm8k(tmp_path)}"))
    assert engine.requests[0].stop == ("Q:", "</s>", "<|im_end|>")


def test_repeated_requests_are_generated_once():
    model = loaded()
    engine = FakeEngine(model, lambda _, request: f"answer {request.key[1]}")
    requests = [instance(0), instance(1), instance(1), instance(0)]
    rows = []
    answers = EngineLM(engine, model, on_row=rows.append).generate_until(requests)
    assert answers == ["answer 0", "answer 1", "answer 1", "answer 0"]
    assert len(rows) == len(engine.requests) == 2


@pytest.mark.parametrize("options", [{"do_sample": True}, {"do_sample": True, "temperature": 0.7}, {"temperature": 1}])
def test_sampling_is_refused(options):
    model = loaded()
    with pytest.raises(UserError, match="samples"):
        EngineLM(FakeEngine(model, lambda *_: ""), model).generate_until([instance(**options)])


@pytest.mark.parametrize("options", [{"do_sample": True, "temperature": 0}, {"do_sample": False, "temperature": 1}])
def test_sampling_that_is_none_is_answered(options):
    model = loaded()
    assert EngineLM(FakeEngine(model, lambda *_: "yes"), model).generate_until([instance(**options)]) == ["yes"]


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_tokens"])
def test_a_tasks_own_limit_has_several_names(name):
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    EngineLM(engine, model).generate_until([instance(**{name: 33})])
    assert engine.requests[0].max_new_tokens == 33


def test_each_task_has_its_own_shots_in_one_user_turn(tmp_path):
    write_bbh(tmp_path / "bbh")
    write_gsm8k(tmp_path / "gsm8k")
    config = with_bbh(suite("gsm8k"), tmp_path)
    config.tasks = ["bbh", "gsm8k_cot"]
    found, engine = run(config, answer=lambda *_: "So the answer is True.")
    prompts = {request.key: engine.prompt(request) for request in engine.requests}
    shots = prompts["bbh_cot_fewshot_navigate", 0]
    assert shots.count("\nQ: ") + shots.count("<user>Q: ") == 4
    assert shots.count("<user>") == 1
    assert prompts["gsm8k_cot", 0].count("Q: ") == 1
    bbh = found.headline["bbh"]
    assert (bbh.value, bbh.n) == (1.0, 4)
    assert set(bbh.subtasks) == {"bbh_cot_fewshot_boolean_expressions", "bbh_cot_fewshot_navigate"}
    assert found.average == 0.5
    assert {row["group"] for row in found.rows} == {"bbh", "gsm8k_cot"}


def test_the_default_path_needs_no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("network access on the default path")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert run(suite("quick", "suite.limit=2"))[0].average == 1.0


def test_tasks_are_built_without_indexing_all_of_lm_eval(monkeypatch, tmp_path):
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(TaskManager, "__init__", lambda *_: pytest.fail("TaskManager reads 14,000 files"))
    write_gsm8k(tmp_path)
    start = time.process_time()
    for name in ("quick", "gsm8k", "humaneval"):
        tasks.build(suite(name, f"suite.data_dir={tmp_path}"))
    assert time.process_time() - start < 2


# Interruption, progress, noise


def test_an_interrupted_cell_goes_on_where_it_stopped():
    model, config, kept = loaded(), suite("quick", "suite.limit=6"), []
    with pytest.raises(RuntimeError, match="killed"):
        evaluate(FakeEngine(model, oracle, fail_after=4), model, config, on_row=kept.append)
    kept = json.loads(json.dumps(kept))
    assert len(kept) == 4
    engine, added = FakeEngine(model, oracle), []
    found = evaluate(engine, model, config, resume=kept, on_row=added.append)
    assert [request.key[1] for request in engine.requests] == [0, 1]
    assert len(added) == 2
    assert found.rows == run(config)[0].rows


def test_a_row_of_another_prompt_is_not_taken():
    config, kept = suite("quick", "suite.limit=2"), []
    run(config, on_row=kept.append)
    _, engine = run(config, resume=[kept[0], kept[1] | {"prompt_hash": "other"}])
    assert len(engine.requests) == 1


def test_silence_but_for_the_bar(capfd, caplog):
    run(suite("quick", "suite.limit=3"))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records

    def all_but_one(prompt, request):
        return oracle(prompt, request) if request.key[1] else ""

    run(suite("quick", "suite.limit=4"), answer=all_but_one, progress=True, label="mars")
    out, err = capfd.readouterr()
    assert out == ""
    last = err.strip().split("\r")[-1]
    assert last.startswith("mars: 100%")
    assert "tok/fwd=2.00, acc=75.0%" in last
    assert err.count("\n") == 1


# Bad input


def test_a_prompt_longer_than_the_context_is_named_before_anything_runs():
    model = loaded(context_length=30)
    engine = FakeEngine(model, oracle)
    with pytest.raises(UserError, match=r"document \d has \d+ tokens and fake reads 30") as caught:
        evaluate(engine, model, suite("quick", "suite.limit=2"))
    assert "word_problems" in str(caught.value)
    assert "longer context" in str(caught.value)
    assert not engine.requests


def test_a_prompt_as_long_as_the_context_leaves_no_room():
    probe = loaded()
    length = len(probe.tokenizer.encode("hello", add_special_tokens=False))
    for context_length, refused in ((length + 1, False), (length, True)):
        model = loaded(context_length=context_length)
        adapter = EngineLM(FakeEngine(model, lambda *_: "fine"), model)
        if refused:
            with pytest.raises(UserError):
                adapter.generate_until([instance()])
        else:
            assert adapter.generate_until([instance()]) == ["fine"]


def test_a_model_without_chat_template_is_refused():
    model = loaded(chat_template=None)
    with pytest.raises(UserError, match="chat template"):
        evaluate(FakeEngine(model, oracle), model, suite("quick"))


def test_a_missing_data_file_names_key_path_and_fix(tmp_path):
    with pytest.raises(UserError) as caught:
        suites.identity(suite("gsm8k", f"suite.data_dir={tmp_path}"))
    message = str(caught.value)
    assert message.startswith("suite.data_dir=")
    assert str(tmp_path / "gsm8k" / "test.jsonl") in message
    assert str(tmp_path / "test.jsonl") in message
    assert "leave suite.data_dir out" in message


@pytest.mark.parametrize(
    ("second_line", "part"),
    [
        ('{"question": "x", "answer"', r"line 2.*valid JSON"),
        ('["question"]', r"line 2.*object"),
        ('{"question": "x"}', r"line 2.*lacks answer"),
    ],
)
def test_malformed_jsonl_names_file_and_line(tmp_path, second_line, part):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"question": "x\u2028y", "answer": "1"}, ensure_ascii=False) + "\n" + second_line + "\n")
    with pytest.raises(UserError, match=part) as caught:
        documents.read_rows(path, ["question", "answer"])
    assert str(path) in str(caught.value)


def test_files_that_are_no_text_or_of_mixed_types(tmp_path):
    (tmp_path / "test.jsonl").write_bytes(b'{"question": "x"}\n{"question": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"test\.jsonl, line 2.*UTF-8"):
        documents.read_rows(tmp_path / "test.jsonl")
    (tmp_path / "test.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "x"}\n')
    assert documents.read_rows(tmp_path / "test.jsonl") == [{"question": "x"}]
    for odd in ('{"question": "b", "answer": 5}', '{"question": "\\ud83d", "answer": "1"}'):
        (tmp_path / "test.jsonl").write_text('{"question": "a", "answer": "1"}\n' + odd + "\n")
        with pytest.raises(UserError, match="answer is a text|one type per field"):
            tasks.build(suite("gsm8k", f"suite.data_dir={tmp_path}"))


def test_other_unusable_files(tmp_path):
    (tmp_path / "test.jsonl").write_text("\n")
    with pytest.raises(UserError, match="empty"):
        documents.read_rows(tmp_path / "test.jsonl")
    (tmp_path / "x.json").write_text('{"rows": []}')
    with pytest.raises(UserError, match="examples"):
        documents.read_rows(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[{},\n{]")
    with pytest.raises(UserError, match=r"x\.json, line 2"):
        documents.read_rows(tmp_path / "x.json")


def test_an_unreachable_hub_points_at_data_dir(monkeypatch):
    seen = {}

    def unreachable(**options):
        seen.update(options)
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UserError, match=r"suite.data_dir=DIR, a folder with test.jsonl"):
        tasks.build(suite("gsm8k"))
    assert seen["path"] == "openai/gsm8k"
    assert seen["revision"].startswith("e53f")
