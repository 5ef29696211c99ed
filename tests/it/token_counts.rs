//! Counts of recorded texts are those of tiktoken-rs: of the fixtures, and of what `ABRIDGE_CORPUS`, `ABRIDGE_CORPUS_RESPONSES`
//! and `ABRIDGE_CORPUS_MESSAGES` name.
#![expect(clippy::disallowed_types, reason = "texts are read out of recordings, and nothing is written")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use abridge_proxy::tokens::tiktoken::Encoding;
use serde_json::Value;

/// No piece of a text of this length ends inside a token.
const PIECE: usize = 1024;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The strings of a JSON value.
fn strings(value: Value, found: &mut Vec<String>) {
    match value {
        Value::String(string) => found.push(string),
        Value::Array(values) => values.into_iter().for_each(|value| strings(value, found)),
        Value::Object(fields) => fields.into_iter().for_each(|(_, value)| strings(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A file as it is, and its strings if it is JSON.
fn texts(path: &Path) -> Vec<String> {
    let raw = fs::read(path).unwrap();
    let mut found = vec![String::from_utf8_lossy(&raw).into_owned()];
    if let Ok(value) = serde_json::from_slice(&raw) {
        strings(value, &mut found);
    }
    found
}

#[test]
fn recorded_texts_have_as_many_tokens_as_tiktoken_counts() {
    let corpora = ["ABRIDGE_CORPUS", "ABRIDGE_CORPUS_RESPONSES", "ABRIDGE_CORPUS_MESSAGES"];
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")];
    folders.extend(corpora.iter().filter_map(env::var_os).map(PathBuf::from));
    let mut found = Vec::new();
    for folder in &folders {
        files(folder, &mut found);
    }
    let encodings = [
        (Encoding::O200kBase, tiktoken_rs::o200k_base_singleton()),
        (Encoding::Cl100kBase, tiktoken_rs::cl100k_base_singleton()),
    ];
    let mut n_bytes = 0;
    for path in found {
        for text in texts(&path) {
            n_bytes += text.len();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE));
                for (encoding, reference) in encodings {
                    assert_eq!(encoding.count(piece), reference.count_ordinary(piece), "{}: {piece:?}", path.display());
                }
                rest = behind;
            }
        }
    }
    assert!(n_bytes > 500_000, "only {n_bytes} bytes");
    println!("{n_bytes} bytes");
}
