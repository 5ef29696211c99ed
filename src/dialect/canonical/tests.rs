//! What makes no difference to a message, and what does.

use super::*;

/// How messages of a dialect are read.
type Read = fn(&[u8]) -> ReadResult<Vec<Field<'_>>>;

fn canonical(read: Read, message: &str) -> String {
    let written = |field: Field<'_>| format!("{}={}", field.name, String::from_utf8(field.value.concat()).unwrap());
    read(message.as_bytes()).unwrap().into_iter().map(written).collect::<Vec<_>>().join(" ")
}

/// All of them read alike. Returns how.
fn same(read: Read, messages: &[&str]) -> String {
    let all: Vec<_> = messages.iter().map(|message| canonical(read, message)).collect();
    assert!(all.iter().all(|one| *one == all[0]), "{all:#?}");
    all[0].clone()
}

fn check_all_differ(read: Read, messages: &[&str]) {
    let mut all: Vec<_> = messages.iter().map(|message| canonical(read, message)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), messages.len(), "{all:#?}");
}

#[test]
fn what_is_odd_is_left_as_it_is() {
    for read in [chat, message, item] {
        for odd in [r#"{"\u0072ole":"user"}"#, "[]", r#"{"role":"user""#] {
            assert!(read(odd.as_bytes()).is_err(), "{odd}");
        }
    }
    let deep = format!(r#"{{"role":"user","content":{}{}}}"#, r#"[{"content":"#.repeat(50_000), "}]".repeat(50_000));
    assert!(message(deep.as_bytes()).is_err());
}

mod chat {
    use super::*;

    fn same(messages: &[&str]) -> String {
        super::same(chat, messages)
    }

    #[test]
    fn marks_for_a_prompt_cache_are_not_read() {
        let user = same(&[
            r#"{"role":"user","content":"x"}"#,
            r#"{ "role" : "user" , "content" : "x" }"#,
            r#"{"content":"x","role":"user"}"#,
            r#"{"role":"user","content":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[ {"text":"x", "type":"text", "cache_control":{"type":"ephemeral"}} ]}"#,
            r#"{"role":"user","name":null,"content":[{"type":"text","text":"x","cache_control":null}]}"#,
        ]);
        let image = r#"{"type":"image_url","image_url":{"url":"data:"}"#;
        let pictured = same(&[
            &format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"}},{image}}}]}}"#),
            &format!(r#"{{"role":"user","content":[{{"type":"text","text":"x"}}, {image},"cache_control":{{}}}}]}}"#),
        ]);
        assert_ne!(user, pictured);
        let call = r#""id":"1","type":"function","function":{"name":"f","arguments":"{\"cache_control\":1}"}"#;
        same(&[
            &format!(r#"{{"role":"assistant","tool_calls":[{{{call}}}]}}"#),
            &format!(r#"{{"role":"assistant","tool_calls":[{{{call},"cache_control":{{}}}}]}}"#),
        ]);
    }

    #[test]
    fn thoughts_are_not_read() {
        same(&[
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"assistant","content":"x","reasoning_content":"so"}"#,
            r#"{"role":"assistant","reasoning":"so","reasoning_details":[{"type":"reasoning.text"}],"content":"x"}"#,
            r#"{"role":"assistant","thinking_blocks":[{}],"content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"x"}]}"#,
        ]);
        same(&[
            r#"{"role":"assistant","tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"1"}],"thinking":"so"}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":""}],"tool_calls":[{"id":"1"}]}"#,
        ]);
    }

    #[test]
    fn all_else_is() {
        let others = [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x "}"#,
            r#"{"role":"user","content":"\u0078"}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x","annotations":[]}]}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user","content":"x","name":"cache_control"}"#,
            r#"{"role":"tool","content":"x","tool_call_id":"1"}"#,
            r#"{"role":"tool","content":"x","tool_call_id":"2"}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1"}]}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1"},{"id":"2"}]}"#,
            r#"{"role":"assistant","tool_calls":[{"id":"1","reason":"x"}]}"#,
        ];
        check_all_differ(chat, &others);
    }
}

mod messages {
    use super::*;

    fn same(messages: &[&str]) -> String {
        super::same(message, messages)
    }

    #[test]
    fn marks_for_a_prompt_cache_are_not_read() {
        let user = same(&[
            r#"{"role":"user","content":"x"}"#,
            r#"{ "role" : "user" , "content" : "x" }"#,
            r#"{"content":"x","role":"user"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[ {"text":"x", "type":"text", "cache_control":{"type":"ephemeral","ttl":"1h"}} ]}"#,
            r#"{"type":"text","text":"x"}"#,
            r#"{"type":"text","text":"x","citations":null,"cache_control":{"type":"ephemeral"}}"#,
        ]);
        let result = same(&[
            r#"{"type":"tool_result","tool_use_id":"1","content":"x"}"#,
            r#"{"tool_use_id":"1","type":"tool_result","content":[{"type":"text","text":"x"}],"cache_control":{}}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"text":"x","type":"text","cache_control":{}}]}]}"#,
        ]);
        assert_ne!(user, result);
        same(&[
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"cache_control":1}}]}"#,
            r#"{"role":"assistant","content":[{"input":{"cache_control":1},"type":"tool_use","id":"1","cache_control":{},"name":"f"}]}"#,
        ]);
    }

    #[test]
    fn thoughts_are_not_read() {
        same(&[
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"so","signature":"s"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"s"},{"type":"text","text":"x"}]}"#,
        ]);
    }

    #[test]
    fn all_else_is() {
        let others = [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x "}"#,
            r#"{"role":"user","content":"\u0078"}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x","citations":[]}]}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user"}"#,
            r#"{"type":"tool_result","tool_use_id":"1","content":"x"}"#,
            r#"{"type":"tool_result","tool_use_id":"2","content":"x"}"#,
            r#"{"type":"tool_result","tool_use_id":"1","content":"x","is_error":true}"#,
            r#"{"type":"tool_result","tool_use_id":"1"}"#,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]}"#,
        ];
        check_all_differ(message, &others);
    }
}

