//! Request bodies: one that no edit touches, one with a call that no one answered; and the messages in a body.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Nothing to edit. Key order, blanks, escapes, numbers and unknown keys are such as a re-serialiser would change.
pub(crate) const PLAIN: &str = concat!(
    "{ \"temperature\": 1.0, \"seed\":123456789012345678901234567890,\"top_p\":1e0 ,\n",
    "\t\"messages\" : [ {\"content\":\"caf\\u00e9 \\/ \u{1f980}\",\"role\":\"user\", \"cache_control\":{\"type\":\"ephemeral\"}},\r\n",
    "{\"role\":\"assistant\",\"reasoning_content\":\"\",\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",",
    "\"function\":{\"name\":\"read\",\"arguments\":\"{\\\"path\\\": \\\"a\\\"}\"},\"extra_content\":{\"google\":{\"thought_signature\":\"AA==\"}}}]},",
    "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"\"} ],\"model\":\"m\",\"unknown\":{\"b\":1,\"a\":[1E+2, -0.0]} }",
);

/// One call of two has no result; a user message follows the gap.
pub(crate) const DANGLING: &str = concat!(
    "{\"model\":\"m\", \"messages\":[{\"role\":\"user\",\"content\":\"go\"},",
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[",
    "{\"id\":\"call_a\",\"type\":\"function\",\"function\":{\"name\":\"read\",\"arguments\":\"{}\"}},",
    "{\"id\":\"call_b\",\"type\":\"function\",\"function\":{\"name\":\"list\",\"arguments\":\"{}\"}}]},",
    "{\"role\":\"tool\",\"tool_call_id\":\"call_a\",\"content\":\"done\"}",
    ",{\"role\":\"user\",\"content\":\"and then?\"}], \"temperature\": 1.0}",
);

#[derive(Debug, Deserialize)]
struct Inserted {
    role: String,
    tool_call_id: String,
    content: String,
}

/// Sees to it that `body` is [`DANGLING`] with a result for `call_b` after the one of `call_a`, and not a byte else.
pub(crate) fn assert_patched(body: &[u8]) {
    let (before, after) = DANGLING.split_once(",{\"role\":\"user\",\"content\":\"and then?\"}").unwrap();
    let after = format!(",{{\"role\":\"user\",\"content\":\"and then?\"}}{after}");
    let body = std::str::from_utf8(body).unwrap();
    let inserted = body.strip_prefix(before).and_then(|rest| rest.strip_suffix(&*after));
    let inserted = inserted.unwrap_or_else(|| panic!("what stood there before should stand there still: {body}"));
    let inserted: Inserted = serde_json::from_str(inserted.trim_start_matches(',')).unwrap();
    assert_eq!((&*inserted.role, &*inserted.tool_call_id), ("tool", "call_b"));
    let text = "Tool call list (call_b) has no result: it was interrupted before it finished.";
    assert_eq!(inserted.content, text);
}

/// The elements of the message array of a body, as they are written.
pub(crate) fn elements(body: &[u8]) -> Vec<&str> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        messages: Vec<&'a RawValue>,
    }
    let request: Request<'_> = serde_json::from_slice(body).expect("valid JSON");
    request.messages.iter().map(|raw| raw.get()).collect()
}
