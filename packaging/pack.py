#!/usr/bin/env python3
"""Packs abridge for those who have no Rust. It needs Python 3.11, and dpkg-deb for Debian's package.

    packaging/pack.py TRIPLE BINARY DIR     what one platform gets: an archive, a wheel, a package of npm, a .deb
    packaging/pack.py release DIR           from the archives of all platforms in DIR: the launcher of npm, the Homebrew
                                            formula, the Scoop manifest, SHA256SUMS

Every package has the bytes of the one binary that scripts/release.sh has built, and the same input gives the same bytes.
Name, version, description and licence are those of Cargo.toml, and so is the repository; where it names none, that of the
workflow (GITHUB_SERVER_URL, GITHUB_REPOSITORY).
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CRATE = tomllib.loads((ROOT / "Cargo.toml").read_bytes().decode())["package"]
VERSION = CRATE["version"]
REPOSITORY = CRATE.get("repository")
if not REPOSITORY and "GITHUB_REPOSITORY" in os.environ:
    REPOSITORY = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
LICENCES = ["LICENSE", "LICENSE-APACHE", "LICENSE-MIT"]

# Of each platform: npm's names of system, processor and C library; the architecture in tags of wheels; that of Debian.
PLATFORMS = {
    "x86_64-unknown-linux-gnu": ("linux", "x64", "glibc", "x86_64", "amd64"),
    "aarch64-unknown-linux-gnu": ("linux", "arm64", "glibc", "aarch64", "arm64"),
    "x86_64-unknown-linux-musl": ("linux", "x64", "musl", "x86_64", None),
    "aarch64-unknown-linux-musl": ("linux", "arm64", "musl", "aarch64", None),
    "x86_64-apple-darwin": ("darwin", "x64", None, "macosx_10_12_x86_64", None),
    "aarch64-apple-darwin": ("darwin", "arm64", None, "macosx_11_0_arm64", None),
    "x86_64-pc-windows-msvc": ("win32", "x64", None, "win_amd64", None),
}
EPOCH = 315532800  # 1980, where zip begins: packages hold no time of their making
LEVEL = int(os.environ.get("PACK_LEVEL", "9"))  # tests have no time for the best compression


# === containers ===


def pack_zip(path, files):
    """`files` are (name, bytes, mode)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, LEVEL)


def pack_tar(path, files):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, EPOCH
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(tar.getvalue(), LEVEL, mtime=0))


def documents(folder):
    return [(f"{folder}{name}", (ROOT / name).read_bytes(), 0o644) for name in LICENCES]


def as_json(value):
    return (json.dumps(value, indent=2) + "\n").encode()


# === packages ===


def archive(out, triple, binary, program):
    folder = f"abridge-{VERSION}-{triple}/"
    files = [(folder + program, binary, 0o755), *documents(folder)]
    files += [(folder + name, (ROOT / name).read_bytes(), 0o644) for name in ("CHANGELOG.md", "proxy.toml.example")]
    if "windows" in triple:
        pack_zip(out / f"abridge-{VERSION}-{triple}.zip", files)
    else:
        pack_tar(out / f"abridge-{VERSION}-{triple}.tar.gz", files)


def glibc(binary):
    """The version of glibc that a program asks for: the newest one of its symbols."""
    return max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", binary))


