//! Rules that no compiler checks: floors, sizes, and documents that agree with the code.
//!
//! Every failure names its file and says what to do. `ARCHITECTURE.md` has the reasons.
#![expect(clippy::expect_used, clippy::panic, reason = "a panic is a test's answer")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/release.rs"]
mod release;
#[path = "tidy/settings.rs"]
mod settings;
#[path = "tidy/supply.rs"]
mod supply;

/// What may know what: a module knows those of lower floors, and on its own floor nothing but its own family, which is
/// `foo.rs` and all in `foo/`.
const FLOORS: [&[&str]; 16] = [
    &["held", "language", "local_address", "names", "raw", "setup_error", "span", "template", "units", "wildcard"],
    &["payload"],
    &["conversation", "handler", "recall", "string_index", "summary", "tokens"],
    &["dialect", "plan"],
    &["draft", "inspect"],
    &["edit"],
    &["planner"],
    // The I/O line: below it nothing waits, and nothing asks the world.
    &["platform"],
    &["body", "events", "gather_writes", "history", "ledger", "metrics", "recording", "roots", "tasks", "telemetry"],
    &["relay", "store", "upstream"],
    &["admin", "engine", "otel", "webhook"],
    &["proxy", "replay", "simulate"],
    &["demo", "server"],
    &["config"],
    &["app", "cli"],
    &["lib", "main"],
];

/// How many floors lie below the I/O line.
const N_PURE: usize = 7;

/// What code below the I/O line has no use for, as paths and as words.
const IMPURE_PATHS: [&str; 11] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "hyper",
    "redb",
    "tokio",
    "tracing",
    "log",
];
const IMPURE_WORDS: [&str; 4] = ["async", "await", "Instant", "SystemTime"];

/// The longest a file may be, in lines.
const MAX_LINES: usize = 500;

/// The sections that the documentation of an edit has.
const EDIT_SECTIONS: [&str; 4] =
    ["# What it does", "# When it acts", "# What the model sees", "# What it never touches"];

/// The most recipes that a person can be asked to know.
const MAX_RECIPES: usize = 21;

// === floors ===

#[test]
fn imports_go_downward() {
    let mut wrong = Wrong::default();
    for file in Source::of("src").iter().filter(|file| file.family() != "lib" && file.family() != "main") {
        let own = file.family();
        let Some(floor) = floor_of(&own) else { continue };
        for path in file.paths() {
            let Some(module) = path.strip_prefix("crate::").and_then(|rest| rest.split("::").next()) else { continue };
            match floor_of(module) {
                Some(other) if module == own || other < floor => {}
                Some(other) => wrong.add(
                    file,
                    &format!(
                        "floor {floor} uses {path} of floor {other}; give it what it needs as an argument, or move it"
                    ),
                ),
                None => {}
            }
        }
        // Each folder is one more `super` away from the root of the crate.
        let depth = file.path.split('/').count() - 2;
        for path in
            file.paths().iter().filter(|path| path.split("::").take_while(|&part| part == "super").count() > depth)
        {
            wrong.add(file, &format!("{path} leaves its family; write crate::"));
        }
    }
    wrong.end();
}

#[test]
fn every_module_has_a_floor() {
    let mut wrong = Wrong::default();
    let files = Source::of("src");
    for file in files.iter().filter(|file| floor_of(&file.family()).is_none()) {
        wrong.add(file, "has no floor; put its module into FLOORS of tests/tidy.rs and into ARCHITECTURE.md");
    }
    let families: BTreeSet<_> = files.iter().map(Source::family).collect();
    for module in FLOORS.iter().copied().flatten().filter(|module| !families.contains(**module)) {
        wrong.push(format!("FLOORS has {module}, but there is no src/{module}.rs; take it out"));
    }
    wrong.end();
}

#[test]
fn the_document_has_the_same_floors() {
    let text = section(&read("ARCHITECTURE.md"), "## Floors");
    let table = text.split("```").nth(1).unwrap_or_default();
    // A number, names, and after them what they are for; without a number, more names of the line above.
    let (mut written, mut at) = (vec![BTreeSet::new(); FLOORS.len()], None);
    for line in table.lines().filter(|line| !line.contains('═')) {
        let (number, names) = line.split_at_checked(4).unwrap_or_default();
        at = number.trim().parse().ok().or(at);
        let Some(floor) = at.and_then(|at: usize| written.get_mut(at)) else { continue };
        let names = names.trim_start().split("  ").next().unwrap_or_default().split(", ");
        floor.extend(names.map(|name| name.trim_end_matches(',')).filter(|name| !name.is_empty()));
    }
    for (n, (written, floor)) in written.iter().zip(FLOORS).enumerate() {
        assert!(written.iter().eq(floor), "floor {n} of ARCHITECTURE.md is not that of tests/tidy.rs: {written:?}");
    }
}

