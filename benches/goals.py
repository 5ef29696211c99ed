#!/usr/bin/env python3
"""Choose the settings of `policy.goal` by cross-validation: each repository of the corpora in turn is left out, the settings
are chosen on the others, and what they do is measured on the one left out.

    benches/goals.py ABRIDGE CORPUS...

For each goal the settings with the least cost are chosen, of those whose faults in 100 answers stay within the goal's bound.
Cost is that with recalls, in percent of no edits, and the mean over repositories; faults are of all answers together.
"""
import itertools, json, pathlib, statistics, subprocess, sys, tempfile

BOUNDS = {"careful": 0.75, "balanced": 1.0, "thrifty": 1.5}
TRIGGERS, KEPT_READS = [50_000, 60_000, 80_000, 100_000, 130_000], [0, 5, 10, 20]
POLICY = """[clear_tool_results]
trigger = [{{ tokens = {trigger} }}, {{ fraction = 0.5 }}]
keep_reads = {reads}
"""


def repositories(corpus):
    """The repository of each transcript, by the name of its file."""
    known = {}
    for listing in ["trajectories.jsonl", "MANIFEST.jsonl", "index.jsonl"]:
        if (corpus / listing).exists():
            for line in (corpus / listing).read_text().splitlines():
                row = json.loads(line)
                known[row["name"]] = (row.get("repo") or row["source"]).split("@")[0]
    return lambda path: known.get(pathlib.Path(path).stem, pathlib.Path(path).stem.split("--")[0])


def played(abridge, corpus, policies):
    """For each transcript its repository, and answers, faults, cost and cost without edits by policy."""
    with tempfile.TemporaryDirectory() as folder:
        command = [abridge, "simulate", corpus, "--limit", "500", "--json"]
        for name, text in policies.items():
            pathlib.Path(folder, f"{name}.toml").write_text(text)
            command += ["--policy", f"{name}.toml"]
        run = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    of = repositories(corpus)
    for transcript in json.loads(run.stdout)["transcripts"]:
        yield of(transcript["name"]), {run["policy"]: run["regret"] for run in transcript["runs"] if run.get("regret")}


def figures(rows, policy):
    """The mean cost over repositories in percent, and the faults and hard faults in 100 answers."""
    by_repository = {}
    for repository, runs in rows:
        by_repository.setdefault(repository, []).append(runs[policy])
    cost = lambda runs: 100 * sum(run["cost_with_recalls"] for run in runs) / sum(run["cost_unedited"] for run in runs)
    runs = [run for runs in by_repository.values() for run in runs]
    per_100 = lambda key: 100 * sum(run[key] for run in runs) / sum(run["answers"] for run in runs)
    return statistics.mean(map(cost, by_repository.values())), per_100("faults"), per_100("hard")


def main(abridge, *corpora):
    policies = {f"{trigger // 1000}k-{reads}": POLICY.format(trigger=trigger, reads=reads)
                for trigger, reads in itertools.product(TRIGGERS, KEPT_READS)}
    rows = [row for corpus in corpora for row in played(pathlib.Path(abridge).resolve(), pathlib.Path(corpus).resolve(), policies)]
    rows = [row for row in rows if len(row[1]) == len(policies) and all(run["cost_unedited"] and run["answers"] for run in row[1].values())]
    repositories = sorted({repository for repository, _ in rows})
    print(len(rows), "transcripts of", len(repositories), "repositories")
    for policy in policies:
        print("%-8s cost %.1f, faults %.2f, hard %.2f" % (policy, *figures(rows, policy)))
    for goal, bound in BOUNDS.items():
        def choose(rows):
            within = {policy: found for policy in policies if (found := figures(rows, policy))[1] <= bound}
            return min(within, key=within.get) if within else None
        folds = []
        for left_out in repositories:
            chosen = choose([row for row in rows if row[0] != left_out])
            if chosen:
                held = [row for row in rows if row[0] == left_out]
                folds.append((chosen, held, figures(held, chosen)))
        names = [chosen for chosen, _, _ in folds]
        n_answers = sum(run["answers"] for chosen, held, _ in folds for run in [row[1][chosen] for row in held])
        faults = 100 * sum(row[1][chosen]["faults"] for chosen, held, _ in folds for row in held) / n_answers
        hard = 100 * sum(row[1][chosen]["hard"] for chosen, held, _ in folds for row in held) / n_answers
        costs = sorted(found[0] for _, _, found in folds)
        print(f"{goal}: all together choose {choose(rows)};", "in folds", {name: names.count(name) for name in set(names)})
        print("  left out: faults %.2f, hard %.2f; cost mean %.1f, from %.1f to %.1f, median %.1f; faults of the worst repository %.2f" % (
            faults, hard, statistics.mean(costs), costs[0], costs[-1], statistics.median(costs), max(found[1] for _, _, found in folds)))


main(*sys.argv[1:])
