//! Texts in files: their sections, and templates whose `$name$` is replaced with a value.

use std::fmt::Display;

/// The text below a head `== name`, where several are in one file; empty without one.
pub(crate) fn section(texts: &'static str, name: &str) -> &'static str {
    let mut texts = texts.split("== ").filter_map(|text| text.split_once('\n'));
    texts.find(|(head, _)| *head == name).map_or("", |(_, text)| text)
}

/// A template with the values in the places of their names. Values are inserted as they are.
pub(crate) fn fill(template: &str, values: &[(&str, &dyn Display)]) -> String {
    let value = |part: &str| values.iter().find(|(name, _)| *name == part).map(|(_, value)| value.to_string());
    template.split('$').map(|part| value(part).unwrap_or_else(|| part.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_replace_their_names_once() {
        assert_eq!(fill("$a$, $b$.", &[("a", &"$b$"), ("b", &1)]), "$b$, 1.");
        assert_eq!(section("== a\nx\n== b\ny\n", "b"), "y\n");
    }
}
