//! `proxy.toml.example` and the reference in `docs/configuration.md`, written from the doc comments and the defaults of the
//! settings: `UPDATE_DOCS=1 cargo test --test tidy` writes both, and without the variable both are compared.
//!
//! The doc comment of a key says what it does. A paragraph `Not set: …` says what holds without a value, and one `Example: …`
//! gives a value in back ticks; a key without a default needs both.

use std::{env, fs};

use abridge_proxy::config::{Config, Sources};

use super::{Wrong, absolute, read};

#[path = "settings/schema.rs"]
pub(crate) mod schema;

use schema::{Key, Kind, Table, Type, tables, types};

const EXAMPLE: &str = "proxy.toml.example";
const REFERENCE: &str = "docs/configuration.md";
pub(crate) const BEGIN: &str = "<!-- settings: begin (written by UPDATE_DOCS=1 cargo test --test tidy) -->\n";
pub(crate) const END: &str = "<!-- settings: end -->\n";

/// The widest that a line of the example is.
const WIDTH: usize = 120;

const SCHEMA: &str = "assets/proxy.schema.json";

const HEAD: &str = "\
# The settings of abridge, each at its default. A key or a table without a default is commented out.
#
# abridge reads this file as `proxy.toml` of the working directory, or with `--config FILE`. Environment variables override
# it (ABRIDGE__SERVER__MAX_BODY=64MiB), and flags override both. `abridge check-config` prints what is in effect. SIGHUP
# reads the file again; a file with a mistake changes nothing.
#
# Sizes: B, KiB, MiB, GiB, kB, MB, GB. Times: ms, s, m, h, d.
#
# Generated from the doc comments of the settings: `UPDATE_DOCS=1 cargo test --test tidy`.
";

#[test]
fn the_example_and_the_reference_are_what_the_settings_say() {
    let tables = tables();
    let old = read(REFERENCE);
    let (before, rest) = old.split_once(BEGIN).expect("docs/configuration.md has no place for the settings");
    let (_, after) = rest.split_once(END).expect("docs/configuration.md does not end the settings");
    let reference = format!("{before}{BEGIN}{}{END}{after}", reference(&tables));
    let mut wrong = Wrong::default();
    for (path, text) in [(EXAMPLE, example(&tables, "# ")), (REFERENCE, reference), (SCHEMA, schema(&tables))] {
        if env::var_os("UPDATE_DOCS").is_some() {
            fs::write(absolute(path), text).expect("the document can be written");
        } else if let Err(error) = same(&read(path), &text) {
            wrong.push(format!("{path}: {error}; run UPDATE_DOCS=1 cargo test --test tidy"));
        }
    }
    wrong.end();
}

#[test]
fn the_example_reads_as_the_defaults_and_what_is_commented_out_is_valid() {
    let tables = tables();
    let read = |text: &str| toml::from_str::<Config>(text).map_err(|error| format!("{error}"));
    assert_eq!(read(&example(&tables, "# ")), Ok(Config::default()));
    let complete = read(&example(&tables, "")).unwrap_or_else(|error| panic!("{error}"));
    let complete = toml::Value::try_from(complete).expect("settings are TOML");
    let mut wrong = Wrong::default();
    for table in &tables {
        for key in &table.keys {
            if !table.is_set_in(&complete, key) {
                wrong.push(format!("{}: the uncommented example sets no such key", table.path_of(key)));
            }
        }
    }
    wrong.end();
}

#[test]
fn every_setting_says_what_it_does_and_what_holds_without_it() {
    let mut wrong = Wrong::default();
    let says = |text: &str| text.ends_with('.') || text.ends_with(".)");
    for table in tables() {
        if !table.path.is_empty() && !says(&table.doc) {
            wrong.push(format!("{}: its doc comment is no sentence", table.header()));
        }
        for key in &table.keys {
            let path = table.path_of(key);
            if !says(&key.doc) {
                wrong.push(format!("{path}: its doc comment is no sentence"));
            }
            if key.default.is_none() && key.is_optional && key.not_set.is_none() {
                wrong.push(format!("{path}: has no default; say in a paragraph `Not set: …` what holds without it"));
            }
            if key.default.is_none() && key.example.is_none() {
                wrong.push(format!("{path}: has no default; add a paragraph Example: with a value in back ticks"));
            }
            for (choice, _) in key.choices.iter().filter(|(_, doc)| !says(doc)) {
                wrong.push(format!("{path}: {choice} has no sentence that says what it does"));
            }
        }
    }
    wrong.end();
}

