"""lm-eval's command line with our model in it, on the packaged tiny checkpoints."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
import yaml
from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model, model_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate as lm_eval_evaluate
from lm_eval.tasks import TaskManager

import harness.lm_eval
from harness import decode
from harness.errors import UserError
from harness.evaluation import command
from harness.evaluation.command import HarnessLM, make_cell

ROWS = [
    {
        "question": f"Tom has {a} bags of {b} apples. How many apples are there?",
        "answer": str(a * b),
        "choices": [str(a * b), str(a + b)],
        "gold": 0,
    }
    for a, b in ((3, 12), (4, 5), (7, 6))
]
SHARED = {"test_split": "test", "doc_to_text": "{{question}}", "metadata": {"version": 1.0}}
GENERATE = SHARED | {
    "task": "own_generate",
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": [], "max_gen_toks": 24},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHOOSE = SHARED | {
    "task": "own_choice",
    "output_type": "multiple_choice",
    "doc_to_target": "gold",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
MARS = {"method": "mars", "model": "tiny", "tau": 0.9, "block_size": 4}


class Tasks:
    """Built tasks in place of lm-eval's index, which takes 9 s to read."""

    def __init__(self, *configs: dict) -> None:
        rows = {"test": datasets.Dataset.from_list(ROWS)}
        self.tasks = {c["task"]: ConfigurableTask(config=c | {"custom_dataset": lambda **_: rows}) for c in configs}
        self.task_index: dict = {}

    def load(self, _names: list[str]) -> dict:
        return {"tasks": self.tasks, "groups": {}, "group_map": {}}


@pytest.fixture
def registered():
    assert "harness" not in model_registry, "importing harness.lm_eval must register nothing"
    command.register()
    command.register()  # harmless when repeated
    yield
    model_registry._objs.pop("harness")
    HarnessLM.latest = None


def create(settings: dict, **flags) -> HarnessLM:
    return HarnessLM.create_from_arg_obj(settings, {"batch_size": 1, "max_batch_size": None, "device": "cpu"} | flags)


# The model


def test_lm_eval_runs_both_kinds_of_task_and_its_results_have_our_counts(registered, monkeypatch):
    monkeypatch.setattr("lm_eval.evaluator._log_selected_tasks", lambda *_: None)
    results = simple_evaluate(
        "harness", "method=mars,model=tiny,tau=0.9,block_size=4", ["own_generate", "own_choice"],
        task_manager=Tasks(GENERATE, CHOOSE), batch_size="2", device="cuda:0", limit=2, apply_chat_template=True,
        bootstrap_iters=0,
    )  # fmt: skip
    lm = HarnessLM.latest
    assert lm._batch_size == lm._engine.batch_size == 2
    found = results["config"]["harness"]
    assert found["identity"]["method"]["axes"] == {**lm.identity["method"]["axes"], "tau": 0.9, "block_size": 4}
    answers = decode(
        "tiny", "mars", [row["question"] for row in ROWS[:2]], tau=0.9, block_size=4, max_new_tokens=24, device="cpu"
    )
    samples = results["samples"]["own_generate"]
    assert [sample["resps"][0][0] for sample in samples] == [answer.text for answer in answers]
    tokens, forwards = (sum(getattr(a.stats, n) for a in answers) for n in ("new_tokens", "target_forwards"))
    cut = sum(answer.stats.finish_reason == "length" for answer in answers)
    assert found["tasks"]["own_generate"] == found["all"] | {"documents": 2} == {
        "documents": 2, "generated": 2, "new_tokens": tokens, "target_forwards": forwards,
        "tokens_per_forward": tokens / forwards, "mean_tokens": tokens / 2, "cut_share": cut / 2,
    }  # fmt: skip
    assert tokens > forwards
    assert found["tasks"]["own_choice"]["tokens_per_forward"] is None
    assert found["all"]["documents"] == 4
    assert json.loads(json.dumps(found)) == found
    assert results["results"]["own_choice"]["acc,none"] in (0, 0.5, 1)


