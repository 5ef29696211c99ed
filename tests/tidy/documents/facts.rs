//! What the pages of docs/ list, compared with the code: codes, metrics, header fields, paths, events, commands, presets.

use std::collections::BTreeSet;

use super::super::{Source, Wrong, quoted, read};

/// The strings in a piece of code.
fn strings(code: &str) -> impl Iterator<Item = &str> {
    code.split('"').skip(1).step_by(2)
}

/// What follows `start`, up to `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start:?}"));
    rest.split(end).next().unwrap_or_default()
}

/// The names in back ticks that begin in one of these ways, without what follows them.
fn named(document: &str, beginnings: &[&str]) -> BTreeSet<String> {
    let is_named = |code: &String| beginnings.iter().any(|beginning| code.starts_with(beginning));
    let bare = |code: String| code.split([':', '{', ' ', '?']).next().unwrap_or_default().to_owned();
    quoted(&read(document)).filter(is_named).map(bare).collect()
}

/// Both sets are the same.
#[track_caller]
fn agree(document: &str, told: &BTreeSet<String>, there: &BTreeSet<String>) {
    let mut wrong = Wrong::default();
    assert!(!there.is_empty(), "{document}: nothing to compare it with");
    for name in there.difference(told) {
        wrong.push(format!("{document}: lacks `{name}`"));
    }
    for name in told.difference(there) {
        wrong.push(format!("{document}: has `{name}`, which there is not"));
    }
    wrong.end();
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// The cells of the tables of a document, row by row.
fn rows(text: &str) -> Vec<Vec<String>> {
    let row = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    text.lines().filter(|line| line.starts_with('|')).map(row).collect()
}

#[test]
fn every_error_has_a_row_that_says_what_to_do() {
    let codes = read("src/proxy/respond.rs");
    let there = owned(strings(between(&codes, "fn status_and_code(&self)", "\n    }\n")));
    let document = "docs/troubleshooting.md";
    let text = read(document);
    let told = rows(&text).into_iter().filter(|row| row.len() == 3 && row[0].starts_with(|c: char| c.is_ascii_digit()));
    let told = told.map(|row| row[1].trim_matches('`').to_owned()).collect();
    agree(document, &told, &there);
}

#[test]
fn every_reason_not_to_understand_a_body_is_described() {
    let code = read("src/dialect/types.rs");
    let there = owned(strings(between(&code, "pub enum ParseErrorKind", "\n}\n")));
    let document = "docs/dialects.md";
    let codes = rows(between(&read(document), "| reason in the log |", "\n\n"));
    let told = codes.into_iter().map(|row| row[0].trim_matches('`').to_owned()).filter(|code| !code.starts_with('-'));
    agree(document, &told.collect(), &there);
}

#[test]
fn every_metric_is_described() {
    const BEGINNINGS: [&str; 3] = ["abridge_", "gen_ai_client", "process_"];
    const ENDINGS: [&str; 3] = ["_info", "_seconds", "_total"];
    let code: String = Source::of("src/metrics").into_iter().map(|file| file.code()).collect();
    let code = [code, Source::read("src/metrics.rs").code(), Source::read("src/proxy/scrape.rs").code()].concat();
    let there = owned(strings(&code).filter(|name| BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))));
    let document = "docs/metrics.md";
    // As the code names them: OpenMetrics adds what the kind asks for.
    let bare = |name: &String| ENDINGS.iter().fold(name.as_str(), |name, end| name.trim_end_matches(end)).to_owned();
    let mut told = named(document, &BEGINNINGS);
    assert!(told.remove("abridge_info"), "{document}: lacks `abridge_info`, which in the code is `abridge`");
    agree(document, &told.iter().map(bare).collect(), &there);
}

/// Of labels whose values are an enum.
#[test]
fn every_value_of_a_label_is_described() {
    const ENUMS: [(&str, &str, &str); 5] = [
        ("abridge_changes_total", "src/plan/action.rs", "pub enum Action {"),
        ("abridge_left_out_total", "src/plan.rs", "pub enum SkipReason {"),
        ("abridge_fail_open_total", "src/proxy/request.rs", "enum FailOpenReason {"),
        ("abridge_rescues_total", "src/proxy/exchange.rs", "enum RescueKind {"),
        ("abridge_recalls_total", "src/admin/recall.rs", "enum RecallOutcome {"),
    ];
    let (mut wrong, document) = (Wrong::default(), read("docs/metrics.md"));
    let rows = rows(&document);
    for (metric, file, start) in ENUMS {
        let row = rows.iter().find(|row| row[0].starts_with(&format!("`{metric}{{"))).expect(metric);
        let code = read(file);
        let lines = between(&code, start, "\n}").lines().filter_map(|line| line.strip_prefix("    "));
        let variants = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
        for variant in
            variants.map(|line| joined(line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default(), '_'))
        {
            if !row[1].contains(&format!("`{variant}`")) {
                wrong.push(format!("docs/metrics.md: {metric} lacks `{variant}`"));
            }
        }
    }
    wrong.end();
}

