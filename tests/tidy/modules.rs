//! What modules know of each other inside one room, and what the core knows of wire formats.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, Wrong, is_of_name, without_comments};

/// Field names of Chat Completions that mean nothing else.
const CHAT_NAMES: [&str; 8] = [
    "tool_calls",
    "tool_call_id",
    "choices",
    "finish_reason",
    "prompt_tokens",
    "function_call",
    "response_format",
    "max_completion_tokens",
];

/// Where such names may stand outside `src/dialect/`: the file, the name and the reason.
const CHAT_NAMES_MAY_STAND: [(&str, &str, &str); 3] = [
    ("src/edit/patch_tool_calls.rs", "tool_call_id", "the placeholder of a setting"),
    ("src/edit/summarize/answer.rs", "tool_calls", "what models write into a text when they call a tool there"),
    ("src/edit/summarize/answer.rs", "function_call", "the same"),
];

/// Conditions of compilation that ask for the system.
const SYSTEMS: [&str; 6] = ["unix", "windows", "target_os", "target_family", "target_env", "target_vendor"];

/// What only some systems have: parts of libraries, and files.
const OF_ONE_SYSTEM: [&str; 8] = [
    "std::os",
    "rustix",
    "tokio::signal",
    "signal::unix",
    "UnixListener::bind",
    "UnixStream::connect",
    "\"/proc/",
    "\"/dev/",
];

/// For each folder, which of its modules imports which other one.
type Imports = BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>>;

#[test]
fn modules_of_one_folder_import_each_other_in_one_direction() {
    let files = Source::of("src");
    let modules: BTreeSet<Vec<String>> = files.iter().map(module).collect();
    let mut imports = Imports::new();
    for file in &files {
        let own = module(file);
        for target in file.paths().iter().filter_map(|path| resolved(path, &own)) {
            let n_common = own.iter().zip(&target).take_while(|(one, other)| one == other).count();
            let (Some(from), Some(to)) = (own.get(n_common), target.get(n_common)) else { continue };
            let Some(is_module) = target.get(..=n_common).map(|module| modules.contains(module)) else { continue };
            if n_common > 0 && is_module {
                let folder = imports.entry(own[..n_common].to_vec()).or_default();
                folder.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    let mut wrong = Wrong::default();
    for (folder, imports) in &imports {
        for name in imports.keys().filter(|name| reaches(imports, name, name)) {
            let through: Vec<_> = imports[name].iter().filter(|next| reaches(imports, next, name)).collect();
            wrong.push(format!(
                "src/{}/{name}.rs imports itself through {through:?}; give each pair of modules one direction",
                folder.join("/")
            ));
        }
    }
    wrong.end();
}

#[test]
fn names_of_chat_completions_stand_in_its_dialect_alone() {
    let mut wrong = Wrong::default();
    for file in Source::of("src").iter().filter(|file| !matches!(file.family().as_str(), "dialect" | "demo")) {
        for name in CHAT_NAMES {
            let may = CHAT_NAMES_MAY_STAND.iter().any(|(path, may, _)| *path == file.path && *may == name);
            if !may && file.words().any(|word| word == name) {
                wrong.add(file, &format!("says {name}, a field of Chat Completions; only a dialect knows field names"));
            }
        }
    }
    wrong.end();
}

#[test]
fn what_differs_between_systems_stands_in_platform_alone() {
    let mut wrong = Wrong::default();
    // Tests as well: those of the library run on every system.
    for file in Source::of("src").iter().filter(|file| file.family() != "platform") {
        let code = without_comments(&file.text);
        let conditions = code.split("cfg").skip(1).filter(|rest| rest.starts_with(['(', '!', '_']));
        for condition in conditions.filter_map(|rest| rest.split([']', '{', ';']).next()) {
            if let Some(system) = condition.split(|c| !is_of_name(c)).find(|word| SYSTEMS.contains(word)) {
                wrong.add(file, &format!("is compiled by {system}; let a function of src/platform.rs know the system"));
            }
        }
        for part in OF_ONE_SYSTEM.iter().filter(|part| code.contains(**part)) {
            wrong.add(file, &format!("uses {part}, which some systems lack; let a function of src/platform.rs use it"));
        }
    }
    wrong.end();
}

/// The module that a file is: `src/a/b.rs` is `a`, `b`.
fn module(file: &Source) -> Vec<String> {
    let path = file.path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').map(str::to_owned).collect()
}

/// Returns what a path of `own` means, from the root of the crate on; none if it is not of this crate.
fn resolved(path: &str, own: &[String]) -> Option<Vec<String>> {
    let mut parts = path.split("::").peekable();
    let mut base = match *parts.peek()? {
        "crate" => Vec::new(),
        "self" | "super" => own.to_vec(),
        _ => return None,
    };
    if parts.peek() != Some(&"super") {
        parts.next();
    }
    while parts.next_if_eq(&"super").is_some() {
        base.pop()?;
    }
    base.extend(parts.map(str::to_owned));
    Some(base)
}

/// Whether a module imports another one, itself or through others.
fn reaches(imports: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for imported in imports.get(module).into_iter().flatten() {
            if imported == to {
                return true;
            }
            if seen.insert(imported) {
                next.push(imported);
            }
        }
    }
    false
}
