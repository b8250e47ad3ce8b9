"""Runs the README's requests against the real server and compares what it says they give.

A fenced `sh` block that starts with `curl` is run as it stands, with the server's port put in. If a fenced block of
kind `json` or `text` follows it, that is what it gives: `...` in it stands for anything.
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def requests():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    for index, (kind, code) in enumerate(blocks):
        if kind == "sh" and code.startswith("curl"):
            following = blocks[index + 1] if index + 1 < len(blocks) else ("", "")
            yield code, following[1] if following[0] in ("json", "text") else None


def test_requests_give_what_the_readme_says(server):
    found = list(requests())
    assert len(found) >= 2
    for command, expected in found:
        command = command.replace("http://localhost:8080", server.url)
        run = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert run.returncode == 0, (command, run.stderr)
        if expected is not None:
            squeeze = lambda text: re.sub(r"\s+", "", text)
            assert re.fullmatch(
                ".*?".join(re.escape(squeeze(part)) for part in expected.strip().split("...")),
                squeeze(run.stdout),
                flags=re.DOTALL,
            ), (command, expected, run.stdout)