/// A name of the code in small letters, with this sign between its words.
fn joined(name: &str, sign: char) -> String {
    name.char_indices().fold(String::new(), |mut joined, (n, c)| {
        if n > 0 && c.is_ascii_uppercase() {
            joined.push(sign);
        }
        joined.push(c.to_ascii_lowercase());
        joined
    })
}

#[test]
fn every_header_field_is_described() {
    // File by file: a quote that is alone, as in `b'"'`, would turn strings and code around in all that follow.
    let files: Vec<_> = Source::of("src").iter().map(Source::code).collect();
    let there = owned(files.iter().flat_map(|code| strings(code)).filter(|name| name.starts_with("x-abridge")));
    let document = "docs/headers-and-events.md";
    let told = named(document, &["x-abridge"]).into_iter().filter(|name| name != "x-abridge-…").collect();
    agree(document, &told, &there);
}

#[test]
fn every_path_is_described() {
    let code = read("src/admin/access.rs");
    let there = strings(between(&code, "const PATHS:", "\n];"));
    let document = "docs/headers-and-events.md";
    let text = between(&read(document), "## Paths of abridge's own", "\n## ").to_owned();
    let told: Vec<_> = quoted(&text).collect();
    let has = |path: &str| told.iter().any(|told| told.trim_start_matches("GET ").trim_start_matches("POST ") == path);
    let mut wrong = Wrong::default();
    for path in there {
        let folder = path.strip_suffix('*');
        let is_told =
            ["HANDLE", "ID", "PATH"].iter().any(|name| folder.is_some_and(|folder| has(&format!("{folder}{name}"))));
        if !is_told && !has(path) && !has(&format!("{path}/")) {
            wrong.push(format!("{document}: lacks the path {path}"));
        }
    }
    wrong.end();
}

#[test]
fn every_event_is_described() {
    let code: String =
        [Source::read("src/events/kinds.rs"), Source::read("src/events.rs")].iter().map(Source::code).collect();
    let is_type = |name: &&str| {
        name.split('.').count() == 2 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'.')
    };
    let document = "docs/headers-and-events.md";
    let text = read(document);
    let told =
        rows(between(&text, "| type | when |", "\n\n")).into_iter().map(|row| row[0].trim_matches('`').to_owned());
    agree(document, &told.filter(|name| name.contains('.')).collect(), &owned(strings(&code).filter(is_type)));
}

#[test]
fn every_command_and_exit_code_is_described() {
    let code = read("src/cli.rs");
    let document = "docs/operations.md";
    let text = read(document);
    let is_variant =
        |line: &&str| line.starts_with("    ") && line.trim_start().starts_with(|c: char| c.is_ascii_uppercase());
    let command = |line: &str| {
        let name: String = line.trim().chars().take_while(|c| c.is_alphanumeric()).collect();
        joined(&name, '-')
    };
    let there = between(&code, "pub enum Command {", "\n}").lines().filter(is_variant).map(command).collect();
    let table = between(&text, "\n## Commands\n", "\n\n`status`").to_owned();
    let told = quoted(&table).filter_map(|code| code.strip_prefix("abridge ")?.split(' ').next().map(str::to_owned));
    agree(document, &told.collect(), &there);

    let there = between(&code, "pub enum Exit {", "\n}").lines().filter_map(|line| line.split_once(" = "));
    let there = there.map(|(_, code)| code.trim_end_matches(',').to_owned()).collect();
    let told = rows(between(&text, "\n## Exit codes\n", "\n## ")).into_iter().map(|row| row[0].clone());
    agree(document, &told.filter(|code| code.bytes().all(|byte| byte.is_ascii_digit())).collect(), &there);
}

#[test]
fn the_table_of_presets_has_what_they_set() {
    let document = "docs/policies.md";
    let table = rows(between(&read(document), "### What each preset sets\n", "\n### "));
    for (column, name) in ["eino", "langchain", "agno"].into_iter().enumerate() {
        let text = read(&format!("src/config/preset/{name}.toml"));
        let preset: toml::Table = toml::from_str(&text).expect("a preset is TOML");
        let set = preset.iter().flat_map(|(table, keys)| {
            let keys = keys.as_table().expect("a preset has tables");
            keys.iter().map(move |(key, value)| (format!("`{table}.{key}`"), value))
        });
        let there = set.map(|(key, value)| match value.as_array() {
            Some(edits) => format!("{key}: {} edits", edits.len()),
            None => format!("{key}: `{value}`"),
        });
        let told = table.iter().skip(2).filter_map(|row| row.get(column + 1).map(|value| (&row[0], value)));
        let told = told.filter(|(_, value)| !value.is_empty()).map(|(key, value)| match key.as_str() {
            "`policy.edits`" => format!("{key}: {} edits", value.split(", ").count()),
            _ => format!("{key}: {value}"),
        });
        agree(document, &told.collect(), &there.collect());
    }
}

#[test]
fn the_tables_of_the_peers_have_their_place() {
    let (report, document) = (read("benches/peers/report.py"), read("docs/peers.md"));
    let place = |name: &str| document.find(between(&report, &format!("{name} = \""), "\"\n"));
    let (begin, end) = (place("BEGIN"), place("END"));
    assert!(begin.is_some() && begin < end, "docs/peers.md has no place for what benches/peers/run.py --out writes");
}