def test_every_key_of_the_main_command_reaches_the_cell():
    settings = {
        "method": "speculative", "model": "tiny", "method.num_drafts": 3, "cache": "block", "cache_block": 8,
        "temperature": 0.5, "seed": 7, "dtype": "float64", "alignment": None, "train_on_demand": False,
    }  # fmt: skip
    cell = make_cell(settings, "3", "cpu")
    for key in ("cache", "cache_block", "temperature", "seed", "dtype", "alignment", "train_on_demand"):
        assert cell.cfg[key] == settings[key]
    assert (cell.cfg.method.name, cell.cfg.method.num_drafts) == ("speculative", 3)
    assert (cell.cfg.batch_size, cell.cfg.device) == (3, "cpu")


@pytest.mark.parametrize("text", ["/tmp/it's a (new) dir", "/tmp/a,b=c", "a b"])
def test_any_path_is_a_value(text):
    with pytest.raises(UserError) as caught:
        make_cell({"model": "local", "model.path": text})
    assert (caught.value.key, caught.value.value) == ("model.path", text)


def test_the_device_that_nobody_asked_for_is_one_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert make_cell(MARS, device="cuda:0").cfg.device == "auto"  # lm-eval's default
    assert make_cell(MARS, device=None).cfg.device == "auto"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert make_cell(MARS, device="cuda:0").cfg.device == "cuda:0"


