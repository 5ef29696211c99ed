//! The tables and the statements, from a file that explains them.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The version of the tables.
pub(super) const VERSION: i64 = 2;

/// The time of a statement, in seconds since 1970.
const NOW: &str = "coalesce($1, floor(extract(epoch FROM now()))::bigint)";

/// The texts after each name, without what explains them.
static STATEMENTS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let named = include_str!("statements.sql").split("-- name: ").skip(1).filter_map(|named| named.split_once('\n'));
    let said = |text: &str| text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    named.map(|(name, text)| (name, said(text))).collect()
});

/// The statements of a name, with the prefix of the tables and the clock.
pub(super) fn statements(name: &str, prefix: &str) -> Vec<String> {
    let text = STATEMENTS.get(name).map_or(name, String::as_str);
    let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
    texts.map(|text| text.replace("abridge_", prefix).replace(":now", NOW)).collect()
}

/// The statement of a name.
pub(super) fn statement(name: &str, prefix: &str) -> String {
    statements(name, prefix).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_but_one_has_one_statement() {
        for name in STATEMENTS.keys() {
            let n = statements(name, "mine_").len();
            assert_eq!(n, if *name == "create" { 14 } else { 1 }, "{name}");
        }
        assert_eq!(STATEMENTS.len(), 38);
        assert_eq!(
            statement("store_plain", "mine_"),
            "ALTER TABLE mine_payloads ALTER COLUMN body SET STORAGE EXTERNAL"
        );
    }
}