#[test]
fn nothing_below_the_io_line_waits_or_asks_the_world() {
    let mut wrong = Wrong::default();
    for file in Source::of("src").iter().filter(|file| floor_of(&file.family()).is_some_and(|floor| floor < N_PURE)) {
        for path in file.paths() {
            if let Some(impure) = IMPURE_PATHS.iter().find(|impure| is_below(&path, impure)) {
                wrong.add(
                    file,
                    &format!("uses {impure} below the I/O line; return what is to be done, and let the engine do it"),
                );
            }
        }
        for word in IMPURE_WORDS.iter().filter(|word| file.words().any(|found| found == **word)) {
            wrong.add(
                file,
                &format!("says {word} below the I/O line; return what is to be done, and let the engine do it"),
            );
        }
    }
    wrong.end();
}

#[test]
fn edits_do_not_know_each_other() {
    let mut wrong = Wrong::default();
    let edits = edits();
    for file in Source::of("src/edit") {
        let own = file.path.split(['/', '.']).nth(2).unwrap_or_default().to_owned();
        for other in edits.iter().filter(|edit| **edit != own) {
            if file.paths().iter().any(|path| path.split("::").any(|part| part == other)) {
                wrong.add(&file, &format!("knows the edit {other}; what both need belongs into src/draft.rs"));
            }
        }
    }
    wrong.end();
}

// === files ===

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut wrong = Wrong::default();
    for file in ["src", "tests", "benches", "fuzz/src", "fuzz/fuzz_targets"].into_iter().flat_map(Source::of) {
        let n_lines = file.text.lines().count();
        if n_lines > MAX_LINES {
            wrong.add(
                &file,
                &format!("has {n_lines} lines; at most {MAX_LINES}, so part it by what its parts are about"),
            );
        }
        if !file.text.starts_with("//! ") {
            wrong.add(&file, "begins with no `//!`; say in one line what the file is for");
        }
        if file.path.ends_with("/mod.rs") {
            wrong.add(&file, "is a mod.rs; name it after its folder, beside it");
        }
    }
    wrong.end();
}

#[test]
fn no_test_is_switched_off() {
    let mut wrong = Wrong::default();
    let manifest = read("Cargo.toml");
    for folder in ["tests", "benches"] {
        let files = Source::of(folder);
        let is_part = |name: &str| files.iter().any(|file| file.text.contains(&format!("mod {name};")));
        for file in files.iter().filter(|file| file.path.split('/').count() == 2) {
            let name = file.family();
            if !manifest.contains(&format!("name = \"{name}\"")) && !is_part(&name) {
                wrong.add(file, "is never built; give it its entry in Cargo.toml");
            }
        }
    }
    let switch = concat!("#[", "ignore");
    for file in ["src", "tests"].into_iter().flat_map(Source::of).filter(|file| file.text.contains(switch)) {
        wrong.add(&file, "has an ignored test; make it run, or remove it");
    }
    wrong.end();
}

#[test]
fn every_edit_has_docs_a_fixture_a_registry_line_and_rows_in_the_documents() {
    let mut wrong = Wrong::default();
    let planner = read("src/planner.rs");
    let plans: Vec<_> = files_below("fixtures")
        .into_iter()
        .filter(|path| path.ends_with("plan.snap"))
        .map(|path| read(&path))
        .collect();
    for edit in edits() {
        let path = format!("src/edit/{edit}.rs");
        let text = read(&path);
        for section in EDIT_SECTIONS.iter().filter(|section| !text.contains(&format!("//! {section}\n"))) {
            wrong.push(format!("{path}: its module documentation lacks the section `{section}`"));
        }
        let label = match edit.as_str() {
            // It changes no message, so only the plan has a label for it.
            "request_prompt_cache" => "cache",
            _ => text.split_once("LABEL: &").and_then(|(_, rest)| rest.split('"').nth(1)).unwrap_or_default(),
        };
        if !plans.iter().any(|plan| plan.lines().any(|line| line.starts_with(&format!("{label}: ")))) {
            wrong.push(format!("{path}: no plan.snap below fixtures/ has a line `{label}: …`; add a case"));
        }
        if !planner.contains(&format!("EditName::{} =>", camel_case(&edit))) {
            wrong.push(format!("src/planner.rs: no line for {edit}; add it to EditName and Policy::new"));
        }
        for document in ["README.md", "docs/policies.md"] {
            if !read(document).contains(&format!("\n| `{edit}` |")) {
                wrong.push(format!("{document}: no row for {edit} in the table of edits"));
            }
        }
    }
    wrong.end();
}

