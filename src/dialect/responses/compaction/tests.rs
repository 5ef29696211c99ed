//! The trigger, the items, and the stream of a compaction.

use super::*;

const SUMMARY: &str = r#"{"role":"user","content":"They \"counted\"\n\u00e9."}"#;

fn body(items: &[&str]) -> Bytes {
    format!(r#"{{"model":"m", "input":[ {} ] ,"stream":true}}"#, items.join(" , ")).into()
}

fn made(streams: bool) -> String {
    made_of(SUMMARY, streams)
}

fn made_of(last: &str, streams: bool) -> String {
    let developer = r#"{"role":"developer","content":"x"}"#;
    let body = body(&[developer, r#"{"type":"additional_tools","tools":[]}"#, last]);
    let trigger = CompactionTrigger { conversation: Bytes::new(), streams };
    let compaction = Compaction { body: &body, id: "1", made_at: 7, tokens: (90, 9), trigger: Some(&trigger) };
    String::from_utf8(response(&compaction, &trigger).unwrap().to_vec()).unwrap()
}

#[test]
fn a_trigger_is_the_last_item_and_leaves_with_its_comma() {
    let found = |items: &[&str]| trigger(&body(items)).map(|found| (found.conversation, found.streams));
    assert_eq!(found(&[SUMMARY, r#"{"type":"compaction_trigger"}"#]), Some((body(&[SUMMARY]), true)));
    assert_eq!(found(&[r#"{"type":"compaction_trigger"}"#]), Some((body(&[""]), true)));
    for other in [
        &[SUMMARY][..],
        &[r#"{"type":"compaction_trigger"}"#, SUMMARY],
        &[r#"{"type":"message","content":"compaction_trigger"}"#],
        &[],
    ] {
        assert_eq!(found(other), None, "{other:?}");
    }
}

#[test]
fn what_a_client_sends_back_becomes_the_items_again() {
    let answer = made(false);
    let response = Fields::of(&answer).unwrap();
    let output = elements(response.get("output").unwrap()).unwrap();
    let [item] = &output[..] else { panic!("{output:?}") };
    assert_eq!(Fields::of(item).unwrap().string("type").as_deref(), Some("compaction"));
    let user = r#"{"role":"user","content":"go on"}"#;
    let message = message(SUMMARY).unwrap();
    assert_eq!(restored(&body(&[user, item, user])), Some(body(&[user, &message, user])));
    // That of someone else is for the upstream.
    for other in [
        r#"{"type":"compaction","encrypted_content":"gAAA"}"#,
        &item.replace("\"compaction\"", "\"message\""),
        &item.replace(":[{", ":{["),
    ] {
        assert_eq!(restored(&body(&[user, other])), None, "{other}");
    }
}

#[test]
fn a_compaction_of_nothing_can_be_sent_back() {
    let answer = made_of(r#"{"role":"developer","content":"y"}"#, false);
    let item = elements(Fields::of(&answer).unwrap().get("output").unwrap()).unwrap()[0];
    assert_eq!(restored(&body(&[item])), Some(body(&[NOTHING])));
}

#[test]
fn a_stream_has_one_compaction_and_ends_completed() {
    let events = made(true);
    let names: Vec<_> = events.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names,
        ["response.created", "response.output_item.added", "response.output_item.done", "response.completed"]
    );
    for (n, data) in events.lines().filter_map(|line| line.strip_prefix("data: ")).enumerate() {
        let event = Fields::of(data).unwrap();
        assert_eq!(
            (event.string("type").as_deref(), event.get("sequence_number")),
            (Some(names[n]), Some(&*n.to_string()))
        );
    }
    assert!(events.contains(&format!(r#""response":{}"#, made(false))), "{events}");
}

// === requests for a compaction ===

fn output(input: &str) -> Option<String> {
    let body = format!(r#"{{"model":"m","input":{input},"instructions":"x"}}"#);
    let made = answer(&Compaction { body: body.as_bytes(), id: "cmp", made_at: 7, tokens: (90, 9), trigger: None })?;
    let text = String::from_utf8(made.to_vec()).unwrap();
    let rest = text.strip_prefix(r#"{"id":"cmp","object":"response.compaction","created_at":7,"output":["#).unwrap();
    let (output, usage) = rest.split_once(r#"],"usage":"#).unwrap();
    assert_eq!(
        usage,
        r#"{"input_tokens":90,"input_tokens_details":{"cached_tokens":0},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":99}}"#
    );
    Some(output.to_owned())
}

#[test]
fn messages_have_parts_and_other_items_stay_as_they_are() {
    let part = |role: &str, kind: &str| {
        format!(r#"{{"type":"message","role":"{role}","content":[{{"type":"{kind}","text":"a\u00e9\n"}}]}}"#)
    };
    for (role, kind) in [("user", "input_text"), ("developer", "input_text"), ("assistant", "output_text")] {
        for head in ["", r#""type":"message","#] {
            let item = format!(r#"{{{head}"role":"{role}","content":"a\u00e9\n"}}"#);
            assert_eq!(output(&format!("[{item}]")).unwrap(), part(role, kind));
        }
    }
    assert_eq!(output(r#""a\u00e9\n""#).unwrap(), part("user", "input_text"));
    let others = [
        r#"{"role":"user","content":[{"type":"input_text","text":"x"}]}"#,
        r#"{ "type":"compaction", "encrypted_content":"gA==" }"#,
        r#"{"type":"function_call_output","call_id":"c","output":"x"}"#,
        r#"{"type":"other","role":"user","content":"x"}"#,
        "7",
    ]
    .join(",");
    assert_eq!(output(&format!("[{others}]")).unwrap(), others);
    assert_eq!(output("[]").unwrap(), "");
}

#[test]
fn without_items_there_is_no_answer() {
    for input in ["{}", "7"] {
        assert_eq!(output(input), None, "{input}");
    }
    assert!(answer(&Compaction { body: b"[]", id: "cmp", made_at: 7, tokens: (0, 0), trigger: None }).is_none());
}
