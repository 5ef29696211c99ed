//! The title of a conversation: the first words of the user.

use bytes::Bytes;

use super::RequestView;
use crate::dialect::Dialect;

/// The longest title, in characters.
const MAX_TITLE: usize = 80;

/// The title of a conversation; `None` if the user says nothing in words.
///
/// Clients put reminders and facts about the machine before the words, in sections with tags or in separate messages. So the title
/// is the last text before the first answer, without such sections.
pub fn title(dialect: &dyn Dialect, body: &Bytes) -> Option<String> {
    let conversation = dialect.parse(body).ok()?;
    let view = RequestView::new(dialect, body, &conversation);
    let texts: Vec<_> = conversation
        .opening()
        .flat_map(|element| conversation.unit_range(&element.units))
        .flat_map(|unit| view.texts(unit))
        .collect();
    texts.iter().rev().find_map(|text| words(text))
}

fn words(text: &str) -> Option<String> {
    let mut text = text.trim_start();
    while let Some(rest) = after_section(text) {
        text = rest.trim_start();
    }
    let mut title = String::new();
    for word in text.split_whitespace() {
        if title.chars().count() >= MAX_TITLE {
            break;
        }
        if !title.is_empty() {
            title.push(' ');
        }
        title.extend(word.chars().take(MAX_TITLE));
    }
    let end = title.char_indices().nth(MAX_TITLE).map_or(title.len(), |(end, _)| end);
    title.truncate(end);
    (!title.is_empty()).then_some(title)
}

/// The text after a section `<name>…</name>` that it begins with.
fn after_section(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('<')?.split_once('>')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    text.split_once(&format!("</{name}>")).map(|(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    fn title_of(path: &str, body: &str) -> Option<String> {
        title(dialect::for_path(path).unwrap(), &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn it_is_the_words_of_the_user_and_not_what_clients_put_before_them() {
        let messages = r#"{"model":"m","messages":[{"role":"user","content":[
            {"type":"text","text":"<system-reminder>Be brief.</system-reminder>"},
            {"type":"text","text":"<system-reminder>a</system-reminder>\n Fix  the\nbuild "}]},
            {"role":"assistant","content":"Yes."},{"role":"user","content":"And the tests"}]}"#;
        assert_eq!(title_of("/v1/messages", messages).as_deref(), Some("Fix the build"));
        let responses = r#"{"model":"m","input":[{"role":"developer","content":"Rules"},
            {"role":"user","content":[{"type":"input_text","text":"<environment_context>x</environment_context>"}]},
            {"role":"user","content":[{"type":"input_text","text":"Why <b>?"}]}]}"#;
        assert_eq!(title_of("/v1/responses", responses).as_deref(), Some("Why <b>?"));
        let chat = |content: &str| {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
            title_of("/v1/chat/completions", &body)
        };
        assert_eq!(chat("<p>not</q> a section").as_deref(), Some("<p>not</q> a section"));
        assert_eq!(chat(" "), None);
        assert_eq!(chat(&"é ".repeat(500)).unwrap().chars().count(), MAX_TITLE);
        assert_eq!(chat(&"é".repeat(500)).unwrap().chars().count(), MAX_TITLE);
    }
}
