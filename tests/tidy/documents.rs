//! Documents: short, with links that lead somewhere, and in agreement with the code.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::settings::{self, schema};
use super::{Source, Wrong, absolute, files_below, quoted, read, section};

#[path = "documents/facts.rs"]
mod facts;

/// The documents besides those in docs/.
const DOCUMENTS: [&str; 9] = [
    "README.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "BENCHMARKS.md",
    "examples/README.md",
    "fixtures/README.md",
    INVARIANTS,
];

/// The invariants, beside the tests that hold them.
const INVARIANTS: &str = "tests/INVARIANTS.md";

/// The most words of the documents that grow, and of all together without the generated tables and the invariants. The bars
/// and rules of tables are not words.
const LONGEST: [(&str, usize); 4] =
    [("README.md", 1_200), ("ARCHITECTURE.md", 2_500), ("BENCHMARKS.md", 2_500), ("CHANGELOG.md", 800)];
const LONGEST_TOGETHER: usize = 38_000;
const LONGEST_GLOSSARY: usize = 40;

/// All documents, with their text.
fn documents() -> Vec<(String, String)> {
    DOCUMENTS.into_iter().map(str::to_owned).chain(pages()).map(|path| (path.clone(), read(&path))).collect()
}

/// A document without what `UPDATE_DOCS=1 cargo test --test tidy` and `benches/peers/run.py` write into it.
fn written_by_hand(text: &str) -> String {
    let peers = ("<!-- peers: begin", "<!-- peers: end");
    let judge = ("<!-- judge: begin", "<!-- judge: end");
    [(settings::BEGIN, settings::END), peers, judge].into_iter().fold(text.to_owned(), |text, (begin, end)| {
        let (before, rest) = text.split_once(begin).unwrap_or((&text, ""));
        [before, rest.split_once(end).map_or("", |(_, after)| after)].concat()
    })
}

/// Those in docs/.
fn pages() -> impl Iterator<Item = String> {
    files_below("docs").into_iter().filter(|path| Path::new(path).extension().is_some_and(|end| end == "md"))
}

#[test]
fn documents_stay_inside_the_project_and_their_links_lead_somewhere() {
    let mut wrong = Wrong::default();
    for (name, text) in documents() {
        // Everything that is left of a text without the targets of its links.
        let prose: String = text.split("](").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)).collect();
        for outside in ["../", "/work/", "/root/", "/home/"].into_iter().filter(|outside| prose.contains(outside)) {
            wrong.push(format!("{name}: speaks of `{outside}`, which only this machine has"));
        }
        for link in links(&text) {
            if let Err(why) = follow(&name, link) {
                wrong.push(format!("{name}: links to {link}, {why}"));
            }
        }
    }
    wrong.end();
}

#[test]
fn documents_are_short() {
    let mut wrong = Wrong::default();
    let n_words = |text: &str| text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
    for (name, most) in LONGEST {
        let n = n_words(&read(name));
        if n > most {
            wrong.push(format!("{name}: {n} words, at most {most}; move what a newcomer does not need to docs/"));
        }
    }
    let by_hand = documents().into_iter().filter(|(name, _)| name != INVARIANTS);
    let together: usize = by_hand.map(|(_, text)| n_words(&written_by_hand(&text))).sum();
    if together > LONGEST_TOGETHER {
        wrong.push(format!("the documents have {together} words together, at most {LONGEST_TOGETHER}; say it once"));
    }
    let n_lines = section(&read("ARCHITECTURE.md"), "## Glossary").lines().count();
    assert!((3..=LONGEST_GLOSSARY).contains(&n_lines), "the glossary has {n_lines} lines, at most {LONGEST_GLOSSARY}");
    wrong.end();
}

#[test]
fn every_page_of_docs_is_in_the_summary_and_in_the_index() {
    let mut wrong = Wrong::default();
    for path in pages() {
        let page = path.trim_start_matches("docs/");
        let index = match page.split_once('/') {
            Some((folder, _)) => format!("docs/{folder}/README.md"),
            None => "docs/README.md".to_owned(),
        };
        let name = page.rsplit('/').next().unwrap_or_default();
        if page != "SUMMARY.md" && !read("docs/SUMMARY.md").contains(&format!("]({page})")) {
            wrong.push(format!("docs/SUMMARY.md: lacks {page}"));
        }
        if !["SUMMARY.md", "README.md"].contains(&name) && !read(&index).contains(&format!("]({name})")) {
            wrong.push(format!("{index}: lacks {name}"));
        }
    }
    wrong.end();
}

/// Files are not listed by hand: the tree and the first line of each file are the map.
#[test]
fn every_module_says_in_its_first_line_what_it_is_for() {
    let mut wrong = Wrong::default();
    let mut seen = BTreeSet::new();
    for file in Source::of("src").iter().filter(|file| !super::is_test_file(&file.path)) {
        let line = file.text.lines().next().unwrap_or_default().trim_start_matches("//! ").to_owned();
        if line.split_whitespace().count() < 3 {
            wrong.add(file, &format!("begins with {line:?}; say in one sentence what the file is for"));
        }
        if !seen.insert(line) {
            wrong.add(file, "begins with the same line as another file");
        }
    }
    let scripts =
        files_below("src/admin/page").into_iter().filter(|path| path.ends_with("js") || path.ends_with("css"));
    for path in scripts.filter(|path| !read(path).starts_with("// ") && !read(path).starts_with("/* ")) {
        wrong.push(format!("{path}: begins with no comment that says what it is for"));
    }
    wrong.end();
}

