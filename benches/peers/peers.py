"""Whom the bench compares: how each is installed, started and asked. Versions and hashes are in locks/."""

import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import wire

HERE = Path(__file__).resolve().parent
SMALL = '{"model":"%s","max_tokens":16,"messages":[{"role":"user","content":"Say hello."}]}'
KEY = "sk-" + secrets.token_urlsafe(32)


class Missing(Exception):
    """Why a peer cannot be measured here."""


class Peer:
    """A proxy that listens on a port which it is told, and takes OpenAI's path and any model."""

    name = ""
    path = "/v1/chat/completions"
    model = "gpt-5.2"
    lock = None

    def __init__(self, scratch, wide=False):
        self.wide = wide  # with thresholds so high that nothing is edited
        self.folder = scratch / "installed" / str(self.lock)
        self.python = self.folder / "bin" / "python"

    def install(self):
        """An environment of its own, from wheels whose hashes are known; done once."""
        lock = HERE / "locks" / f"{self.lock}.txt"
        pinned = "".join(line for line in lock.read_text().splitlines(True) if not line.startswith("#"))
        mark, wanted = self.folder / "installed", hashlib.sha256(pinned.encode()).hexdigest()
        if mark.exists() and mark.read_text().startswith(wanted):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", self.folder)
        # The lock is complete, so that pip has nothing to resolve.
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", lock)
        files = (file for file in self.folder.rglob("*") if file.is_file() and not file.is_symlink())
        mark.write_text(f"{wanted} {sum(file.stat().st_size for file in files)}")

    def version(self):
        """As the lock has it."""
        first = (HERE / "locks" / f"{self.lock}.txt").read_text()
        return re.search(rf"^{re.escape(self.package)}==(\S+)", first, re.M)[1]

    def disk(self):
        return int((self.folder / "installed").read_text().split()[1])

    def command(self, port, upstream, home):
        raise NotImplementedError

    def environment(self):
        return {}

    def start(self, upstream, home):
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        return Running(self, port, self.command(port, upstream, home), home)

    def body(self, text):
        return text.replace('"gpt-5.2"', f'"{self.model}"', 1).encode()


class Running:
    """A started peer; `ready` is how long it took until it answered its first request."""

    def __init__(self, peer, port, command, home):
        self.peer, self.port, self.home = peer, port, home
        self.log = home / "log"
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **peer.environment()}
        began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)  # so that all of it can be ended
        RUNNING.append(self)
        self._await(began)
        self.ready = time.monotonic() - began

    def _await(self, began):
        body = (SMALL % self.peer.model).encode()
        while time.monotonic() - began < 120:
            if self.process.poll() is not None:
                break
            if self.port is None:
                self.port = self.peer.port_of(self.log)
            try:
                if self.port and wire.ask(self.port, self.peer.path, body, self.headers()).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.001)
        self.stop()
        said = self.log.read_text(errors="replace").strip().splitlines()
        raise Missing(f"did not start: {said[-1] if said else 'it said nothing'}")

    def headers(self):
        return [f"authorization: Bearer {KEY}"]

    def stop(self, how=signal.SIGKILL):
        if self in RUNNING:
            RUNNING.remove(self)
        for signal_number in (how, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, signal_number)
                self.process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass

    def processes(self):
        """Those of its session, which nobody else has."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.process.pid:
                    yield entry

    def memory(self, line="VmRSS"):
        """Resident bytes of all its processes together; with `VmHWM`, the most that each had."""
        total = 0
        for entry in self.processes():
            found = re.search(rf"{line}:\s+(\d+) kB", (entry / "status").read_text())
            total += int(found[1]) * 1024 if found else 0
        return total

    def forget_peak(self):
        """`VmHWM` begins anew."""
        for entry in self.processes():
            (entry / "clear_refs").write_text("5")

    def move(self, cores):
        """Lets all its threads run on these cores alone."""
        for entry in self.processes():
            for thread in (entry / "task").iterdir():
                try:
                    os.sched_setaffinity(int(thread.name), cores)
                except OSError:
                    pass


RUNNING = []


def stop_all():
    """Ends all that run."""
    for running in list(RUNNING):
        running.stop()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"cannot be installed: {said[-1] if said else command[0]}")
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def configured(name, home, port, upstream):
    """A file of configs/ with this run's places filled in."""
    text = (HERE / "configs" / name).read_text()
    for mark, value in {"@HOME@": home, "@PORT@": port, "@UPSTREAM@": upstream}.items():
        text = text.replace(mark, str(value))
    target = home / name
    target.write_text(text)
    return target


