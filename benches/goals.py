#!/usr/bin/env python3
"""Choose the settings of `policy.goal` by cross-validation: each repository of the corpora in turn is left out, the settings
are chosen on the others, and what they do is measured on the one left out.

    benches/goals.py ABRIDGE CORPUS...

For each goal the settings with the least cost are chosen, of those whose faults in 100 answers stay within the goal's bound.
Cost is that with recalls, in percent of no edits, and the mean over repositories; faults are of all answers together.
"""
import collections, itertools, json, pathlib, statistics, subprocess, sys, tempfile

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


def figures(runs):
    """Of runs with their repositories: the cost of each repository in percent, and its faults in 100 answers; those of all."""
    by_repository = {}
    for repository, run in runs:
        by_repository.setdefault(repository, []).append(run)
    total = lambda runs, key: sum(run[key] for run in runs)
    costs = [100 * total(runs, "cost_with_recalls") / total(runs, "cost_unedited") for runs in by_repository.values()]
    per_100 = lambda runs, key: 100 * total(runs, key) / total(runs, "answers")
    everything = [run for _, run in runs]
    worst = max(per_100(runs, "faults") for runs in by_repository.values())
    return costs, per_100(everything, "faults"), per_100(everything, "hard"), worst


def choose(rows, policies, bound):
    """The policy with the least mean cost, of those within the bound; None if there is none."""
    found = {policy: figures([(repository, runs[policy]) for repository, runs in rows]) for policy in policies}
    within = [policy for policy in policies if found[policy][1] <= bound]
    return min(within, key=lambda policy: statistics.mean(found[policy][0]), default=None)


def main(abridge, *corpora):
    policies = {f"{trigger // 1000}k-{reads}": POLICY.format(trigger=trigger, reads=reads)
                for trigger, reads in itertools.product(TRIGGERS, KEPT_READS)}
    rows = [row for corpus in corpora for row in played(pathlib.Path(abridge).resolve(), pathlib.Path(corpus).resolve(), policies)]
    rows = [row for row in rows if len(row[1]) == len(policies) and all(run["cost_unedited"] and run["answers"] for run in row[1].values())]
    repositories = sorted({repository for repository, _ in rows})
    print(len(rows), "transcripts of", len(repositories), "repositories")
    for policy in policies:
        costs, faults, hard, _ = figures([(repository, runs[policy]) for repository, runs in rows])
        print(f"{policy:8} cost {statistics.mean(costs):.1f}, faults {faults:.2f}, hard {hard:.2f}")
    for goal, bound in BOUNDS.items():
        chosen = {one: choose([row for row in rows if row[0] != one], policies, bound) for one in repositories}
        left_out = [(repository, runs[chosen[repository]]) for repository, runs in rows if chosen[repository]]
        costs, faults, hard, worst = figures(left_out)
        print(f"{goal}: all together choose {choose(rows, policies, bound)}; in folds {dict(collections.Counter(chosen.values()))}")
        print(f"  left out: faults {faults:.2f}, hard {hard:.2f}, of the worst repository {worst:.2f}; cost {min(costs):.1f} to "
              f"{max(costs):.1f}, mean {statistics.mean(costs):.1f}, median {statistics.median(costs):.1f}")


main(*sys.argv[1:])