@pytest.mark.parametrize(
    ("settings", "flags", "message"),
    [
        ({"tua": 0.9}, {}, "tua='0.9': no such key\n  fix: did you mean tau=0.9?"),
        ({"method": "mras"}, {}, "fix: method=mars"),
        ({"tau": 7}, {}, "tau=7"),
        ({"tau": "high"}, {}, "tau='high': a number"),
        ({"method": "jacobi", "method.tau": 1}, {}, "no such key"),
        ({"temperature": 0.7, "method": "mars", "tau": 0.9}, {}, "temperature"),
        ({}, {"batch_size": "auto"}, "--batch_size='auto': a whole number"),
        ({}, {"batch_size": "auto:4"}, "--batch_size='auto:4'"),
        ({"batch_size": 4}, {}, "batch_size=4: lm-eval has a flag for it: --batch_size"),
        ({"suite.limit": 4}, {}, "suite.limit=4: lm-eval's own flags"),
        ({"dry_run": True}, {}, "dry_run=True: only"),
    ],
)
def test_mistakes_are_told_as_the_main_command_tells_them(settings, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        create(settings, **flags)


def test_several_ranks_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE='2': 1: every rank"):
        create(MARS)


def test_lm_evals_cache_of_answers_is_refused(registered, monkeypatch, tmp_path):
    monkeypatch.setattr("lm_eval.evaluator._log_selected_tasks", lambda *_: None)
    with pytest.raises(UserError, match=r"--use_cache.*mix up methods"):
        simple_evaluate("harness", MARS, ["own_generate"], task_manager=Tasks(GENERATE), use_cache=str(tmp_path / "c"))


def test_a_plain_prompt_gets_the_tokenizers_own_special_tokens(monkeypatch):
    lm = create(MARS)
    tokenizer = SimpleNamespace(bos_token_id=1, eos_token_id=2, decode=lambda _: "<s>")
    monkeypatch.setattr(lm, "tokenizer", tokenizer)
    monkeypatch.setattr("harness.evaluation.lm.encode_plain", lambda _, text: [1, len(text)])
    monkeypatch.setattr("harness.evaluation.lm.encode_rendered", lambda _, text: [len(text)])
    assert lm._prompt_ids("plain") == [1, 5]
    assert lm._prompt_ids("<s>rendered") == [11]


def test_the_limit_of_an_answer_is_the_tasks_or_the_users():
    lm = create(MARS | {"method": "ar_sft"})
    lm_eval_evaluate(lm=lm, task_dict=Tasks(GENERATE | {"generation_kwargs": {"max_gen_toks": 3}}).load([]), limit=1)
    assert lm.rows["own_generate", 0]["new_tokens"] == 3


# Counts


def row(task: str, tokens: int, forwards: int, reason: str) -> dict:
    return {"task": task, "new_tokens": tokens, "target_forwards": forwards, "finish_reason": reason, "text": "secret"}


ROWS_OF_TASKS = [
    row("a", 10, 2, "eos"),
    row("a", 2, 2, "length"),
    row("b", 8, 8, "context"),
    row("b", 0, 0, "scored"),
    row("c", 0, 0, "scored"),
]


def test_ratios_are_of_sums_over_what_was_generated():
    found = command.summarise(ROWS_OF_TASKS)
    assert [found["tasks"][t]["tokens_per_forward"] for t in "abc"] == [3.0, 1.0, None]
    assert found["all"]["tokens_per_forward"] == 20 / 12
    assert (found["all"]["documents"], found["all"]["generated"]) == (5, 3)
    assert (found["all"]["mean_tokens"], found["all"]["cut_share"]) == (20 / 3, 2 / 3)
    assert (found["tasks"]["b"]["mean_tokens"], found["tasks"]["b"]["cut_share"]) == (8, 1)


def test_the_table():
    assert command.table(command.summarise(ROWS_OF_TASKS)).splitlines() == [
        "|Tasks|documents|tokens/forward|tokens/answer|cut at the limit|",
        "|-----|--------:|-------------:|------------:|---------------:|",
        "|a    |        2|          3.00|          6.0|           50.0%|",
        "|b    |        2|          1.00|          8.0|          100.0%|",
        "|c    |        1|              |             |                |",
        "|all  |        5|          1.67|          6.7|           66.7%|",
    ]
    assert len(command.table(command.summarise(ROWS_OF_TASKS[:2])).splitlines()) == 3


@pytest.mark.parametrize(("output", "results"), [("out", "out/tiny/results_{}.json"), ("out/x.json", "out/x_{}.json")])
def test_documents_lie_beside_the_results_of_this_run(tmp_path, output, results):
    for age, date in ((1, "2026-01-02T03-04-05.000007"), (9, "2026-01-02T03-04-06.000008")):
        path = tmp_path / results.format(date)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        os.utime(path, (1e9 - age, 1e9 - age))
    path = command.write_documents(ROWS_OF_TASKS, str(tmp_path / output), with_texts=False)
    assert path == (tmp_path / results).with_name("harness_documents_2026-01-02T03-04-05.000007.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{k: v for k, v in one.items() if k != "text"} for one in ROWS_OF_TASKS]
    command.write_documents(ROWS_OF_TASKS, str(tmp_path / output), with_texts=True)
    assert path.read_text().count("secret") == 5


# The command


@pytest.fixture
def command_line(monkeypatch):
    """Runs main in this process, without lm-eval's lasting logging set-up."""
    monkeypatch.setattr(command, "setup_logging", lambda: None)

    def main(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["harness.lm_eval", *arguments])
        return harness.lm_eval.main()

    yield main
    model_registry._objs.pop("harness", None)
    HarnessLM.latest = None
    logging.getLogger("lm_eval").setLevel(logging.NOTSET)


def test_a_mistake_is_one_message_before_lm_eval_reads_its_tasks(command_line, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("lm_eval.tasks.TaskManager.__init__", lambda *_, **__: pytest.fail("the index was read"))
    assert command_line("run", "--model", "harness", "--model_args", "method=mras", "--tasks", "x") == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("error: method='mras': one of")) == ("", True)
    assert "Traceback" not in err
    assert command_line("run", "--model", "harness", "--model_args", "tracking=none", "--tasks", "x") == 2
    assert "--wandb_args" in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"model": "harness", "model_args": {"tua": 1}, "tasks": ["x"]}))
    assert command_line("--config", str(tmp_path / "c.yaml")) == 2  # and without "run", as lm-eval takes it
    assert "did you mean tau=1?" in capsys.readouterr().err


def test_help_says_what_the_model_takes(command_line, capsys):
    with pytest.raises(SystemExit):
        command_line("run", "--help")
    out = capsys.readouterr().out
    assert "--gen_kwargs max_gen_toks=256" in out
    assert "# Basic evaluation with HuggingFace model" in out  # lm-eval's own


def test_other_models_stay_as_they_are(registered):
    assert get_model("dummy").__name__ == "DummyLM"
    with pytest.raises(ValueError, match="no model for this name"):
        get_model("harnes")


def arguments(folder: Path, *more: str) -> list[str]:
    """A run of two tasks of a user's own, which lie in the folder with their data."""
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    for config in (GENERATE, CHOOSE):
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{config['task']}.yaml").write_text(yaml.safe_dump(config | source))
    return [
        "run", "--model", "harness", "--model_args", "method=mars,model=tiny,tau=0.9,block_size=4",
        "--tasks", "own_generate,own_choice", "--include_path", str(folder), "--apply_chat_template", "--limit", "2",
        "--output_path", str(folder / "out"), *more,
    ]  # fmt: skip


