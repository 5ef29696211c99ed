//! Sets a string in JSON, with or without comments, and leaves every other byte as it is.

/// Reads on from a place in a text.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

/// Where a path of keys ends.
enum Place<'p> {
    /// The value is there.
    Value { from: usize, to: usize },
    /// The rest of the path belongs into the object whose brace is there.
    Object { open: usize, rest: &'p [&'p str] },
}

/// The text with `value` at the end of the path of keys; objects that are missing are inserted. `None` if the text is no
/// object, or another value stands in the way.
pub(super) fn set(text: &str, path: &[&str], value: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some(format!("{{\n  {}\n}}\n", member(path, value)?));
    }
    let mut scanner = Scanner { text, at: 0 };
    scanner.skip_blank();
    match scanner.find(path)? {
        Place::Value { from, to } => {
            let (before, after) = (text.get(..from)?, text.get(to..)?);
            // Equal strings may be spelled differently.
            let is_equal = serde_json::from_str::<String>(text.get(from..to)?).is_ok_and(|present| present == value);
            Some(if is_equal { text.to_owned() } else { format!("{before}{}{after}", quoted(value)) })
        }
        Place::Object { open, rest } => insert(text, open, &member(rest, value)?),
    }
}

/// The string at the end of the path of keys.
pub(super) fn get(text: &str, path: &[&str]) -> Option<String> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.skip_blank();
    let Place::Value { from, to } = scanner.find(path)? else { return None };
    serde_json::from_str(text.get(from..to)?).ok()
}

/// Inserts a member as the first one of an object, on a line of its own if the others are.
fn insert(text: &str, open: usize, member: &str) -> Option<String> {
    let (before, after) = text.split_at_checked(open + 1)?;
    let mut scanner = Scanner { text: after, at: 0 };
    scanner.skip_blank();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let indent = line.get(..line.len() - line.trim_start().len()).unwrap_or_default();
    if scanner.peek() == Some(b'}') {
        return Some(format!(
            "{before}\n{indent}  {member}\n{indent}{}",
            after.trim_start_matches([' ', '\t', '\r', '\n'])
        ));
    }
    let blank = after.get(..after.len() - after.trim_start().len()).unwrap_or_default();
    let blank = if after.trim_start().starts_with('/') { format!("\n{indent}  ") } else { blank.to_owned() };
    Some(format!("{before}{blank}{member},{after}"))
}

/// `"a": { "b": "value" }`.
fn member(path: &[&str], value: &str) -> Option<String> {
    let (key, rest) = path.split_first()?;
    let value = if rest.is_empty() { quoted(value) } else { format!("{{ {} }}", member(rest, value)?) };
    Some(format!("{}: {value}", quoted(key)))
}

fn quoted(text: &str) -> String {
    // A string has a JSON form.
    serde_json::to_string(text).unwrap_or_default()
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Goes on if this byte is next.
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Skips blanks and comments.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{feff}']).len();
            let comment = match rest.get(blanks..blanks + 2) {
                Some("//") => rest.get(blanks..).and_then(|rest| rest.find('\n')).unwrap_or(rest.len() - blanks),
                Some("/*") => {
                    rest.get(blanks..).and_then(|rest| rest.find("*/")).map_or(rest.len() - blanks, |at| at + 2)
                }
                _ => 0,
            };
            self.at += blanks + comment;
            if comment == 0 {
                return;
            }
        }
    }

    /// Skips a string, and returns what it says.
    fn string(&mut self) -> Option<String> {
        let from = self.at;
        self.take(b'"')?;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        serde_json::from_str(self.text.get(from..self.at)?).ok()
    }

    /// Skips a value.
    fn value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.skip_blank();
            match self.peek()? {
                b'"' => drop(self.string()?),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' | b',' | b':' if depth == 0 => return None,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => {
                    let rest = self.rest();
                    self.at +=
                        rest.find([',', ':', '}', ']', '/', '"', ' ', '\t', '\r', '\n']).unwrap_or(rest.len()).max(1);
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Finds the end of a path in the object that begins here. Of equal keys the last one counts.
    fn find<'p>(&mut self, path: &'p [&'p str]) -> Option<Place<'p>> {
        let (key, rest) = path.split_first()?;
        let open = self.at;
        self.take(b'{')?;
        let mut found = Place::Object { open, rest: path };
        loop {
            self.skip_blank();
            if self.peek()? == b'}' {
                return Some(found);
            }
            let name = self.string()?;
            self.skip_blank();
            self.take(b':')?;
            self.skip_blank();
            let from = self.at;
            self.value()?;
            let to = self.at;
            if name == *key {
                found = if rest.is_empty() {
                    Place::Value { from, to }
                } else {
                    Scanner { text: self.text, at: from }.find(rest)?
                };
            }
            self.skip_blank();
            if self.take(b',').is_none() && self.peek()? != b'}' {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: [&str; 2] = ["env", "URL"];

    #[test]
    fn a_value_is_replaced_and_nothing_else() {
        let text = "// mine\n{ \"a\" : [1, {\"env\": {}}, \"}\"], /* x { */ \"env\":{\"K\":\"s\\\"\", \"URL\" : \"old\" ,},\n}\n";
        assert_eq!(set(text, &PATH, "new").unwrap(), text.replace("\"old\"", "\"new\""));
        assert_eq!(set(text, &PATH, "old").unwrap(), text);
        let spelled = r#"{"env":{"URL":"http:\/\/h"}}"#;
        assert_eq!(set(spelled, &PATH, "http://h").unwrap(), spelled);
    }

    #[test]
    fn a_member_is_inserted_as_the_others_are_written() {
        let cases = [
            ("", "{\n  \"env\": { \"URL\": \"u\" }\n}\n"),
            ("{}\n", "{\n  \"env\": { \"URL\": \"u\" }\n}\n"),
            ("{\"a\":1}", "{\"env\": { \"URL\": \"u\" },\"a\":1}"),
            ("{\n\t\"a\": 1\n}\n", "{\n\t\"env\": { \"URL\": \"u\" },\n\t\"a\": 1\n}\n"),
            ("{\n    \"env\": {\n    }\n}", "{\n    \"env\": {\n      \"URL\": \"u\"\n    }\n}"),
            ("{\n  // c\n  \"a\": 1\n}", "{\n  \"env\": { \"URL\": \"u\" },\n  // c\n  \"a\": 1\n}"),
            ("{\"env\":{\"K\":1}}", "{\"env\":{\"URL\": \"u\",\"K\":1}}"),
        ];
        for (text, expected) in cases {
            let set = set(text, &PATH, "u").unwrap_or_else(|| panic!("{text:?}"));
            assert_eq!(set, expected);
            assert_eq!(super::set(&set, &PATH, "u").as_deref(), Some(expected), "again");
        }
    }

    #[test]
    fn what_is_no_object_is_left() {
        for text in ["[]", "{\"env\": 1}", "{\"env\" 1}", "{", "{\"a\": \"x}", "nonsense", "{,}", "{\"a\":}"] {
            assert_eq!(set(text, &PATH, "u"), None, "{text:?}");
        }
    }
}