mod responses {
    use super::*;

    fn same(messages: &[&str]) -> String {
        super::same(item, messages)
    }

    #[test]
    fn a_message_is_the_same_in_every_spelling() {
        same(&[
            r#""x""#,
            r#"{"role":"user","content":"x"}"#,
            r#"{ "content" : "x", "role":"user" , "type" : "message", "status":null,"id":"msg_1"}"#,
            r#"{"role":"user","content":[{"type":"input_text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"text":"x","prompt_cache_breakpoint":{"mode":"explicit"},"type":"input_text"}]}"#,
        ]);
        same(&[
            r#"{"type":"message","role":"assistant","content":"x"}"#,
            r#"{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"x","annotations":[],"logprobs":[]}]}"#,
        ]);
    }

    #[test]
    fn ids_of_items_and_thoughts_are_not_read() {
        same(&[
            r#"{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}"#,
            r#"{"type":"function_call","id":"fc_1","status":"completed","call_id":"1","name":"f","arguments":"{}"}"#,
        ]);
        same(&[
            r#"{"type":"reasoning","summary":[]}"#,
            r#"{"type":"reasoning","id":"rs_1","summary":[{}],"encrypted_content":"gAAA","content":[]}"#,
        ]);
        same(&[
            r#"{"type":"function_call_output","call_id":"1","output":"x"}"#,
            r#"{"type":"function_call_output","call_id":"1","id":"fco_1","output":[{"type":"input_text","text":"x"}]}"#,
        ]);
    }

    #[test]
    fn all_else_is() {
        let others = [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x "}"#,
            r#"{"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"input_image","image_url":"x"}]}"#,
            r#"{"role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{}]}]}"#,
            r#"{"type":"item_reference","id":"1"}"#,
            r#"{"type":"item_reference","id":"2"}"#,
            r#"{"type":"web_search_call","id":"1"}"#,
            r#"{"type":"compaction","encrypted_content":"a"}"#,
            r#"{"type":"compaction","encrypted_content":"b"}"#,
            r#"{"type":"function_call","call_id":"1","name":"f"}"#,
            r#"{"type":"custom_tool_call","call_id":"1","name":"f"}"#,
            r#"{"type":"function_call","call_id":"2","name":"f"}"#,
            r#"{"type":"function_call_output","call_id":"1","output":"x"}"#,
            r#"{"type":"reasoning"}"#,
        ];
        check_all_differ(item, &others);
    }
}
