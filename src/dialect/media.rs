//! Parts of a content that hold an image, a file or sound: where the data is, and the text part that may take their place.
//!
//! | part | its data |
//! |---|---|
//! | `image_url`, `video_url` of Chat | `url` in the object of that name, a data URL |
//! | `input_audio` of Chat | `data` in the object of that name, in base64; `format` |
//! | `file` of Chat | `file_data` in the object of that name, a data URL or base64 |
//! | `input_image`, `input_file` of Responses | `image_url`, `file_data`, a data URL or base64 |
//! | `image`, `document` of Messages | `data` in `source`, in base64 or as text; `media_type` |
//!
//! What is only named, by a URL of elsewhere or the id of a file, is not here: it is no data that could be read back.

use std::borrow::Cow;

use bytes::Bytes;

use super::json::{beginning, field, fields_of, objects, text_of};
use super::strings::push_string;
use crate::{payload::media::is_data_url, span::Span};

/// A part of a content that holds an image, a file or sound.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MediaPart<'a> {
    /// The part.
    pub span: Span,
    /// The JSON string with its data.
    pub data: Span,
    /// How that is written.
    pub form: MediaForm<'a>,
}

/// How the data of a part is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MediaForm<'a> {
    /// A data URL.
    Url,
    /// Base64, of this type if the part says one.
    Base64(Option<Cow<'a, str>>),
    /// A text.
    Text,
}

/// The type of a part that is a text in a dialect, and the mark of a part for the prompt cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TextPartNames {
    /// The `type`.
    pub kind: &'static str,
    /// The key of the mark.
    pub mark: &'static str,
}

/// The parts of a content that hold data, in order; none of a content that is not an array, or odd.
pub fn parts(body: &[u8], content: Span) -> Vec<MediaPart<'_>> {
    const KEYS: [&[u8]; 7] = [b"type", b"image_url", b"video_url", b"input_audio", b"file", b"file_data", b"source"];
    let parts = objects(body, content, KEYS, |span, [kind, image, video, sound, file, file_data, source]| {
        let data = match text_of(body, kind).as_deref() {
            Some("image_url" | "input_image") => data(body, image, b"url", b"").filter(is_url),
            Some("video_url") => data(body, video, b"url", b"").filter(is_url),
            Some("input_audio") => data(body, beginning(body, sound, b'{'), b"data", b"format"),
            Some("file") => data(body, beginning(body, file, b'{'), b"file_data", b"format"),
            Some("input_file") => data(body, beginning(body, file_data, b'"'), b"", b""),
            Some("image" | "document") => of_source(body, source),
            _ => None,
        };
        Some(data.map(|(data, form)| MediaPart { span, data, form }))
    });
    parts.unwrap_or_default()
}

/// The content of a message.
pub fn content(body: &[u8], message: Span) -> Option<Span> {
    field(body, message, b"content")
}

fn is_url((_, form): &(Span, MediaForm<'_>)) -> bool {
    *form == MediaForm::Url
}

/// A data URL or base64 that is alone, or in an object that may say its type.
fn data<'a>(body: &'a [u8], value: Option<Span>, key: &[u8], declared: &[u8]) -> Option<(Span, MediaForm<'a>)> {
    let [data, declared] = match beginning(body, value, b'{') {
        Some(object) => fields_of(body, object, [key, declared])?,
        None => [value, None],
    };
    let data = beginning(body, data, b'"')?;
    let base64 = || MediaForm::Base64(text_of(body, declared));
    Some((data, if is_data_url(data.of(body)) { MediaForm::Url } else { base64() }))
}

fn of_source(body: &[u8], source: Option<Span>) -> Option<(Span, MediaForm<'_>)> {
    match text_of(body, field(body, source?, b"type"))?.as_ref() {
        "base64" => data(body, source, b"data", b"media_type"),
        "text" => data(body, source, b"data", b"").map(|(data, _)| (data, MediaForm::Text)),
        _ => None,
    }
}

