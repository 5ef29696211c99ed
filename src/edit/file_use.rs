//! Which calls read or edit a file, told by the name of the tool and its arguments.
//!
//! Known are the tools of Claude Code, Codex, opencode, Cline, Roo Code, `OpenHands`, SWE-agent, Gemini CLI, goose, Copilot, pi,
//! Anthropic's text editor, the file tools of `LangChain` and deepagents, and the MCP server for file systems. aider edits by
//! its answers, and calls no tools. `reads` and `edits` of `[tools]` name others. Of a shell command only what is clear
//! counts: one command that prints one file, a patch, `sed -i`.

use std::{path::Path, sync::LazyLock};

use serde::Deserialize;

use super::tools::Tools;
use crate::raw::{self, Fields};

/// The use of files by a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FileUse {
    /// It reads a file, or the part of it that its arguments name.
    Read {
        /// The file.
        path: String,
        /// The part; none for the whole file.
        part: Option<String>,
    },
    /// It writes, moves or removes files.
    Edit(Vec<String>),
}

/// The names of tools and of their arguments, and the words of failures, as the file explains them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    readers: Vec<String>,
    editors: Vec<String>,
    commanded: Vec<String>,
    patchers: Vec<String>,
    shells: Vec<String>,
    paths: Vec<String>,
    parts: Vec<String>,
    failures: Vec<String>,
}

/// Tests read the file.
static NAMES: LazyLock<Names> =
    LazyLock::new(|| toml::from_str(include_str!("file_use/names.toml")).unwrap_or_default());

/// The effect of a tool call on files; none if it does nothing with them, or that is not known. `arguments` are what the
/// model has written.
pub(super) fn of_call(tools: &Tools, name: &str, arguments: impl FnOnce() -> Option<String>) -> Option<FileUse> {
    let own_reads = tools.find(name, |tool| tool.reads.clone());
    let own_edits = tools.find(name, |tool| tool.edits.clone());
    if let (None, None) = (&own_reads, &own_edits) {
        return built_in(name, arguments);
    }
    let arguments = arguments()?;
    let fields = Fields::of(&arguments)?;
    match (own_reads, own_edits) {
        (Some(key), _) => Some(read(&fields, &fields.string(&key)?)),
        (None, key) => Some(FileUse::Edit(vec![normal(&fields.string(&key?)?)])),
    }
}

/// Whether the result of an edit says that it has failed.
pub(super) fn says_failure(text: &str) -> bool {
    let text = text.to_lowercase();
    NAMES.failures.iter().any(|words| text.contains(words))
}

fn built_in(name: &str, arguments: impl FnOnce() -> Option<String>) -> Option<FileUse> {
    let name = name.rsplit("__").next().unwrap_or(name);
    let name: String = name.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect();
    let is_among = |names: &Vec<String>| names.contains(&name);
    if is_among(&NAMES.patchers) {
        return patched(&arguments()?);
    }
    let kinds = [&NAMES.readers, &NAMES.editors, &NAMES.commanded, &NAMES.shells];
    if !kinds.into_iter().any(is_among) {
        return None;
    }
    let arguments = arguments()?;
    let fields = Fields::of(&arguments)?;
    if is_among(&NAMES.shells) {
        return run(&command(&fields)?);
    }
    let mut paths = NAMES.paths.iter().filter_map(|key| fields.string(key)).peekable();
    let reads = match fields.string("command") {
        Some(command) if is_among(&NAMES.commanded) => command == "view",
        _ => is_among(&NAMES.readers),
    };
    let first = paths.peek()?;
    Some(if reads { read(&fields, first) } else { FileUse::Edit(paths.map(|path| normal(&path)).collect()) })
}

fn read(fields: &Fields<'_>, path: &str) -> FileUse {
    // Everything that is not given, or begins at the beginning, names no part.
    let names_part = |key: &str, value: &str| value != "null" && !(key == "offset" && matches!(value, "0" | "1"));
    let parts = NAMES.parts.iter().filter_map(|key| Some((key, fields.get(key)?)));
    let parts = parts.filter(|(key, value)| names_part(key, value)).map(|(key, value)| format!("{key} {value}"));
    let part = parts.reduce(|all, part| format!("{all} {part}"));
    FileUse::Read { path: normal(path), part }
}

/// The same path as others write it.
fn normal(path: &str) -> String {
    Path::new(path).components().collect::<std::path::PathBuf>().to_string_lossy().trim_start_matches("./").to_owned()
}

