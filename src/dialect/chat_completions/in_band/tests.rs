//! Calls of the tool in chunks and whole answers, and after errors.

use super::*;

/// Returns what the client gets of a round, whose chunks have these choices, and whether the model is asked again.
fn round(joiner: &mut ChatJoiner, choices: &[&str]) -> (String, Option<bool>) {
    let mut passed = String::new();
    for choice in choices {
        let chunk = Bytes::from(format!(r#"data: {{"id":"1","choices":[{choice}]}}"#) + "\n\n");
        let data = chunk.strip_prefix(b"data: ").unwrap().trim_ascii();
        passed += str::from_utf8(&joiner.event(&chunk, data)).unwrap();
    }
    let calls = Some(joiner.calls()).filter(|calls| !calls.own.is_empty()).map(|calls| calls.is_alone);
    (passed, calls)
}

fn own(id: &str, place: &str) -> String {
    format!(
        r#"{{{place}"id":"{id}","type":"function","extra_content":{{"google":"sig"}},"function":{{"name":"abridge_recall","arguments":"{{}}"}}}}"#
    )
}

#[test]
fn calls_that_come_whole_and_without_numbers_are_told_apart() {
    for place in ["", r#""index":0,"#] {
        let mut joiner = ChatJoiner::default();
        let calls = [own("a", place), own("b", place)].join(",");
        let choice =
            format!(r#"{{"delta":{{"role":"assistant","tool_calls":[{calls}]}},"finish_reason":"tool_calls"}}"#);
        let (passed, is_alone) = round(&mut joiner, &[&choice]);
        assert!(is_alone == Some(true) && passed.contains("assistant") && !passed.contains("abridge"), "{passed}");
        let exchange = joiner.exchange(&["one".to_owned(), "two".to_owned()]);
        let [message, one, two] = [0, 1, 2].map(|n| str::from_utf8(&exchange[n]).unwrap());
        assert!(message.contains("sig") && message.contains(r#""content":null"#), "a signature goes back: {message}");
        assert!(one.contains(r#""tool_call_id":"a""#) && two.contains(r#""tool_call_id":"b""#), "{one} {two}");
    }
}

#[test]
fn an_error_behind_an_own_call_goes_on_once_and_nothing_else_follows_but_the_end() {
    let call = format!(r#"{{"delta":{{"tool_calls":[{}]}}}}"#, own("a", r#""index":0,"#));
    let mut joiner = ChatJoiner::default();
    round(&mut joiner, &[&call]);
    let error =
        br#"{"error":{"message":"overloaded"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#;
    let passed = joiner.event(&Bytes::new(), error);
    assert_eq!(str::from_utf8(&passed).unwrap().matches("overloaded").count(), 1);
    assert_eq!(joiner.event(&Bytes::from_static(b"data: [DONE]"), b"[DONE]"), b"data: [DONE]"[..]);
    assert!(joiner.calls().own.is_empty() && joiner.close().is_none() && joiner.rest().is_empty());
    // Some servers write the key into each chunk.
    let end = br#"{"error":null,"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#;
    let mut joiner = ChatJoiner::default();
    round(&mut joiner, &[&call]);
    joiner.event(&Bytes::new(), end);
    assert!(joiner.calls().is_alone);
}

#[test]
fn half_a_surrogate_and_ids_that_are_numbers_do_not_end_a_round() {
    let call = own("7", r#""index":0,"#).replace("\"7\"", "7");
    let chunk = format!(r#"{{"delta":{{"content":"\ud83d","tool_calls":[{call}]}},"finish_reason":"tool_calls"}}"#);
    let mut joiner = ChatJoiner::default();
    let (passed, is_alone) = round(&mut joiner, &[&chunk]);
    assert!(is_alone == Some(true) && passed.contains('\u{fffd}') && !passed.contains("abridge"), "{passed}");
    let results = joiner.results(&["one".to_owned()]);
    assert!(str::from_utf8(&results[0]).unwrap().contains(r#""tool_call_id":7"#));
}

#[test]
fn what_is_said_in_the_chunk_of_a_call_passes_and_a_round_that_breaks_off_is_not_answered() {
    let call = own("a", r#""index":0,"#);
    let said = format!(r#"{{"delta":{{"content":"text","tool_calls":[{call}]}},"finish_reason":"tool_calls"}}"#);
    let mut joiner = ChatJoiner::default();
    let (passed, is_alone) = round(&mut joiner, &[&said]);
    assert!(is_alone == Some(true) && passed.contains("text") && !passed.contains("tool_calls"), "{passed}");
    let closed = joiner.close().unwrap();
    assert!(str::from_utf8(&closed).unwrap().contains(r#""finish_reason":"stop""#));
    let (_, unended) = round(&mut ChatJoiner::default(), &[&said.replace("\"tool_calls\"}", "null}")]);
    assert_eq!(unended, None, "a round that has broken off is not answered");
}

#[test]
fn a_stream_that_breaks_off_inside_a_name_loses_nothing() {
    let piece =
        r#"{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"abridge_","arguments":""}}]}}"#;
    let mut joiner = ChatJoiner::default();
    let (passed, is_alone) = round(&mut joiner, &[piece, r#"{"index":0,"delta":{"content":"a"}}"#]);
    assert_eq!((&*passed, is_alone), ("", None));
    let rest = joiner.rest();
    let rest = str::from_utf8(&rest).unwrap();
    assert!(rest.contains("abridge_") && rest.ends_with("{\"content\":\"a\"}}]}\n\n"), "{rest}");
    assert!(joiner.rest().is_empty());
}

#[test]
fn long_arguments_in_many_pieces_are_read_in_time() {
    let first =
        r#"{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"write","arguments":"["}}]}}"#;
    let piece = r#"{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"[1],"}}]}}"#;
    let mut joiner = ChatJoiner::default();
    let start = std::time::Instant::now();
    round(&mut joiner, &[vec![first], vec![piece; 30_000]].concat());
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