def check(folder: Path, out: str, with_texts: bool) -> None:
    """Our table after lm-eval's, and the files."""
    assert 0 < out.index("|own_generate|      1|") < out.index("|own_generate|        2|")
    [results] = (folder / "out" / "tiny").glob("results_*.json")
    counts = json.loads(results.read_text())["config"]["harness"]
    [documents] = (folder / "out" / "tiny").glob("harness_documents_*.jsonl")
    rows = [json.loads(line) for line in documents.read_text().splitlines()]
    assert sum(one["new_tokens"] for one in rows) == counts["all"]["new_tokens"] > 0
    assert [one["task"] for one in rows] == ["own_generate"] * 2 + ["own_choice"] * 2
    assert [("text" in one) for one in rows] == [with_texts] * 4


@pytest.mark.parametrize("more", [(), ("--log_samples",)])
def test_a_run_from_flags_to_files(command_line, monkeypatch, capsys, tmp_path, more):
    monkeypatch.setattr(
        "lm_eval.tasks.TaskManager.__init__", partialmethod(TaskManager.__init__, include_defaults=False)
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert command_line(*arguments(tmp_path, *more)) == 0
    check(tmp_path, capsys.readouterr().out, with_texts=bool(more))


@pytest.mark.parametrize("in_file", [False, True])
def test_chosen_documents_keep_their_numbers(command_line, monkeypatch, capsys, tmp_path, in_file):
    monkeypatch.setattr(
        "lm_eval.tasks.TaskManager.__init__", partialmethod(TaskManager.__init__, include_defaults=False)
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    chosen = {"own_generate": [2, 0, 2], "own_choice": [1]}
    line = [one for one in arguments(tmp_path, "--log_samples") if one not in ("--limit", "2")]
    if in_file:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"samples": chosen}))
    more = ("--config", str(tmp_path / "c.yaml")) if in_file else ("--samples", json.dumps(chosen))
    assert command_line(*line, *more) == 0
    for task, numbers in (("own_generate", [0, 2]), ("own_choice", [1])):
        [samples] = (tmp_path / "out" / "tiny").glob(f"samples_{task}_*.jsonl")
        theirs = [json.loads(one) for one in samples.read_text().splitlines()]
        assert [(one["doc_id"], one["doc"]) for one in theirs] == [(i, ROWS[i]) for i in numbers]
        [documents] = (tmp_path / "out" / "tiny").glob("harness_documents_*.jsonl")
        ours = [one for one in map(json.loads, documents.read_text().splitlines()) if one["task"] == task]
        assert [(one["doc_id"], one["prompt_hash"]) for one in ours] == [
            (one["doc_id"], one["prompt_hash"]) for one in theirs
        ]


def test_a_second_run_in_one_process_tells_nothing_of_the_first(command_line, monkeypatch, capsys):
    monkeypatch.setattr(HarnessLM, "latest", SimpleNamespace(rows={("t", 0): {}}))
    monkeypatch.setattr(command.HarnessCLI, "execute", lambda *_: None)
    assert command_line("run", "--model", "dummy", "--tasks", "x") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_command_in_a_process_of_its_own(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "harness.lm_eval", *arguments(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1",
                          "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    check(tmp_path, found.stdout, with_texts=False)


@pytest.mark.parametrize(
    ("failure", "part"),
    [
        (ValueError("Tasks not found: ['nonesuch']"), "Tasks not found.*lm-eval ls tasks"),
        (ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nlong"), "Couldn't reach.*suite.data_dir=DIR"),
    ],
)
def test_what_lm_eval_cannot_find_is_one_message(failure, part):
    class Cli:
        def execute(self, args):
            raise failure

    with pytest.raises(UserError, match=f"(?s)--tasks=.*{part}"):
        command._execute(Cli(), SimpleNamespace(tasks=["nonesuch"]))


def test_other_failures_of_lm_eval_keep_their_traceback():
    class Cli:
        def execute(self, args):
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        command._execute(Cli(), SimpleNamespace(tasks=["x"]))