/// The shell command of a call: a text, or words of which a shell's last one is the command.
fn command(fields: &Fields<'_>) -> Option<String> {
    let raw = fields.get("command").or_else(|| fields.get("cmd"))?;
    if let Some(text) = raw::string(raw) {
        return Some(text.into_owned());
    }
    let words: Vec<String> = serde_json::from_str(raw).ok()?;
    match words.as_slice() {
        [shell, flags, command] if shell.ends_with("sh") && flags.starts_with('-') => Some(command.clone()),
        words => Some(words.join(" ")),
    }
}

/// Returns what a patch changes, whether it is all of the arguments, or one of them.
fn patched(text: &str) -> Option<FileUse> {
    let fields = Fields::of(text);
    let inner = fields.as_ref().and_then(|fields| {
        ["input", "patch", "patchText", "patch_text", "diff"].iter().find_map(|key| fields.string(key))
    });
    let text = inner.as_deref().unwrap_or(text);
    let headers = ["*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: "];
    let path = |line: &str| headers.iter().find_map(|header| line.trim().strip_prefix(header)).map(normal);
    let paths: Vec<_> = text.lines().filter_map(path).collect();
    (!paths.is_empty()).then_some(FileUse::Edit(paths))
}

/// Returns what a shell command does, if that is clear.
fn run(command: &str) -> Option<FileUse> {
    if command.contains("*** Begin Patch") {
        return patched(command);
    }
    let (folder, command) = match command.trim().strip_prefix("cd ").and_then(|rest| rest.split_once("&&")) {
        Some((folder, command)) => (folder.trim(), command.trim()),
        None => ("", command.trim()),
    };
    let (command, filter) = command.split_once('|').map_or((command, None), |(one, two)| (one, Some(two.trim())));
    let is_plain = |text: &str| !text.contains(['|', ';', '&', '<', '>', '`', '$', '(', '{', '*', '?', '\n', '\\']);
    let is_filter = |text: &&str| ["sed -n ", "head", "tail"].iter().any(|begin| text.starts_with(begin));
    if !is_plain(command) || !filter.is_none_or(|filter| is_plain(filter) && is_filter(&filter)) {
        return None;
    }
    let words = command.split_whitespace().map(unquoted).collect::<Option<Vec<&str>>>()?;
    let (program, words) = words.split_first()?;
    let (flags, others): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
    let file = |path: &str| normal(Path::new(folder).join(path).to_str().unwrap_or(path));
    let reads = |path: &str, own: &str| {
        let parts: Vec<_> = [own, filter.unwrap_or_default()].into_iter().filter(|part| !part.is_empty()).collect();
        let part = (!parts.is_empty()).then(|| parts.join(" | "));
        Some(FileUse::Read { path: file(path), part })
    };
    match (*program, others.as_slice()) {
        ("cat" | "bat" | "nl", [path]) | ("nl", ["a", path]) => reads(path, ""),
        ("sed", [_, path]) if flags.iter().any(|flag| flag.starts_with("-i")) => Some(FileUse::Edit(vec![file(path)])),
        ("sed", [range, path]) if flags == ["-n"] => reads(path, range),
        ("head" | "tail", [.., path]) => {
            let own = words.iter().filter(|word| *word != path).copied().collect::<Vec<_>>().join(" ");
            reads(path, &format!("{program} {own}"))
        }
        _ => None,
    }
}