def wheel(out, triple, binary, program):
    _, _, libc, machine, _ = PLATFORMS[triple]
    match libc:
        case "glibc":
            platform = f"manylinux_2_{glibc(binary)}_{machine}"
        case "musl":
            # A static program runs with any C library.
            assert b"/lib/ld-musl-" not in binary, "it must be linked statically"
            platform = f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
        case _:
            platform = machine
    name = f"{CRATE['name'].replace('-', '_')}-{VERSION}"
    info = f"{name}.dist-info"
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in platform.split("."))
    metadata = f"""\
Metadata-Version: 2.4
Name: {CRATE["name"]}
Version: {VERSION}
Summary: {CRATE["description"]}
Keywords: {",".join(CRATE["keywords"])}
License-Expression: {CRATE["license"]}
{"".join(f"License-File: {name}{chr(10)}" for name in LICENCES)}\
Requires-Python: >=3.8
{f"Project-URL: Repository, {REPOSITORY}{chr(10)}" if REPOSITORY else ""}\
Description-Content-Type: text/markdown

{(HERE / "README.md").read_bytes().decode()}"""
    files = [
        (f"{name}.data/scripts/{program}", binary, 0o755),
        ("abridge_proxy.py", (HERE / "python/abridge_proxy.py").read_bytes(), 0o644),
        *documents(f"{info}/licenses/"),
        (f"{info}/METADATA", metadata.encode(), 0o644),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: pack.py\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644),
        (f"{info}/entry_points.txt", b"[console_scripts]\nabridge-proxy = abridge_proxy:main\n", 0o644),
    ]
    record = "".join(f"{path},sha256={digest(data)},{len(data)}\n" for path, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    pack_zip(out / f"{name}-py3-none-{platform}.whl", files)


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def npm_name(triple):
    system, processor, libc, *_ = PLATFORMS[triple]
    return f"@abridge-proxy/{system}-{processor}" + ("-musl" if libc == "musl" else "")


def npm_package(out, name, more, files):
    manifest = {"name": name, "version": VERSION, "description": CRATE["description"], "license": CRATE["license"]}
    if REPOSITORY:
        manifest["repository"] = {"type": "git", "url": f"git+{REPOSITORY}.git"}
    files = [("package/package.json", as_json(manifest | more), 0o644), *files, *documents("package/")]
    pack_tar(out / f"{name.lstrip('@').replace('/', '-')}-{VERSION}.tgz", files)


def npm_platform(out, triple, binary, program):
    system, processor, libc, *_ = PLATFORMS[triple]
    fields = {"os": [system], "cpu": [processor], **({"libc": [libc]} if libc else {}), "preferUnplugged": True}
    npm_package(out, npm_name(triple), fields, [(f"package/bin/{program}", binary, 0o755)])


def npm_launcher(out):
    fields = {
        "keywords": CRATE["keywords"],
        "bin": {"abridge-proxy": "launcher.js", "abridge": "launcher.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {npm_name(triple): VERSION for triple in PLATFORMS},
    }
    launcher = ("package/launcher.js", (HERE / "npm/launcher.js").read_bytes(), 0o755)
    readme = ("package/README.md", (HERE / "README.md").read_bytes(), 0o644)
    npm_package(out, CRATE["name"], fields, [launcher, readme])


# Where Debian has the completions of each shell.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/abridge",
    "zsh": "usr/share/zsh/vendor-completions/_abridge",
    "fish": "usr/share/fish/vendor_completions.d/abridge.fish",
}


def written_by(binary, program):
    """The man pages and completions, which the program writes itself where this machine can run it."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, program)
        path.write_bytes(binary)
        path.chmod(0o755)
        pages = pathlib.Path(folder, "man")
        pages.mkdir()
        try:
            subprocess.run([path, "man", pages], check=True)
            scripts = {to: subprocess.run([path, "completions", shell], check=True, stdout=subprocess.PIPE).stdout
                       for shell, to in COMPLETIONS.items()}
        except OSError:
            print("NOT PACKED: man pages and completions, as this machine cannot run the program")
            return []
        manual = [(f"usr/share/man/man1/{page.name}.gz", gzip.compress(page.read_bytes(), 9, mtime=0), 0o644)
                  for page in sorted(pages.iterdir())]
        return manual + [(to, script, 0o644) for to, script in scripts.items()]


def debian(out, triple, binary, program):
    architecture = PLATFORMS[triple][4]
    if not architecture:
        return
    if not shutil.which("dpkg-deb"):
        print("NOT PACKED: there is no dpkg-deb for Debian's package")
        return
    scripts = ("postinst", "prerm", "postrm")
    share = "usr/share/doc/abridge-proxy"
    # The comment at the beginning is about installing by hand.
    unit = (ROOT / "examples/systemd/abridge.service").read_text().partition("\n\n")[2]
    files = [
        (f"usr/bin/{program}", binary, 0o755),
        ("etc/abridge/proxy.toml", (HERE / "debian/proxy.toml").read_bytes(), 0o644),
        ("usr/lib/systemd/system/abridge.service", unit.replace("/usr/local/bin/", "/usr/bin/").encode(), 0o644),
        (f"{share}/examples/proxy.toml.example", (ROOT / "proxy.toml.example").read_bytes(), 0o644),
        (f"{share}/changelog.gz", gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), 9, mtime=0), 0o644),
        (f"{share}/copyright", b"\n".join((ROOT / name).read_bytes() for name in LICENCES), 0o644),
        *written_by(binary, program),
    ]
    control = f"""\
Package: {CRATE["name"]}
Version: {VERSION}
Architecture: {architecture}
Maintainer: the developers of abridge
Depends: libc6 (>= 2.{glibc(binary)}), libgcc-s1
Recommends: ca-certificates
Section: net
Priority: optional
Installed-Size: {sum(len(data) for _, data, _ in files) // 1024}
Description: reverse proxy between LLM agents and models
 {textwrap.fill(CRATE["description"], 78, subsequent_indent=" ")}
"""
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, data, _ in files)
    files += [
        ("DEBIAN/control", control.encode(), 0o644),
        ("DEBIAN/conffiles", b"/etc/abridge/proxy.toml\n", 0o644),
        ("DEBIAN/md5sums", sums.encode(), 0o644),
        *((f"DEBIAN/{name}", (HERE / "debian" / name).read_bytes(), 0o755) for name in scripts),
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for path, data, mode in files:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(mode)
        package = out / f"{CRATE['name']}_{VERSION}_{architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", f"-z{LEVEL}", "--build", folder, package]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})


# === release ===


def render(out, template):
    """Fills a template: `@VERSION@`, `@REPOSITORY@`, and of a platform's archive `@URL:TRIPLE@` and `@SHA256:TRIPLE@`."""

    def fill(place):
        what, _, triple = place[1].partition(":")
        if not triple:
            return {"VERSION": VERSION, "REPOSITORY": REPOSITORY}[what]
        [archive] = [path for path in out.glob(f"abridge-{VERSION}-{triple}.*") if path.suffix in (".gz", ".zip")]
        if what == "URL":
            return f"{REPOSITORY}/releases/download/v{VERSION}/{archive.name}"
        return hashlib.sha256(archive.read_bytes()).hexdigest()

    text = re.sub(r"@([A-Z0-9]+(?::[a-z0-9_-]+)?)@", fill, (HERE / template).read_text())
    (out / template.removesuffix(".in").replace("abridge", CRATE["name"])).write_text(text)


def release(out):
    if not REPOSITORY:
        sys.exit("pack.py: Cargo.toml names no repository, and neither does GITHUB_REPOSITORY; archives are found by it")
    npm_launcher(out)
    for template in ("abridge.rb.in", "abridge.json.in"):
        render(out, template)
    packages = [path for path in sorted(out.iterdir()) if path.name != "SHA256SUMS"]
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in packages)
    (out / "SHA256SUMS").write_text("".join(sums))


def main(arguments):
    match arguments:
        case ["release", out]:
            release(pathlib.Path(out))
        case [triple, binary, out] if triple in PLATFORMS:
            out = pathlib.Path(out)
            out.mkdir(parents=True, exist_ok=True)
            data = pathlib.Path(binary).read_bytes()
            program = "abridge.exe" if "windows" in triple else "abridge"
            for pack in (archive, wheel, npm_platform, debian):
                pack(out, triple, data, program)
        case _:
            sys.exit(f"{__doc__}\nTRIPLE is one of: {' '.join(PLATFORMS)}")


main(sys.argv[1:])