/// A number that is too large or too small is refused with a range; the doc comment has the same range, or none.
#[test]
fn ranges_are_those_that_are_checked() {
    let mut wrong = Wrong::default();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("proxy.toml");
    for table in tables().iter().filter(|table| table.kind != Kind::List && table.kind != Kind::Map) {
        for key in &table.keys {
            let tried = match key.words.as_str() {
                "integer" => ["9223372036854775807", "0"],
                "size" => ["\"999999999GiB\"", "\"0B\""],
                "duration" => ["\"99999d\"", "\"0ms\""],
                _ => continue,
            };
            let range = tried.into_iter().find_map(|value| {
                fs::write(&file, format!("{}\n{} = {value}\n", table.header(), key.name))
                    .expect("a file can be written");
                let error =
                    Config::load(&Sources { file: Some(file.clone()), ..Sources::default() }).err()?.to_string();
                error.split_once("is out of range; allowed: ").map(|(_, range)| range.to_owned())
            });
            let said = key.doc.split_once("Allowed: ").map(|(_, rest)| rest.trim_end_matches('.').to_owned());
            let said = said.map(|rest| rest.split(". ").next().unwrap_or_default().to_owned());
            if range.as_deref().map(|range| range.split("; ").next().unwrap_or_default()) != said.as_deref() {
                wrong.push(format!("{}: says {said:?} is allowed, and {range:?} is", table.path_of(key)));
            }
        }
    }
    wrong.end();
}

// === the example ===

/// All settings as TOML. Everything that has no default is behind `off`.
fn example(tables: &[Table], off: &str) -> String {
    let mut lines = vec![HEAD.to_owned()];
    for table in tables.iter().filter(|table| table.kind != Kind::Map) {
        let off_table = if table.kind == Kind::Always { "" } else { off };
        if !table.path.is_empty() {
            lines.extend(comment(&table.doc));
            lines.push(format!("{off_table}{}", table.header()));
        }
        for key in &table.keys {
            lines.extend(key.parts().iter().flat_map(|part| comment(part)));
            let off = if key.example.is_some() { off } else { off_table };
            let value = key.example.as_ref().or(key.default.as_ref()).map_or("", String::as_str);
            lines.extend(assignment(off, &key.name, value));
        }
        lines.extend(table.examples.iter().map(|line| format!("{off}{line}")));
        lines.push(String::new());
    }
    lines.pop();
    lines.join("\n") + "\n"
}

/// `key = value`, a long list over several lines.
fn assignment(off: &str, key: &str, value: &str) -> Vec<String> {
    let line = format!("{off}{key} = {value}");
    let items = value.strip_prefix('[').and_then(|items| items.strip_suffix(']'));
    let Some(items) = items.filter(|_| line.chars().count() > WIDTH) else { return vec![line] };
    let rows = wrapped(&format!("{items},"), WIDTH - 4).into_iter().map(|row| format!("    {row}"));
    [format!("{off}{key} = [")].into_iter().chain(rows).chain(["]".to_owned()]).collect()
}

fn comment(text: &str) -> impl Iterator<Item = String> {
    wrapped(text, WIDTH - 2).into_iter().map(|line| format!("# {line}"))
}

/// The words in lines of at most `width` characters. No line but the first begins with a bracket, which would look like a table.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a line");
        let fits = line.chars().count() + 1 + word.chars().count() <= width || word.starts_with('[');
        match (line.is_empty(), fits) {
            (true, _) => line.push_str(word),
            (false, true) => *line = format!("{line} {word}"),
            (false, false) => lines.push(word.to_owned()),
        }
    }
    lines
}

// === the schema ===