/// A word without the quotes around it; none if it is only a part of what the quotes are around.
fn unquoted(word: &str) -> Option<&str> {
    for quote in ['\'', '"'] {
        if let Some(inner) = word.strip_prefix(quote) {
            return inner.strip_suffix(quote).filter(|inner| !inner.contains(quote));
        }
    }
    (!word.contains(['\'', '"'])).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_of(name: &str, arguments: &str) -> String {
        match of_call(&Tools::default(), name, || Some(arguments.to_owned())) {
            None => "nothing".to_owned(),
            Some(FileUse::Read { path, part: None }) => format!("reads {path}"),
            Some(FileUse::Read { path, part: Some(part) }) => format!("reads {part} of {path}"),
            Some(FileUse::Edit(paths)) => format!("edits {}", paths.join(", ")),
        }
    }

    #[test]
    fn tools_of_known_agents_read_and_edit_files() {
        for (name, arguments, expected) in [
            ("Read", r#"{"file_path":"/r/a.rs"}"#, "reads /r/a.rs"),
            ("Read", r#"{"file_path":"/r/a.rs","offset":10,"limit":20}"#, "reads offset 10 limit 20 of /r/a.rs"),
            ("read", r#"{"filePath":"./a//b.rs","offset":0,"limit":null}"#, "reads a/b.rs"),
            ("Edit", r#"{"file_path":"/r/a.rs","old_string":"x","new_string":"y"}"#, "edits /r/a.rs"),
            ("MultiEdit", r#"{"file_path":"/r/a.rs","edits":[]}"#, "edits /r/a.rs"),
            ("NotebookEdit", r#"{"notebook_path":"n.ipynb"}"#, "edits n.ipynb"),
            ("write_to_file", r#"{"path":"a","content":"…"}"#, "edits a"),
            ("replace_in_file", r#"{"path":"a","diff":"…"}"#, "edits a"),
            ("str_replace_editor", r#"{"command":"view","path":"/r/a"}"#, "reads /r/a"),
            (
                "str_replace_editor",
                r#"{"command":"view","path":"/r/a","view_range":[1,9]}"#,
                "reads view_range [1,9] of /r/a",
            ),
            ("str_replace_editor", r#"{"command":"str_replace","path":"/r/a"}"#, "edits /r/a"),
            ("developer__text_editor", r#"{"command":"write","path":"/r/a"}"#, "edits /r/a"),
            ("mcp__files__read_text_file", r#"{"path":"a","head":5}"#, "reads head 5 of a"),
            ("read_file", r#"{"absolute_path":"/r/a"}"#, "reads /r/a"),
            ("move_file", r#"{"source_path":"a","destination_path":"b"}"#, "edits a, b"),
            ("apply_patch", "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n", "edits a, b"),
            ("apply_patch", r#"{"input":"*** Begin Patch\n*** Add File: c\n+x\n"}"#, "edits c"),
            ("Grep", r#"{"pattern":"x","path":"src"}"#, "nothing"),
            ("Read", r#"{"file_path":7}"#, "nothing"),
            ("Read", "no object", "nothing"),
        ] {
            assert_eq!(use_of(name, arguments), expected, "{name} {arguments}");
        }
    }

    #[test]
    fn shell_commands_count_where_they_are_clear() {
        for (command, expected) in [
            ("cat src/a.rs", "reads src/a.rs"),
            ("cat -n './src/a.rs'", "reads src/a.rs"),
            ("cd /r && cat a.rs", "reads /r/a.rs"),
            ("sed -n '1,200p' a.rs", "reads 1,200p of a.rs"),
            ("nl -ba a.rs | sed -n '5,9p'", "reads sed -n '5,9p' of a.rs"),
            ("head -n 50 a.rs", "reads head -n 50 of a.rs"),
            ("sed -i 's/a/b/' a.rs", "edits a.rs"),
            ("apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a.rs\n*** End Patch\nEOF", "edits a.rs"),
            ("cat a.rs b.rs", "nothing"),
            ("cat *.rs", "nothing"),
            ("cat a.rs > b.rs", "nothing"),
            ("cat a.rs | grep x", "nothing"),
            ("cat 'a b.rs'", "nothing"),
            ("cargo test", "nothing"),
            ("", "nothing"),
        ] {
            let arguments = format!("{{\"command\":{}}}", serde_json::to_string(command).unwrap());
            assert_eq!(use_of("Bash", &arguments), expected, "{command}");
        }
        assert_eq!(use_of("shell", r#"{"command":["bash","-lc","cat a"],"workdir":"/r"}"#), "reads a");
        assert_eq!(use_of("shell", r#"{"command":["cat","a"]}"#), "reads a");
        assert_eq!(use_of("exec_command", r#"{"cmd":"sed -n 1,5p a"}"#), "reads 1,5p of a");
    }

    #[test]
    fn settings_of_a_tool_name_its_argument() {
        let tools = Tools::new(
            &toml::from_str("'load_*' = { reads = 'uri' }\nsave = { edits = 'uri' }\nRead = { edits = 'x' }").unwrap(),
        );
        let of = |name: &str, arguments: &str| of_call(&tools, name, || Some(arguments.to_owned()));
        let read = FileUse::Read { path: "a".to_owned(), part: None };
        assert_eq!(of("load_text", r#"{"uri":"a"}"#), Some(read));
        assert_eq!(of("save", r#"{"uri":"a"}"#), Some(FileUse::Edit(vec!["a".to_owned()])));
        assert_eq!(of("Read", r#"{"file_path":"a"}"#), None);
        assert_eq!(of("load_text", r#"{"path":"a"}"#), None);
    }
}
