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
    let message = String::from_utf8(compact::message(SUMMARY).unwrap().to_vec()).unwrap();
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