#[test]
fn recipes_are_few_and_explained() {
    let mut wrong = Wrong::default();
    let text = read("justfile");
    let lines: Vec<_> = text.lines().collect();
    let is_recipe =
        |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(':') && !line.contains(":=");
    let recipes: Vec<_> = (0..lines.len()).filter(|n| lines.get(*n).is_some_and(|line| is_recipe(line))).collect();
    if recipes.len() > MAX_RECIPES {
        wrong.push(format!("justfile: {} recipes, at most {MAX_RECIPES}", recipes.len()));
    }
    for n in recipes
        .into_iter()
        .filter(|n| n.checked_sub(1).and_then(|n| lines.get(n)).is_none_or(|line| !line.starts_with("# ")))
    {
        wrong.push(format!("justfile:{}: no comment above the recipe; say what it does", n + 1));
    }
    wrong.end();
}

// === reading ===

/// One file of Rust.
struct Source {
    /// From the root of the project, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// All files of Rust below a folder; none if there is no such folder.
    fn of(folder: &str) -> Vec<Self> {
        files_below(folder)
            .into_iter()
            .filter(|path| Path::new(path).extension().is_some_and(|extension| extension == "rs"))
            .map(|path| Self::read(&path))
            .collect()
    }

    fn read(path: &str) -> Self {
        Self { text: read(path), path: path.to_owned() }
    }

    /// The module just below the root of the crate that it belongs to.
    fn family(&self) -> String {
        self.path.split('/').nth(1).unwrap_or_default().trim_end_matches(".rs").to_owned()
    }

    /// The lines without comments and without the tests, which may know what they like.
    fn code(&self) -> String {
        if is_test_file(&self.path) {
            return String::new();
        }
        without_comments(self.text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default())
    }

    fn words(&self) -> impl Iterator<Item = String> {
        let words: Vec<_> = self.code().split(|c: char| !is_of_name(c)).map(str::to_owned).collect();
        words.into_iter()
    }

    /// Every path that the file writes out: those of `use`, each name by itself, and those in the middle of code.
    fn paths(&self) -> BTreeSet<String> {
        let code = self.code();
        let mut paths = BTreeSet::new();
        for tree in code.split("use ").skip(1).filter_map(|rest| rest.split_once(';')) {
            flatten("", tree.0, &mut paths);
        }
        let inline = code.split(|c: char| !is_of_name(c) && c != ':').filter(|path| path.contains("::"));
        paths.extend(inline.map(|path| path.trim_matches(':').to_owned()));
        paths
    }
}

/// Takes a tree of `use` apart: `a::{b, c::{d, e}}` into `a::b`, `a::c::d`, `a::c::e`.
fn flatten(prefix: &str, tree: &str, paths: &mut BTreeSet<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        paths.insert(format!("{prefix}{tree}"));
        return;
    };
    let inside = rest.trim_end().trim_end_matches('}');
    let mut level = 0_usize;
    let branches = inside.split(|c| {
        match c {
            '{' => level += 1,
            '}' => level = level.saturating_sub(1),
            _ => {}
        }
        c == ',' && level == 0
    });
    for branch in branches.filter(|branch| !branch.trim().is_empty()) {
        // The closing brace that was trimmed too much does no harm: nothing follows it.
        flatten(&format!("{prefix}{}", head.trim()), branch, paths);
    }
}

fn without_comments(text: &str) -> String {
    text.lines().fold(String::new(), |mut code, line| {
        let line = line.split(" // ").next().filter(|line| !line.trim_start().starts_with("//"));
        let _ = writeln!(code, "{}", line.unwrap_or_default());
        code
    })
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// The names of the edits: a file each.
fn edits() -> Vec<String> {
    let is_edit = |path: &String| path.split('/').count() == 3 && read(path).contains("\nimpl Edit for ");
    let name = |path: String| path.trim_start_matches("src/edit/").trim_end_matches(".rs").to_owned();
    files_below("src/edit").into_iter().filter(is_edit).map(name).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns what stands below a heading, up to the next of its kind.
fn section(text: &str, heading: &str) -> String {
    let below = text.split_once(&format!("\n{heading}\n")).map(|(_, below)| below).unwrap_or_default();
    below.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Returns what stands between back ticks.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

fn camel_case(name: &str) -> String {
    name.split('_')
        .map(|part| {
            part.chars().take(1).map(|c| c.to_ascii_uppercase()).chain(part.chars().skip(1)).collect::<String>()
        })
        .collect()
}

fn absolute(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(absolute(path)).unwrap_or_else(|error| format!("{path} cannot be read: {error}"))
}

/// All files below a folder, as paths from the root of the project, in order.
fn files_below(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(absolute(folder)) else { return Vec::new() };
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("a folder of the project can be listed"))
        .flat_map(|entry| {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() { files_below(&path) } else { vec![path] }
        })
        .collect();
    paths.sort();
    paths
}

/// All faults together, so that one run shows everything that is to be done.
#[derive(Default)]
struct Wrong(BTreeSet<String>);

impl Wrong {
    fn add(&mut self, file: &Source, what: &str) {
        self.push(format!("{}: {what}", file.path));
    }

    fn push(&mut self, line: String) {
        self.0.insert(line);
    }

    #[track_caller]
    fn end(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.into_iter().collect::<Vec<_>>().join("\n"));
    }
}