/// A text part in place of another part, with its mark for the prompt cache.
pub(super) fn text_part(names: TextPartNames, body: &[u8], part: Span, text: &str) -> Bytes {
    let TextPartNames { kind, mark } = names;
    let mut json = Vec::with_capacity(64 + text.len());
    json.extend_from_slice(format!(r#"{{"type":"{kind}","text":"#).as_bytes());
    push_string(&mut json, text);
    if let Some(value) = field(body, part, mark.as_bytes()) {
        json.extend_from_slice(format!(r#","{mark}":"#).as_bytes());
        json.extend_from_slice(value.of(body));
    }
    json.push(b'}');
    json.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str, expected: &[(&str, MediaForm<'_>)]) {
        let body = format!("[1,{content}]");
        let found = parts(body.as_bytes(), Span { start: 3, end: body.len() - 1 });
        let found: Vec<_> = found
            .iter()
            .map(|part| (str::from_utf8(part.data.of(body.as_bytes())).unwrap(), part.form.clone()))
            .collect();
        assert_eq!(found, expected, "{content}");
    }

    #[test]
    fn parts_with_data_are_found_in_every_dialect() {
        let base64 = |declared: &'static str| MediaForm::Base64(Some(declared.into()));
        for (part, data, form) in [
            (r#"{"type":"image_url","image_url":{"url":"data:x","detail":"low"}}"#, r#""data:x""#, MediaForm::Url),
            (r#"{"image_url":"data:x","type":"image_url"}"#, r#""data:x""#, MediaForm::Url),
            (r#"{"type":"image_url","image_url":{"url":"data:image\/png"}}"#, r#""data:image\/png""#, MediaForm::Url),
            (r#"{"type":"video_url","video_url":{"url":"data:v"}}"#, r#""data:v""#, MediaForm::Url),
            (r#"{"type":"input_audio","input_audio":{"data":"QQ==","format":"wav"}}"#, r#""QQ==""#, base64("wav")),
            (r#"{"type":"file","file":{"filename":"a","file_data":"QQ=="}}"#, r#""QQ==""#, MediaForm::Base64(None)),
            (r#"{"type":"file","file":{"file_data":"data:f"}}"#, r#""data:f""#, MediaForm::Url),
            (r#"{"type":"input_image","detail":"auto","image_url":"data:x"}"#, r#""data:x""#, MediaForm::Url),
            (r#"{"type":"input_file","file_data":"data:f","filename":"f"}"#, r#""data:f""#, MediaForm::Url),
            (
                r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}}"#,
                r#""QQ==""#,
                base64("image/png"),
            ),
            (
                r#"{"type":"document","title":"t","source":{"type":"text","media_type":"text/plain","data":"so"}}"#,
                r#""so""#,
                MediaForm::Text,
            ),
        ] {
            check(&format!(r#"[{{"type":"text","text":"a"}}, {part} ,7]"#), &[(data, form)]);
        }
    }

    #[test]
    fn what_is_only_named_and_what_is_odd_is_not_found() {
        for part in [
            r#"{"type":"image_url","image_url":{"url":"https://x/a.png"}}"#,
            r#"{"type":"image_url"}"#,
            r#"{"type":"image_url","image_url":7}"#,
            r#"{"type":"input_image","file_id":"file_1"}"#,
            r#"{"type":"file","file":{"file_id":"file_1"}}"#,
            r#"{"type":"input_file","file_url":"https://x/a.pdf"}"#,
            r#"{"type":"image","source":{"type":"url","url":"https://x/a.png"}}"#,
            r#"{"type":"image","source":{"type":"file","file_id":"1"}}"#,
            r#"{"type":"document","source":{"type":"content","content":[]}}"#,
            r#"{"type":"computer_screenshot","image_url":"data:x"}"#,
            r#"{"type":"browser_state","source":{"type":"base64","data":"QQ=="}}"#,
            r#"{"type":"image_url","image_url":"data:x","image_url":"data:y"}"#,
        ] {
            check(&format!("[{part}]"), &[]);
        }
        check(r#"{"type":"computer_screenshot","image_url":"data:x"}"#, &[]);
        check("\"data:x\"", &[]);
    }

    #[test]
    fn a_text_part_keeps_the_mark_of_the_part_before_it() {
        let names = TextPartNames { kind: "text", mark: "cache_control" };
        let render = |part: &str| {
            let json = text_part(names, part.as_bytes(), Span { start: 0, end: part.len() }, "a \"b\"");
            String::from_utf8(json.to_vec()).unwrap()
        };
        assert_eq!(render(r#"{"type":"image","source":{}}"#), r#"{"type":"text","text":"a \"b\""}"#);
        assert_eq!(
            render(r#"{"type":"image","cache_control": {"type":"ephemeral"}}"#),
            r#"{"type":"text","text":"a \"b\"","cache_control":{"type":"ephemeral"}}"#
        );
    }
}
