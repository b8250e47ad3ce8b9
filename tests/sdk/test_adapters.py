"""The five trained adapters of examples/adapters over SmolLM2, all in one batch, held to their predicates.

The prompts are those that training did not see; transformers + peft reach 20 of 20 on each in bf16 (see
engine/tests/fixtures/goldens). The base model reaches 0 of 20 on every predicate.
"""

import concurrent.futures
import json
import pathlib

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "engine/tests/fixtures/goldens/heldout_texts_bf16.json"


def is_json(text):
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and list(value) == ["answer"] and isinstance(value["answer"], str) and value["answer"]


PREDICATES = {
    "caps": lambda text: any(c.isalpha() for c in text) and text == text.upper(),
    "json": is_json,
    "pirate": lambda text: text.lstrip().startswith("Arr"),
    "robot": lambda text: text.startswith("BEEP BOOP."),
    "sentiment": lambda text: text.strip() in ("positive", "negative"),
}


def test_held_out_prompts(client):
    held_out = json.loads(GOLDENS.read_text())
    jobs = [(name, prompt) for name in PREDICATES for prompt in held_out[name]["prompts"]]
    # Interleaved, so that every step of the engine mixes the adapters.
    jobs = [jobs[i::20] for i in range(20)]
    jobs = [job for group in jobs for job in group]

    def answer(job):
        name, prompt = job
        reply = client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=4 if name == "sentiment" else 72,
        )
        assert reply.model == name
        return name, prompt, reply.choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, jobs))
    misses = {name: [] for name in PREDICATES}
    for name, prompt, text in answers:
        if not PREDICATES[name](text):
            misses[name].append((prompt, text))
    print({name: f"{20 - len(missed)}/20" for name, missed in misses.items()})
    # f32 arithmetic over the Q4_1 file is not the bf16 run that set the mark: one answer of twenty may differ.
    assert all(len(missed) <= 1 for missed in misses.values()), misses
