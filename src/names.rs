//! Names: the parts of a text that mean one thing wherever they occur.
//!
//! A *name* is in `snake_case` or `camelCase`, a file with a known extension, a hexadecimal number of at least 7 digits or a
//! decimal one of at least 4. A bare word is never one. A *path* has two slashes or more; one whose last part is a file is
//! known by that.

const MIN_NAME_BYTES: usize = 5;
const MIN_HEX_DIGITS: usize = 7;
const MIN_DIGITS: usize = 4;
const MIN_SLASHES: usize = 2;
/// A decimal number, or `/a/b`.
const MIN_BYTES: usize = 4;

/// The extensions by which a word with a dot is a file.
const EXTENSIONS: [&str; 60] = [
    "bash", "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "db", "env", "ex", "go", "gz", "h", "hpp", "htm",
    "html", "ini", "ipynb", "java", "jpg", "js", "json", "jsonl", "jsx", "kt", "lock", "log", "lua", "md", "mjs",
    "mod", "pdf", "php", "pl", "png", "proto", "py", "rb", "rs", "rst", "scala", "sh", "snap", "sql", "sum", "svelte",
    "svg", "swift", "toml", "ts", "tsx", "txt", "vue", "xml", "yaml", "yml", "zig", "zip",
];

/// The names in a text, in order; one that comes again is there again.
pub fn names(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    tokens(text, |_| false).filter(|token| token.len() >= MIN_DIGITS).flat_map(|token| {
        let file = is_file(token).then_some(token);
        let words = token.split(['-', '.']).filter(move |word| file.is_none() && is_name(word));
        file.into_iter().chain(words)
    })
}

/// The paths in a text whose last part is not a file, in order.
pub fn paths(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let paths = tokens(text, |c| matches!(c, '/' | '~' | '@' | '+')).map(|token| token.trim_end_matches('/'));
    paths.filter(|path| {
        let n_slashes = path.bytes().filter(|byte| *byte == b'/').count();
        let is_known_by_its_end = path.rsplit('/').next().is_some_and(is_file);
        n_slashes >= MIN_SLASHES && !path.contains("//") && !is_known_by_its_end
    })
}

/// The runs of characters that names consist of, and of some more, except those that are too short for a name or a path.
fn tokens(text: &str, is_part_too: impl Fn(char) -> bool) -> impl DoubleEndedIterator<Item = &str> {
    let is_part = move |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') || is_part_too(c);
    let long = text.split(move |c| !is_part(c)).filter(|token| token.len() >= MIN_BYTES);
    long.map(|token| token.trim_matches(['-', '.']))
}

fn is_file(token: &str) -> bool {
    let extension = token.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|extension| EXTENSIONS.binary_search(&extension).is_ok())
}

fn is_name(word: &str) -> bool {
    let bytes = word.as_bytes();
    let pairs = || bytes.iter().zip(bytes.iter().skip(1));
    if bytes.iter().all(u8::is_ascii_digit) {
        return bytes.len() >= MIN_DIGITS;
    }
    let is_hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex && bytes.len() >= MIN_HEX_DIGITS && bytes.iter().any(u8::is_ascii_digit) {
        return true;
    }
    let is_snake = || word.trim_matches('_').contains('_');
    let is_camel = || pairs().any(|(one, next)| one.is_ascii_lowercase() && next.is_ascii_uppercase());
    bytes.len() >= MIN_NAME_BYTES && (is_snake() || is_camel())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_form_that_words_do_not_have() {
        let names = |text| names(text).collect::<Vec<_>>();
        assert_eq!(
            names("open(src/main_loop.rs) getValue httpServer2go MAX_LEN deadbe3f 0123 a-b_cde.x"),
            ["main_loop.rs", "getValue", "httpServer2go", "MAX_LEN", "deadbe3f", "0123", "b_cde"]
        );
        for none in ["word Word WORD self.value e.g. a_b 123 abc1234x deadbeef _private__ x-y", "été naïveté"] {
            assert_eq!(names(none), [""; 0], "{none}");
        }
        assert_eq!(names("2026-11-22"), ["2026"]);
    }

    #[test]
    fn a_path_has_two_slashes_and_no_file_at_its_end() {
        let paths = |text| paths(text).collect::<Vec<_>>();
        assert_eq!(
            paths("cd /etc/sites/new, ls ./a/b/ ~/x/y. @org/pkg/sub"),
            ["/etc/sites/new", "/a/b", "~/x/y", "@org/pkg/sub"]
        );
        for none in ["and/or", "/tmp", "src/store/pool.rs", "https://host/v1/x", "//comment/of/code", "//", "a / b / c"]
        {
            assert_eq!(paths(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn extensions_are_in_order() {
        assert!(EXTENSIONS.is_sorted());
    }
}