/// The settings as a JSON schema. Values whose type has several forms have a description alone.
#[expect(clippy::disallowed_types, reason = "nothing of it goes upstream")]
fn schema(tables: &[Table]) -> String {
    use serde_json::{Map, Value, json};
    /// The members of the table at a path; a missing table is made.
    fn members<'s>(schema: &'s mut Value, path: &[String]) -> &'s mut Map<String, Value> {
        let Some((first, rest)) = path.split_first() else {
            return schema.as_object_mut().expect("a schema is an object");
        };
        let table = schema["properties"].as_object_mut().expect("it has properties");
        let next = table.entry(first).or_insert_with(|| json!({"type": "object", "properties": {}}));
        members(if next.get("items").is_some() { &mut next["items"] } else { next }, rest)
    }
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "The settings of abridge",
        "type": "object",
        "additionalProperties": false,
        "properties": {},
    });
    for table in tables {
        let properties = table.keys.iter().map(|key| (key.name.clone(), key_schema(key))).collect::<Map<_, _>>();
        let is_open = table.keys.is_empty();
        let own = json!({"type": "object", "additionalProperties": is_open, "properties": properties});
        let own = match table.kind {
            Kind::List => json!({"type": "array", "description": table.doc, "items": own}),
            _ => own,
        };
        // `[tools.NAME]` is below a name of the user's.
        let (name, path) = table.path.split_last().map_or((None, &[][..]), |(name, path)| (Some(name), path));
        let into = members(&mut schema, path);
        let Value::Object(own) = own else { unreachable!("it was made as an object") };
        match name {
            None => into.extend(own.into_iter().filter(|(key, _)| key == "properties")),
            Some(_) if table.kind == Kind::Map => {
                into.insert("additionalProperties".to_owned(), own.into());
            }
            Some(name) => {
                let mut own = own;
                own.insert("description".to_owned(), table.doc.clone().into());
                let all = into.entry("properties").or_insert_with(|| json!({}));
                all[name.as_str()] = own.into();
            }
        }
    }
    serde_json::to_string_pretty(&schema).expect("it is JSON") + "\n"
}

#[expect(
    clippy::disallowed_types,
    clippy::indexing_slicing,
    reason = "nothing of it goes upstream, and a key is added"
)]
fn key_schema(key: &Key) -> serde_json::Value {
    use serde_json::json;
    let kind = match &*key.words {
        "boolean" => "boolean",
        "integer" => "integer",
        "string" | "path" | "URL" | "webhook URL" | "pattern" | "duration" => "string",
        words if words.starts_with("list of") => "array",
        words if words.starts_with("table of") => "object",
        _ => "",
    };
    let mut schema = json!({"description": key.parts().join("\n")});
    if !kind.is_empty() {
        schema["type"] = kind.into();
    }
    if !key.choices.is_empty() {
        let value = |(value, _): &(String, String)| value.trim_matches('"').to_owned();
        let of = if kind == "array" { &mut schema["items"] } else { &mut schema };
        of["enum"] = key.choices.iter().map(value).collect();
    }
    let default =
        key.default.as_ref().and_then(|default| toml::from_str::<toml::Table>(&format!("value = {default}")).ok());
    if let Some(default) = default.and_then(|mut table| serde_json::to_value(table.remove("value")?).ok()) {
        schema["default"] = default;
    }
    schema
}

// === the reference ===

fn reference(tables: &[Table]) -> String {
    let mut paragraphs = Vec::new();
    for table in tables {
        let title = if table.path.is_empty() { "Top level".to_owned() } else { format!("`{}`", table.header()) };
        paragraphs.extend([format!("### {title}"), table.doc.clone()]);
        paragraphs.extend(table.examples.iter().map(|line| format!("Example: `{line}`")));
        paragraphs.push(rows(&table.keys));
    }
    paragraphs.push("## Types".to_owned());
    for Type { words, doc, keys } in types() {
        paragraphs.extend([format!("### {words}"), doc, rows(&keys)]);
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    format!("\n{}\n\n", paragraphs.join("\n\n"))
}

/// A Markdown table of keys; nothing if there are none.
fn rows(keys: &[Key]) -> String {
    let row = |key: &Key| {
        let default = key.default.as_ref().map(|default| format!("`{default}`"));
        let default = default.unwrap_or_else(|| {
            if key.is_optional || key.not_set.is_some() { "not set" } else { "required" }.to_owned()
        });
        let cells = [format!("`{}`", key.name), key.linked_words(), default, key.parts().join("<br>")];
        format!("| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
    };
    let head = ["| key | type | default | what it does |", "|---|---|---|---|"].map(str::to_owned);
    let rows: Vec<_> =
        if keys.is_empty() { Vec::new() } else { head.into_iter().chain(keys.iter().map(row)).collect() };
    rows.join("\n")
}

/// Says where two texts differ.
fn same(found: &str, expected: &str) -> Result<(), String> {
    let (mut found, mut expected) = (found.lines(), expected.lines());
    for n in 1.. {
        match (found.next(), expected.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                return Err(format!("line {n} is {:?} and not {:?}", a.unwrap_or("missing"), b.unwrap_or("missing")));
            }
        }
    }
    Ok(())
}