#[test]
fn every_invariant_names_what_holds_it() {
    let mut wrong = Wrong::default();
    let code: String = ["src", "tests"].into_iter().flat_map(Source::of).map(|file| file.text).collect();
    let text = read(INVARIANTS);
    let invariants: Vec<_> = text.split("\n- **").skip(1).collect();
    if invariants.is_empty() {
        wrong.push(format!("{INVARIANTS}: no invariants; each begins with `- **`"));
    }
    for invariant in invariants {
        let title = invariant.split("**").next().unwrap_or_default();
        let holders: Vec<_> = invariant.split_once("Held by").map_or_else(Vec::new, |(_, rest)| quoted(rest).collect());
        if holders.is_empty() {
            wrong.push(format!(
                "{INVARIANTS}: **{title}** is not held by anything; end it with Held by `name_of_a_test`"
            ));
        }
        for holder in holders {
            if !code.contains(&format!("fn {holder}(")) && !absolute(&holder).exists() {
                wrong.push(format!(
                    "{INVARIANTS}: **{title}** is held by `{holder}`, which is neither a test nor a file"
                ));
            }
        }
    }
    wrong.end();
}

/// `table.key` in a document is a setting.
#[test]
fn settings_that_documents_name_exist() {
    let mut wrong = Wrong::default();
    let tables = schema::tables();
    let paths: BTreeSet<_> = tables
        .iter()
        .flat_map(|table| table.keys.iter().map(|key| table.path_of(key)).chain([table.path.join(".")]))
        .collect();
    let roots: BTreeSet<_> = tables.iter().filter_map(|table| table.path.first().cloned()).collect();
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte));
    for (name, text) in documents().into_iter().filter(|(name, _)| name != "CHANGELOG.md") {
        for code in quoted(&text) {
            let path = code.split(" = ").next().unwrap_or_default().trim_matches(['[', ']']);
            let Some((root, _)) = path.split_once('.').filter(|_| is_name(path)) else { continue };
            // Files, events and hosts have dots, too.
            let is_other = ["rs", "toml", "before", "after", "attempt", "lost"]
                .iter()
                .any(|end| path.ends_with(&format!(".{end}")));
            if roots.contains(root) && !paths.contains(path) && !is_other {
                wrong.push(format!("{name}: names the setting {path}, which there is not"));
            }
        }
    }
    wrong.end();
}

#[test]
fn files_that_documents_name_exist() {
    const FOLDERS: [&str; 8] = ["assets/", "benches/", "docs/", "examples/", "fixtures/", "scripts/", "src/", "tests/"];
    let is_plain = |path: &str| path.bytes().all(|byte| byte.is_ascii_lowercase() || b"0123456789_-./".contains(&byte));
    let mut wrong = Wrong::default();
    for (name, text) in documents() {
        let paths =
            quoted(&text).filter(|path| is_plain(path) && FOLDERS.iter().any(|folder| path.starts_with(folder)));
        for path in paths.filter(|path| !absolute(path).exists()) {
            wrong.push(format!("{name}: names {path}, which is not there"));
        }
    }
    wrong.end();
}

/// A terminal breaks lines at its own width.
#[test]
fn paragraphs_of_help_are_not_broken_into_lines() {
    let mut wrong = Wrong::default();
    let path = "src/cli/help.txt";
    let text = read(path);
    let is_prose =
        |line: &str| !line.is_empty() && !line.starts_with("  ") && !line.starts_with("== ") && !line.ends_with(':');
    for pair in text.lines().collect::<Vec<_>>().windows(2).filter(|pair| pair.iter().all(|line| is_prose(line))) {
        wrong.push(format!("{path}: breaks a paragraph before {:?}", pair[1]));
    }
    wrong.end();
}

#[test]
fn recipes_that_documents_name_exist() {
    let mut wrong = Wrong::default();
    let recipes = read("justfile");
    for (name, text) in documents() {
        let commands = text.split(['`', '\n']).map(|code| code.trim_start_matches("$ "));
        for recipe in
            commands.filter_map(|code| code.strip_prefix("just ")).filter_map(|rest| rest.split_whitespace().next())
        {
            let is_there = [":", " "].iter().any(|end| recipes.contains(&format!("\n{recipe}{end}")));
            if !is_there {
                wrong.push(format!("{name}: names `just {recipe}`, which there is not"));
            }
        }
    }
    wrong.end();
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.starts_with("http"))
}

/// Whether a link of a document leads to a file of the project, and to a heading in it if it names one.
fn follow(document: &str, link: &str) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let mut target = PathBuf::from(document);
    if !path.is_empty() {
        target.pop();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir if !target.pop() => return Err("which is outside of the project"),
                Component::ParentDir | Component::CurDir => {}
                part => target.push(part),
            }
        }
    }
    let target = target.to_string_lossy();
    if !absolute(&target).exists() {
        return Err("which is not there");
    }
    match anchor {
        Some(anchor) if !headings(&read(&target)).contains(anchor) => Err("and there is no such heading"),
        _ => Ok(()),
    }
}

/// The anchors of the headings of a text.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |title: &str| {
        let kept = title.to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    titles.map(slug).collect()
}
