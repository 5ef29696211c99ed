#!/usr/bin/env python3
"""Makes the image of the Dockerfile and runs it where there is no Docker engine, as root: scripts/dockerfile.py CONTEXT FOLDER

CONTEXT is what stands in for the stage that builds, as target/image of `scripts/release.sh --bundle` does in a release: static
binaries. The stage that is the image becomes the folder FOLDER: COPY, ENV, WORKDIR and USER are done as Docker does them, as far as
this Dockerfile uses them. Then what the image would run is run in there, as its user, with nothing for an upstream: its own
health check must hold, and the whole must have at most 24 MiB. The stage that builds is not run.
"""

import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

LIMIT = 24 << 20
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]

root = pathlib.Path(__file__).resolve().parent.parent
context, folder = (pathlib.Path(path).resolve() for path in sys.argv[1:3])


def instructions():
    """Those of the last stage."""
    text = (root / "Dockerfile").read_text().partition("\nFROM scratch\n")[2]
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield line.split(None, 1)


class Image:
    def __init__(self):
        # What engines set where an image says nothing.
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.workdir, self.user, self.entry, self.command, self.health = "/", 0, [], [], []

    def inside(self, path):
        return folder / path.lstrip("/")

    def copy(self, words):
        options = dict(word[2:].split("=") for word in words if word.startswith("--"))
        source, to = (word.replace("${TARGETARCH}", ARCH) for word in words if not word.startswith("--"))
        assert options["from"] == "build", "only the stage that builds is known"
        source, target = context / source.lstrip("/"), self.inside(to)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy2(source, target)
            return
        shutil.copytree(source, target)
        owner = int(options["chown"].split(":")[0])
        for path in target.rglob("*"):
            os.chown(path, owner, owner)

    def start(self, command):
        def enter():
            os.chroot(folder)
            os.chdir(self.workdir)
            os.setgroups([])
            os.setgid(self.user)
            os.setuid(self.user)

        settings = {**self.environment, "ABRIDGE__UPSTREAM__URL": "http://127.0.0.1:9/v1"}
        settings["ABRIDGE__SERVER__LISTEN"] = "127.0.0.1:18787"
        return subprocess.Popen(command, env=settings, preexec_fn=enter)

    def ready(self):
        server = self.start(self.entry + self.command)
        try:
            for _ in range(100):
                time.sleep(0.1)
                if self.start(self.health).wait() == 0:
                    owner = self.inside("/var/lib/abridge/store.redb").stat()
                    assert (owner.st_uid, owner.st_mode & 0o777) == (65532, 0o600), owner
                    return
            raise SystemExit("the container's health check never held")
        finally:
            server.terminate()
            assert server.wait(timeout=20) == 0, "SIGTERM should end it well"


def main():
    shutil.rmtree(folder, ignore_errors=True)
    image = Image()
    for word, rest in instructions():
        match word:
            case "COPY":
                image.copy(rest.split())
            case "ENV":
                name, value = rest.split("=", 1)
                image.environment[name] = value
            case "WORKDIR":
                image.workdir = rest
                image.inside(rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = int(rest.split(":")[0])
            case "ENTRYPOINT":
                image.entry = json.loads(rest)
            case "CMD":
                image.command = json.loads(rest)
            case "HEALTHCHECK":
                image.health = json.loads(rest.partition("CMD ")[2])
            case "ARG" | "EXPOSE" | "STOPSIGNAL" | "VOLUME":
                pass
            case _:
                raise SystemExit(f"{word} is not understood")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    image.ready()
    print(f"the image of {size} bytes is ready in its own words")
    if size > LIMIT:
        raise SystemExit(f"it has more than {LIMIT} bytes")


main()
