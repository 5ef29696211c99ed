#!/usr/bin/env python3
"""Runs the steps of the Dockerfile where there is no Docker engine, as root: scripts/dockerfile.py FOLDER

Each stage is a folder in FOLDER, with a Debian from debootstrap in place of the image it is FROM, and this machine's Rust in
place of the rust image's. COPY, RUN, ENV, WORKDIR and USER are done as Docker does them, as far as this Dockerfile uses them,
and the build sees no more than .dockerignore lets it. At the end, what the image would run is run, as its user, with nothing for an upstream:
its own health check must hold.
"""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

root = pathlib.Path(__file__).resolve().parent.parent
scratch = pathlib.Path(sys.argv[1]).resolve()
rust = {name: os.environ.get(name, str(pathlib.Path.home() / folder)) for name, folder in
        (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup"))}


def run(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, **more)


def instructions():
    text = re.sub(r"\\\n", " ", (root / "Dockerfile").read_text())
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip().split(None, 1)


def context():
    """The files that .dockerignore leaves, of those that git knows or that are new."""
    rules = [line for line in (root / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=root, stdout=subprocess.PIPE)
    for name in listed.stdout.decode().splitlines():
        parents = [name, *map(str, pathlib.PurePath(name).parents)]
        kept = True
        for rule in rules:
            if any(fnmatch.fnmatch(parent, rule.lstrip("!")) for parent in parents if parent != "."):
                kept = rule.startswith("!")
        if kept:
            yield name


class Stage:
    def __init__(self, image, name):
        self.folder = scratch / name
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self.workdir, self.user, self.mounts = "/", "0:0", []
        if not (self.folder / "etc/debian_version").exists():
            suite = re.search(r"(bookworm|trixie)", image)[1]
            packages = ["--include=gcc,libc6-dev,ca-certificates"] if image.startswith("rust:") else []
            run("debootstrap", "--variant=minbase", *packages, suite, self.folder, stdout=subprocess.DEVNULL)
        shutil.copy("/etc/resolv.conf", self.folder / "etc/resolv.conf")
        self.mount("/proc")
        self.mount("/dev")
        if image.startswith("rust:"):
            for variable, path in rust.items():
                self.mount(path)
                self.environment[variable] = path
            self.environment["PATH"] += f":{rust['CARGO_HOME']}/bin"

    def mount(self, path):
        inside = self.inside(path)
        inside.mkdir(parents=True, exist_ok=True)
        run("mount", "--rbind", path, inside)
        run("mount", "--make-rslave", inside)
        self.mounts.append(inside)

    def unmount(self):
        for inside in reversed(self.mounts):
            run("umount", "--recursive", "--lazy", inside)
        self.mounts = []

    def inside(self, path):
        return self.folder / str(path).lstrip("/")

    def command(self, *command):
        script = f"cd {self.workdir} && exec \"$@\""
        return ["chroot", f"--userspec={self.user}", str(self.folder), "/bin/sh", "-c", script, "sh", *command]

    def run(self, text):
        print(f"   RUN {text}", flush=True)
        run(*self.command("/bin/sh", "-c", text), env=self.environment)

    def copy(self, words, stages):
        source = None
        if words[0].startswith("--from="):
            source = stages[words.pop(0).removeprefix("--from=")]
        *names, to = words
        if source:
            target = self.inside(to)
            target.parent.mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copy(source.inside(name), target)
            return
        assert names == ["."], "only COPY . is understood"
        for name in context():
            target = self.inside(self.workdir) / to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target)


def ready(stage, entry):
    """Starts what the image would start, and waits for the health check of the image."""
    settings = {**stage.environment, "ABRIDGE__UPSTREAM__URL": "http://127.0.0.1:9/v1"}
    settings["ABRIDGE__SERVER__LISTEN"] = "127.0.0.1:18787"
    server = subprocess.Popen(stage.command(*entry), env=settings, start_new_session=True)
    try:
        for _ in range(100):
            time.sleep(0.1)
            if subprocess.run(stage.command("abridge", "health"), env=settings).returncode == 0:
                owner = (stage.inside("/var/lib/abridge/store.redb")).stat()
                assert (owner.st_uid, owner.st_mode & 0o777) == (65532, 0o600), owner
                return
        raise SystemExit("the container's health check never held")
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0, "SIGTERM should end it well"


def main():
    stages, stage, entry, command = {}, None, [], []
    try:
        for number, (word, rest) in enumerate(instructions()):
            print(f"{word} {rest if word != 'RUN' else ''}", flush=True)
            match word:
                case "FROM":
                    image, _, name = rest.partition(" AS ")
                    stage = stages[name or f"stage-{number}"] = Stage(image, name or f"stage-{number}")
                case "RUN":
                    stage.run(rest)
                case "COPY":
                    stage.copy(rest.split(), stages)
                case "ENV":
                    name, value = rest.split("=", 1)
                    stage.environment[name] = value
                case "WORKDIR":
                    stage.workdir = rest
                    stage.inside(rest).mkdir(parents=True, exist_ok=True)
                case "USER":
                    stage.user = rest
                case "ENTRYPOINT":
                    entry = json.loads(rest)
                case "CMD":
                    command = json.loads(rest)
                case "EXPOSE" | "HEALTHCHECK" | "STOPSIGNAL" | "VOLUME":
                    pass
                case _:
                    raise SystemExit(f"{word} is not understood")
        ready(stage, entry + command)
    finally:
        for stage in stages.values():
            stage.unmount()
    print("the steps of the Dockerfile hold")


main()
