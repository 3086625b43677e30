"""Invented rows in upstream's own file formats: a ``suite.data_dir`` for the six benchmarks without their data."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from evaluation_fakes import suite

from harness.evaluation import documents
from harness.evaluation.suites import SuiteConfig

SHARED = Path(__file__).parents[2] / "shared" / "data"
HAS_SHARED = (SHARED / "bbh").is_dir()

GSM8K = [
    ("Ann has 3 bags of 4 pears. How many pears?", "3 * 4 = <<3*4=12>>12 pears.\n#### 12"),
    ("A ship carries 1,000 boxes and loads 250 more. How many?", "It has 1,250.\n#### 1,250"),
    ("Bo owes 7 dollars and pays 9. How much is left to pay?", "7 - 9 = -2.\n#### -2"),
]
IFEVAL = [
    ("Write about tea. Do not use commas.", ["punctuation:no_comma"], [{}], "Tea is fine. It warms us."),
    (
        "Write at least 3 sentences, and mention 'river' twice.",
        ["length_constraints:number_sentences", "keywords:frequency"],
        [{"relation": "at least", "num_sentences": 3}, {"relation": "at least", "keyword": "river", "frequency": 2}],
        "The river runs. A river bends. It ends.",
    ),
    ("Answer in all lowercase English.", ["change_case:english_lowercase"], [{}], "this is said quietly in english."),
]
MMLU_PRO_SUBJECTS = (
    "biology", "business", "chemistry", "computer science", "economics", "engineering", "health", "history", "law",
    "math", "other", "philosophy", "physics", "psychology",
)  # fmt: skip
ROWS_PER_SUBTASK = 2


def gpqa_row(i: int) -> dict[str, str]:
    """Upstream's columns (some of them), with text that must not show anywhere."""
    return {
        "Pre-Revision Question": "",
        "Question": f"SECRETQUESTION {i}: which of these, with a comma,\nand a line break?",
        "Correct Answer": f"SECRETANSWER right {i}",
        "Incorrect Answer 1": f"SECRETANSWER wrong {i} a",
        "Incorrect Answer 2": f"SECRETANSWER wrong {i} b [title] c",
        "Incorrect Answer 3": f'SECRETANSWER wrong {i} "d"',
        "Record ID": f"rec{i}",
    }


def write_benchmarks(folder: Path, *, real: bool = False) -> Path:
    """All five benchmarks that come as files, and nltk's punkt_tab where it is known to be; returns ``folder``.

    Args:
        real: upstream's own files where they are at hand, the invented ones otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if HAS_SHARED:
        (folder / "nltk_data").symlink_to(SHARED / "nltk_data")
    if real and HAS_SHARED:
        for name in ("gsm8k", "bbh", "ifeval"):
            (folder / name).symlink_to(SHARED / name)
    else:
        _lines(folder / "gsm8k/test.jsonl", [{"question": q, "answer": a} for q, a in GSM8K])
        names = ("prompt", "instruction_id_list", "kwargs")
        _lines(
            folder / "ifeval/input_data.jsonl",
            [{"key": i} | dict(zip(names, row, strict=False)) for i, row in enumerate(IFEVAL)],
        )
        for subtask in suite("bbh").protocol["bbh"].subtasks:
            rows = [{"input": f"{subtask} question {i}", "target": f"({'ABC'[i]})"} for i in range(ROWS_PER_SUBTASK)]
            path = folder / "bbh" / f"{subtask}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"canary": "x", "examples": rows}), encoding="utf-8")
    _lines(folder / "mmlu_pro/test.jsonl", [mmlu_pro_row(s, i) for i in range(2) for s in MMLU_PRO_SUBJECTS])
    path = folder / "gpqa/gpqa_main.csv"
    path.parent.mkdir()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(gpqa_row(0)))
        writer.writeheader()
        writer.writerows(gpqa_row(i) for i in range(4))
    return folder


def mmlu_pro_row(subject: str, i: int) -> dict[str, Any]:
    """A row of MMLU-Pro's test split."""
    options = [f"{subject} option {j}" for j in range(10 if i else 4)]
    return {
        "question_id": 100 * i + len(subject), "question": f"Which is right in {subject}, {i}?", "options": options,
        "answer": "ABCD"[i + 1], "answer_index": i + 1, "cot_content": "", "category": subject, "src": "invented",
    }  # fmt: skip


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + os.linesep for row in rows), encoding="utf-8")


def reference_answers(config: SuiteConfig) -> dict[tuple[str, int], str]:
    """What a model that knows the references says, by (lm-eval's task name, document)."""
    from harness.evaluation import tasks
    from harness.evaluation.quiet import quiet

    with quiet():
        built = tasks.build(config)
    spoken = {prompt: answer for prompt, _, _, answer in IFEVAL}
    answers: dict[tuple[str, int], str] = {}
    for name, one in built.items():
        for i, doc in enumerate(one.task.eval_docs):
            if one.group == "gsm8k_cot":
                text = f"{doc['answer']}\nThe answer is {doc['answer'].split('#### ')[1]}."
            elif one.group == "bbh":
                text = f"So the answer is {doc['target']}."
            elif one.group == "mmlu_pro":
                text = f"Let me see. The answer is ({doc['answer']})."
            elif one.group == "gpqa_main_cot_zeroshot":
                text = f"It must be so. The answer is {doc['answer']}."
            elif one.group == "humaneval_instruct":
                text = doc["canonical_solution"] + "```"
            else:
                text = spoken.get(doc.get("prompt"), "Fine.")
            answers[name, i] = text
    return answers


def cut(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string in it, as an engine leaves it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


__all__ = ["HAS_SHARED", "SHARED", "cut", "documents", "gpqa_row", "reference_answers", "write_benchmarks"]
