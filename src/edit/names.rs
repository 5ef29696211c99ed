//! Names of tools and patterns of them: `*` matches any characters, `?` one.

use crate::wildcard;

/// Whether `name` is what `pattern` says. Letter case matters, as it does to upstreams.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    wildcard::matches(pattern.chars(), name.chars())
}

/// Whether it is a pattern and not simply a name.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether one of `patterns` fits.
pub(super) fn any_fits(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [
            ("bash", "bash"),
            ("*", ""),
            ("*", "x"),
            ("mcp__*", "mcp__a"),
            ("*_file", "read_file"),
            ("a*b*c", "aXbYbZc"),
            ("?", "é"),
            ("**", "a"),
            ("a*", "a"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("bash", "Bash"),
            ("", "x"),
            ("x", ""),
            ("mcp__*", "mcp_a"),
            ("*_file", "read_files"),
            ("a*b*c", "aXbYbZ"),
            ("?", ""),
            ("?", "ab"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(is_pattern("a*") && is_pattern("?a") && !is_pattern("mcp__a"));
        let (pattern, name) = ("a*".repeat(40) + "b", "a".repeat(4000));
        assert!(!fits(&pattern, &name));
    }
}
