"""Starts the real `heddle` binary, as a user would, and hands out `openai` clients for it.

HEDDLE_BIN names the binary; it is otherwise taken from target/release. The model is kept in target/model-cache. Nothing is mocked: the model is SmolLM2-135M
as `heddle serve` gets it by itself, with the adapters of the repository's heddle.toml.
"""

import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("HEDDLE_BIN", str(ROOT / "target" / "release" / "heddle"))


class Server:
    """One running heddle."""

    def __init__(self, tmp, *arguments, config=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tmp / f"heddle-{self.port}.log"
        arguments = ["serve", *arguments, "--port", str(self.port)]
        if config:
            (tmp / "heddle.toml").write_text(config)
            arguments += ["--config", str(tmp / "heddle.toml")]
        environment = dict(
            os.environ,
            HEDDLE_SERVER__STATE_DIR=str(tmp / "state"),
            HEDDLE_SOURCES__CACHE=str(ROOT / "target" / "model-cache"),
            HEDDLE_ADMIN__LISTEN="off",
        )
        self.process = subprocess.Popen(
            [BINARY, *arguments], cwd=ROOT, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT
        )
        self.url = f"http://127.0.0.1:{self.port}"
        self.wait_ready(600)

    def wait_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"heddle ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=2).read()
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"heddle was not ready in {seconds} s:\n{self.log.read_text()}")

    def client(self, key="unused"):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=300)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The default server: no arguments, the repository's heddle.toml."""
    running = Server(tmp_path_factory.mktemp("default"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def secured(tmp_path_factory):
    """The embedded model behind a table of tokens. The digest is SHA-256 of `sesame`."""
    config = """
[plugins.slots.auth]
component = "auth-token"
[plugins.slots.auth.config]
mode = "tokens"
[[plugins.slots.auth.config.tokens]]
sha256 = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272"
subject = "tester"
tenant = "tests"
adapters = ["caps"]
"""
    running = Server(tmp_path_factory.mktemp("secured"), "pocket", config=config)
    yield running
    running.stop()