class Nginx(Peer):
    name = "nginx"

    def install(self):
        if not shutil.which("nginx"):
            raise Missing("not installed: apt-get install nginx-light")

    def version(self):
        return subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]

    def disk(self):
        """The files of Debian's packages."""
        listed = subprocess.run(["dpkg", "-L", "nginx", "nginx-common", "nginx-light"], capture_output=True, text=True).stdout
        files = {Path(line) for line in listed.splitlines()}
        return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())

    def command(self, port, upstream, home):
        return ["nginx", "-p", home, "-c", configured("nginx.conf", home, port, upstream)]


class Abridge(Peer):
    name = "abridge"

    def __init__(self, scratch, binary, wide=False):
        super().__init__(scratch, wide)
        self.binary = binary
        self.config = "abridge-wide.toml" if wide else "abridge.toml"

    def install(self):
        pass

    def version(self):
        return run(self.binary, "--version").split()[-1]

    def disk(self):
        return self.binary.stat().st_size

    def command(self, port, upstream, home):
        return [self.binary, "serve", "--config", configured(self.config, home, port, upstream)]


class AbridgeRewrite(Abridge):
    """With something to clear and to cut in every request."""

    name = "abridge-rewrite"

    def __init__(self, scratch, binary, wide=False):
        super().__init__(scratch, binary, wide)
        self.config = "abridge-rewrite.toml"


class LiteLlm(Peer):
    name = package = lock = "litellm"

    def environment(self):
        # Without it, it asks the network for its price list three times before it starts.
        return {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def command(self, port, upstream, home):
        config = configured("litellm.yaml", home, port, upstream)
        return [self.folder / "bin" / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]


class Headroom(Peer):
    """At its defaults, but for its response cache and its limit of 60 requests a minute, under which nothing could be measured.

    To count the tokens of OpenAI's models it wants a vocabulary from the network; those of other models it estimates."""

    name = "headroom"
    model = "llama-3.3-70b"
    package = "headroom-ai"
    lock = "headroom"
    flags = ()

    def environment(self):
        return {"HEADROOM_TELEMETRY": "off", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

    def command(self, port, upstream, home):
        return [self.folder / "bin" / "headroom", "proxy", "--port", str(port), "--openai-api-url",
                f"http://127.0.0.1:{upstream}/v1", "--no-cache", "--no-rate-limit", "--no-subscription-tracking", *self.flags]


class HeadroomPassing(Headroom):
    """With what it calls its passthrough mode."""

    name = "headroom-no-optimize"
    flags = ("--no-optimize",)


class Awecompress(Peer):
    name = package = lock = "awecompress"

    def environment(self):
        return {"AWECOMPRESS_CONFIG_DIR": "."}

    def command(self, port, upstream, home):
        if self.wide:
            (home / "config.json").write_text('{"thresholdTokens": 100000000}')
        return [self.folder / "bin" / "awecompress", "serve", "--port", str(port), "--upstream", f"http://127.0.0.1:{upstream}"]


class ContextGuardian(Peer):
    name = package = lock = "context-guardian"

    def environment(self):
        window = {"GUARDIAN_NUM_CTX": "100000000"} if self.wide else {}
        return {"GUARDIAN_VERSION_CHECK": "0", "GUARDIAN_VERBOSE": "0", **window}

    def command(self, port, upstream, home):
        return ["env", f"GUARDIAN_PORT={port}", f"GUARDIAN_UPSTREAM_URL=http://127.0.0.1:{upstream}/v1",
                self.folder / "bin" / "context-guardian"]


class TensorZero(Peer):
    """It chooses its port itself, and names models its own way."""

    name = package = lock = "tensorzero"
    path = "/openai/v1/chat/completions"
    model = "tensorzero::model_name::bench"

    def start(self, upstream, home):
        home.mkdir(parents=True, exist_ok=True)
        config = configured("tensorzero.toml", home, 0, upstream)
        return Running(self, None, [self.python, HERE / "configs" / "embedded.py", config], home)

    def port_of(self, log):
        found = re.search(r"^http://127\.0\.0\.1:(\d+)/", log.read_text(errors="replace"), re.M)
        return int(found[1]) if found else None
