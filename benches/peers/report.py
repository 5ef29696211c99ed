"""The results as Markdown."""

BEGIN = "<!-- peers: begin (written by benches/peers/run.py) -->"
END = "<!-- peers: end -->"

TITLES = {
    "direct": "direct",
    "abridge": "abridge, nothing to edit",
    "abridge-passed": "abridge, passed through",
    "abridge-rewrite": "abridge, with a rewrite",
    "abridge-rewrite-new": "abridge, with a rewrite, all of it new",
    "headroom-no-optimize": "headroom, `--no-optimize`",
}
ORDER = ["direct", "nginx", "abridge-passed", "abridge", "abridge-rewrite", "abridge-rewrite-new"]
OURS = {"direct", "nginx", *(name for name in TITLES if name.startswith("abridge"))}


def write(path, text):
    old = path.read_text() if path.exists() else f"{BEGIN}\n{END}\n"
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{path} has no place for the tables: {BEGIN}")
    path.write_text(old[: old.index(BEGIN)] + f"{BEGIN}\n\n{text}\n" + old[old.index(END) :])


def markdown(results):
    parts = [heading(results), goals(results)]
    for title in ("11 kB", "401 kB"):
        parts.append(f"### Request of {title}, one after the other\n\n{latency(results['speed']['tables'][title])}")
    parts.append(f"### Requests a second, memory, start, size\n\n{other(results)}")
    parts.append(f"### What is done to an exchange\n\n{fidelity(results['checks'])}")
    missing = [f"- {name}: {peer['missing']}" for name, peer in results["peers"].items() if peer["missing"]]
    if missing:
        parts.append("Not measured, and why:\n\n" + "\n".join(missing))
    return "\n\n".join(parts) + "\n"


def heading(results):
    facts = results["facts"]
    versions = ", ".join(f"{name} {peer['version']}" for name, peer in results["peers"].items() if peer["version"])
    return (
        f"Taken at {facts['when']}, load {facts['load']:.2f} before the run and {facts['load after']:.2f} after it, commit {facts['commit']}, "
        f"{facts['minutes']:.1f} minutes, {facts['seconds']} s for each measurement. "
        f"{facts['cpu']} ({facts['cores']} cores), Linux {facts['kernel']}, Python {facts['python']}; {versions}."
    )


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def ordered(rows):
    return sorted(rows, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def title(name):
    return TITLES.get(name, name)


def latency(rows):
    lines = []
    for name in ordered(rows):
        row = rows[name]
        if row["error"]:
            lines.append([title(name), short(row["error"]), "", "", "", "", ""])
            continue
        ratio = f"{row['to_nginx']:.2f}" if row["to_nginx"] and name not in ("direct", "nginx") else ""
        through = f"{row['bytes'][1] / row['bytes'][0] * 100:.0f} %"
        added = "" if name == "direct" else time(row["added_p50"])
        lines.append([title(name), time(row["p50"]), time(row["p99"]), added, ratio, through, row["requests"]])
    return table(["", "p50", "p99", "added p50", "to nginx's", "of the bytes arrive", "requests"], lines)


def other(results):
    rates, figures = results["speed"]["tables"]["rate"], results["speed"]["figures"]
    lines = []
    for name in ordered({**rates, **figures}):
        rate, figure = rates.get(name), figures.get(name, {})
        disk = results["peers"].get(name, {}).get("disk", 0)
        per_second = "" if not rate else short(rate["error"]) if rate["error"] else f"{rate['per_second']:,.0f}"
        ratio = f"{rate['to_nginx']:.{2 if rate['to_nginx'] > 0.1 else 3}f}" if rate and rate["to_nginx"] and name not in ("direct", "nginx") else ""
        lines.append([
            title(name), per_second, ratio, size(figure.get("idle")), size(figure.get("loaded")),
            f"{figure['ready'] * 1000:,.0f} ms" if "ready" in figure else "", size(disk),
        ])
    return table(["", "requests/s", "to nginx's", "memory idle", "after load", "ready", "on disk"], lines)


def fidelity(cells):
    names = list(cells)
    checked = list(next(iter(cells.values()), {}))
    notes, lines, n_notes = {}, [], 0
    for check in checked:
        line = [check]
        for name in names:
            mark, why = cells[name][check]
            if why:
                n_notes += 1
                notes.setdefault(name, []).append(f"({n_notes}) {why}")
            line.append("ok" if mark == "ok" else f"{mark} ({n_notes})")
        lines.append(line)
    reasons = "\n".join(f"- {name}: {'; '.join(whys)}" for name, whys in notes.items())
    return f"{table(['', *names], lines)}\n\n{reasons}"


def goals(results):
    tables, figures = results["speed"]["tables"], results["speed"]["figures"]
    peers = [name for name in figures if name not in OURS]
    small, large, rate = tables["11 kB"], tables["401 kB"], tables["rate"]
    lines = []

    def goal(what, wanted, found, kept):
        lines.append([what, wanted, found, "kept" if kept else "**missed**"])

    def best(rows, field, least=True):
        known = {name: rows[name][field] for name in peers if name in rows and not rows[name].get("error")}
        name = (min if least else max)(known, key=known.get) if known else None
        return name, known.get(name, 0)

    def whole(row):
        return not row["error"]

    for name, rows, most in (("11 kB", small, 300), ("401 kB", large, 3000)):
        row = rows["abridge-rewrite"]
        goal(f"added p50 at {name}, with a rewrite", f"< {time(most)}", time(row["added_p50"]), whole(row) and row["added_p50"] < most)
        peer, theirs = best(rows, "p50")
        if peer:
            goal(f"p50 at {name}, with a rewrite, to the quickest peer's without", f"< {time(theirs)} ({peer})", time(row["p50"]), whole(row) and row["p50"] < theirs)
    passed, nginx = rate["abridge-passed"], rate.get("nginx", {}).get("per_second", 0)
    ratio = passed["per_second"] / nginx if nginx else 0
    goal("requests/s, passed through", "> 15,000, or 0.6 × nginx", f"{passed['per_second']:,.0f}, {ratio:.2f} ×", passed["per_second"] > 15000 or ratio >= 0.6)
    peer, theirs = best(rate, "per_second", least=False)
    if peer:
        goal("requests/s, nothing to edit, to the quickest peer's", f"> {theirs:,.0f} ({peer})", f"{rate['abridge']['per_second']:,.0f}", rate["abridge"]["per_second"] > theirs)
    for what, name, field, shown in (
        ("memory idle, to the least of a peer's", "abridge", "idle", size),
        ("memory after load, nothing to edit, to the least of a peer's", "abridge", "loaded", size),
        ("memory after load, with a rewrite, to the least of a peer's without", "abridge-rewrite", "loaded", size),
        ("ready, to the quickest peer's", "abridge", "ready", lambda seconds: f"{seconds * 1000:,.0f} ms"),
    ):
        peer, theirs = best(figures, field)
        if peer and name in figures:
            ours = figures[name][field]
            goal(what, f"< {shown(theirs)} ({peer})", shown(ours), ours < theirs)
    cells = results["checks"].get("abridge", {})
    good = sum(mark == "ok" for mark, _ in cells.values())
    goal("checks of what is done to an exchange", f"{len(cells)} of {len(cells)}", good, bool(cells) and good == len(cells))
    return "### Goals\n\n" + table(["", "goal", "found", ""], lines)


def time(micros):
    return f"{micros:.0f} µs" if micros < 1000 else f"{micros / 1000:.2f} ms"


def size(n_bytes):
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes else ""


def short(error):
    return " ".join(error.split())[:90].replace("|", "/")
