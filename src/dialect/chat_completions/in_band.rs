//! Answers in which the model calls the tool that abridge has added: chat completions and their chunks.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::dialect::in_band::{
    Joiner, Object, OwnCall, Passage, RoundCalls, add, append, held, hidden_before, id, is_own, number, object,
    objects, text, write, write_event,
};

/// What stands between the texts of two rounds, which are one text for the client.
const BETWEEN: &str = "\n\n";

/// Joins chat completions.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Default)]
pub(super) struct ChatJoiner {
    /// What all chunks of a completion have: that of the first round.
    common: Object,
    /// Whether this is not the first round, and whether answers are not streamed.
    is_later: bool,
    is_whole: bool,
    /// Whether the stream has said that nothing follows.
    is_done: bool,
    /// The choices of this round, by their indices.
    choices: BTreeMap<u64, Choice>,
    /// Whether the round has other calls, or has failed.
    has_others: bool,
    has_failed: bool,
    /// The texts of the rounds before, if they are not at the client yet.
    texts: Vec<String>,
    /// Whether the client has text that the next text is to be set apart from, and any text at all.
    is_apart: bool,
    has_text: bool,
    /// What tells the end of a round in which abridge is called, or all of an answer that is not streamed.
    end: Vec<Object>,
    /// The tokens that were billed for the rounds before, and for this one.
    billed: Object,
    usage: Object,
}

/// One choice of a round.
#[derive(Debug, Default)]
struct Choice {
    /// The message without its calls, and those.
    message: Object,
    calls: BTreeMap<u64, Object>,
    own: BTreeSet<u64>,
}

impl Joiner for ChatJoiner {
    fn event(&mut self, _: &Bytes, data: &[u8]) -> Passage {
        if data == b"[DONE]" {
            self.is_done = true;
            return if self.has_failed || !self.calls_own() { Passage::Unchanged } else { Passage::nothing() };
        }
        let Some(mut chunk) = object(data) else { return Passage::Unchanged };
        let choices = objects(&mut chunk, "choices").into_iter().map(|choice| self.choice(choice)).collect();
        self.note_usage(&chunk);
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            (self.has_others, self.has_failed) = (true, true);
            self.end.clear();
        }
        if !self.is_changed() {
            self.keep_common(&chunk);
            return Passage::Unchanged;
        }
        self.finish_chunk(chunk, choices)
    }

    fn whole(&mut self, answer: &[u8]) -> bool {
        self.is_whole = true;
        let Some(mut answer) = object(answer) else { return false };
        self.note_usage(&answer);
        let mut choices = objects(&mut answer, "choices");
        for (at, choice) in choices.iter_mut().enumerate() {
            self.whole_choice(at as u64, choice);
        }
        if self.choices.is_empty() || !self.is_changed() {
            return false;
        }
        if let Some(Value::Object(message)) = choices.first_mut().and_then(|first| first.get_mut("message")) {
            self.texts.extend(Some(text(message, "content").to_owned()).filter(|said| !said.is_empty()));
            self.has_text = !self.texts.is_empty();
            if self.has_text {
                message.insert("content".to_owned(), self.texts.join(BETWEEN).into());
            }
        }
        answer.insert("choices".to_owned(), choices.into_iter().map(Value::Object).collect());
        self.sum_usage(&mut answer);
        self.end = vec![answer];
        true
    }

    fn calls(&self) -> Option<RoundCalls> {
        let call = |call: &Object| {
            let function = call.get("function").and_then(Value::as_object);
            let arguments = function.map(|function| text(function, "arguments").to_owned()).unwrap_or_default();
            OwnCall { arguments, json: write(call).into() }
        };
        // Several choices continue in different ways, so no further round is sent for any.
        let only = self.choices.values().next().filter(|_| self.choices.len() == 1)?;
        (!self.end.is_empty() && !only.own.is_empty()).then(|| RoundCalls {
            own: only.own_calls().map(call).collect(),
            others: only.others().map(|call| id(call, "id")).collect(),
            is_alone: !self.has_others,
        })
    }

    fn results(&self, texts: &[String]) -> Vec<Bytes> {
        let results = self.own_calls().zip(texts).map(|(call, result)| {
            let id = call.get("id").cloned().unwrap_or_else(|| "".into());
            json!({"role": "tool", "tool_call_id": id, "content": result}).to_string().into()
        });
        results.collect()
    }

    fn exchange(&self, texts: &[String]) -> Vec<Bytes> {
        let mut message = self.choices.values().next().map(|choice| choice.message.clone()).unwrap_or_default();
        message.insert("role".to_owned(), "assistant".into());
        message.entry("content").or_insert(Value::Null);
        message.insert("tool_calls".to_owned(), self.own_calls().cloned().map(Value::Object).collect());
        std::iter::once(write(&message).into()).chain(self.results(texts)).collect()
    }

    fn next_round(&mut self) {
        add(&mut self.billed, &std::mem::take(&mut self.usage));
        self.is_apart = self.has_text;
        self.is_later = true;
        self.choices.clear();
        self.end.clear();
    }

    fn rest(&mut self) -> Bytes {
        let mut end = std::mem::take(&mut self.end);
        if self.choices.len() > 1 {
            self.end_choices(&mut end);
        }
        let mut rest = held(&end, self.is_whole);
        if self.is_done && !end.is_empty() {
            rest.extend_from_slice(b"data: [DONE]\n\n");
        }
        rest.into()
    }

    fn close(&mut self) -> Option<Bytes> {
        for choice in self.end.iter_mut().filter_map(first_choice).filter(|choice| is_end(choice)) {
            choice.insert("finish_reason".to_owned(), "stop".into());
        }
        (self.has_text && !self.has_others).then(|| self.rest())
    }

    fn is_changed(&self) -> bool {
        self.is_later || self.calls_own()
    }
}

impl Choice {
    fn own_calls(&self) -> impl Iterator<Item = &Object> {
        self.calls.iter().filter(|(at, _)| self.own.contains(at)).map(|(_, call)| call)
    }

    fn others(&self) -> impl Iterator<Item = &Object> {
        self.calls.iter().filter(|(at, _)| !self.own.contains(at)).map(|(_, call)| call)
    }

    /// Adds a piece of a call. Returns it as the client gets it, if it is a call of the client's own tools.
    fn call(&mut self, mut piece: Object) -> Option<Value> {
        let at = self.place(&piece);
        self.note_call(at, &piece);
        let call = self.calls.entry(at).or_default();
        let mut new = piece.clone();
        new.remove("index");
        if let (Some(Value::Object(function)), Some(Value::Object(more))) =
            (call.get_mut("function"), new.remove("function"))
        {
            append(function, "arguments", text(&more, "arguments"));
        } else if let Some(function) = piece.get("function") {
            call.insert("function".to_owned(), function.clone());
        }
        new.retain(|_, value| !value.is_null() && *value != "");
        call.append(&mut new);
        if self.own.contains(&at) {
            return None;
        }
        if !self.own.is_empty() {
            piece.insert("index".to_owned(), (at - hidden_before(&self.own, at)).into());
        }
        Some(piece.into())
    }

    /// The place of a call among those of the message. Some servers number them all with 0, or not at all.
    fn place(&self, piece: &Object) -> u64 {
        let last = self.calls.keys().next_back().copied();
        let at = number(piece, "index").or(last).unwrap_or_default();
        let own_id = id(piece, "id");
        let is_another = self.calls.get(&at).is_some_and(|call| !own_id.is_empty() && id(call, "id") != own_id);
        if is_another { last.map_or(0, |last| last + 1) } else { at }
    }

    /// Notes whether a call is of the tool that abridge has added.
    fn note_call(&mut self, at: u64, call: &Object) {
        let name = call.get("function").and_then(Value::as_object).map(|function| text(function, "name"));
        if name.is_some_and(is_own) {
            self.own.insert(at);
        }
    }
}

impl ChatJoiner {
    fn own_calls(&self) -> impl Iterator<Item = &Object> {
        self.choices.values().flat_map(Choice::own_calls)
    }

    /// Whether abridge is called in this round.
    fn calls_own(&self) -> bool {
        self.choices.values().any(|choice| !choice.own.is_empty())
    }

    /// Adds what a chunk says to the message, and leaves of it what the client gets.
    fn choice(&mut self, mut choice: Object) -> Object {
        let of = self.choices.entry(number(&choice, "index").unwrap_or_default()).or_default();
        let Some(Value::Object(delta)) = choice.get_mut("delta") else { return choice };
        let calls = objects(delta, "tool_calls");
        merge(&mut of.message, delta);
        let kept: Vec<Value> = calls.into_iter().filter_map(|call| of.call(call)).collect();
        self.has_others |= !kept.is_empty();
        if !kept.is_empty() {
            delta.insert("tool_calls".to_owned(), kept.into());
        }
        if self.is_later {
            delta.remove("role");
        }
        if let Some(Value::String(said)) = delta.get_mut("content").filter(|said| **said != "") {
            if std::mem::take(&mut self.is_apart) {
                said.insert_str(0, BETWEEN);
            }
            self.has_text = true;
        }
        choice
    }

    /// Adds a choice of an answer that is not streamed, and leaves of it what the client gets.
    fn whole_choice(&mut self, at: u64, choice: &mut Object) {
        let index = number(choice, "index").unwrap_or(at);
        let Some(Value::Object(message)) = choice.get_mut("message") else { return };
        let of = self.choices.entry(index).or_default();
        for (at, call) in objects(message, "tool_calls").into_iter().enumerate() {
            of.note_call(at as u64, &call);
            of.calls.insert(at as u64, call);
        }
        of.message.clone_from(message);
        let kept: Vec<_> = of.others().map(|call| Value::Object(call.clone())).collect();
        self.has_others |= !kept.is_empty();
        if !kept.is_empty() {
            message.insert("tool_calls".to_owned(), kept.into());
        }
    }

    /// Of several choices, those that call for nothing but abridge have stopped.
    fn end_choices(&self, end: &mut [Object]) {
        let choices = end.iter_mut().filter_map(|chunk| chunk.get_mut("choices")?.as_array_mut()).flatten();
        for (at, choice) in choices.filter_map(Value::as_object_mut).enumerate() {
            let index = number(choice, "index").unwrap_or(if self.is_whole { at as u64 } else { 0 });
            let of = self.choices.get(&index).filter(|of| !of.own.is_empty() && of.others().next().is_none());
            if of.is_some() && is_end(choice) {
                choice.insert("finish_reason".to_owned(), "stop".into());
            }
        }
    }

    fn note_usage(&mut self, chunk: &Object) {
        if let Some(Value::Object(usage)) = chunk.get("usage") {
            self.usage.clone_from(usage);
        }
    }

    fn sum_usage(&self, chunk: &mut Object) {
        if let Some(Value::Object(usage)) = chunk.get_mut("usage") {
            add(usage, &self.billed);
        }
    }

    fn keep_common(&mut self, chunk: &Object) {
        if self.common.is_empty() {
            let common =
                ["id", "created"].into_iter().filter_map(|key| Some((key.to_owned(), chunk.get(key)?.clone())));
            self.common = common.collect();
        }
    }

    /// A chunk as the client gets it. What tells the end of a round is held back.
    fn finish_chunk(&mut self, mut chunk: Object, choices: Vec<Object>) -> Passage {
        self.keep_common(&chunk);
        chunk.extend(self.common.clone());
        self.sum_usage(&mut chunk);
        let says = choices.iter().any(says_something);
        let ends = choices.is_empty() || choices.iter().any(is_end) || chunk.get("usage").is_some_and(Value::is_object);
        let mut events = Vec::new();
        if !ends || self.has_failed || !self.calls_own() {
            if says || ends {
                write_event(&mut events, &with_choices(chunk, choices));
            }
            return Passage::Replaced(events.into());
        }
        if says {
            let choices = choices.iter().cloned().map(|choice| with(choice, "finish_reason", Value::Null)).collect();
            write_event(&mut events, &with(with_choices(chunk.clone(), choices), "usage", Value::Null));
        }
        let choices = choices.into_iter().map(|choice| with(choice, "delta", json!({}))).collect();
        self.end.push(with_choices(chunk, choices));
        Passage::Replaced(events.into())
    }
}

fn with(mut object: Object, key: &str, value: Value) -> Object {
    object.insert(key.to_owned(), value);
    object
}

fn with_choices(chunk: Object, choices: Vec<Object>) -> Object {
    with(chunk, "choices", choices.into_iter().map(Value::Object).collect())
}

/// The first choice of a chunk or an answer.
fn first_choice(of: &mut Object) -> Option<&mut Object> {
    of.get_mut("choices")?.as_array_mut()?.first_mut()?.as_object_mut()
}

/// Whether a choice tells why the model has stopped.
fn is_end(choice: &Object) -> bool {
    choice.get("finish_reason").is_some_and(|reason| !reason.is_null())
}

/// Whether a choice adds something to the message.
fn says_something(choice: &Object) -> bool {
    choice.get("delta").and_then(Value::as_object).is_some_and(|delta| !delta.is_empty())
}

/// Adds what a chunk says to a message: texts go behind one another, and so do the entries of arrays.
fn merge(message: &mut Object, delta: &Object) {
    for (key, more) in delta {
        match (message.get_mut(key), more) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if key != "role" => text.push_str(more),
            (Some(Value::Array(entries)), Value::Array(more)) => entries.extend(more.iter().cloned()),
            _ => drop(message.insert(key.clone(), more.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client gets of a round, whose chunks have these choices, and whether the model is asked again.
    fn round(joiner: &mut ChatJoiner, choices: &[&str]) -> (String, Option<bool>) {
        let mut passed = String::new();
        for choice in choices {
            let chunk = Bytes::from(format!(r#"data: {{"id":"1","choices":[{choice}]}}"#) + "\n\n");
            let data = chunk.strip_prefix(b"data: ").unwrap().trim_ascii();
            passed += match joiner.event(&chunk, data) {
                Passage::Unchanged => str::from_utf8(&chunk).unwrap().to_owned(),
                Passage::Replaced(events) => String::from_utf8(events.to_vec()).unwrap(),
            }
            .as_str();
        }
        let calls = joiner.calls().map(|calls| calls.is_alone);
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
            assert!(
                message.contains("sig") && message.contains(r#""content":null"#),
                "a signature goes back: {message}"
            );
            assert!(one.contains(r#""tool_call_id":"a""#) && two.contains(r#""tool_call_id":"b""#), "{one} {two}");
        }
    }

    #[test]
    fn each_choice_gets_what_it_says_and_no_call_of_abridge() {
        let chunk = |index: usize, rest: &str| format!(r#"{{"index":{index},{rest}}}"#);
        let calls = |calls: &str| format!(r#""delta":{{"tool_calls":[{calls}]}}"#);
        let piece = r#"{"index":0,"function":{"arguments":"x"}}"#;
        let theirs = r#"{"index":0,"id":"y","function":{"name":"read","arguments":""}}"#;
        let chunks = [
            chunk(0, &calls(&own("a", r#""index":0,"#))),
            chunk(1, &calls(theirs)),
            chunk(0, &calls(piece)),
            chunk(1, &calls(piece)),
            chunk(2, r#""delta":{"content":"three"}"#),
            chunk(0, r#""delta":{},"finish_reason":"tool_calls""#),
            chunk(1, r#""delta":{},"finish_reason":"tool_calls""#),
            chunk(2, r#""delta":{},"finish_reason":"stop""#),
        ];
        let mut joiner = ChatJoiner::default();
        let (mut passed, calls) = round(&mut joiner, &chunks.each_ref().map(String::as_str));
        assert_eq!(calls, None, "no choice is asked for more");
        passed += str::from_utf8(&joiner.rest()).unwrap();
        let events = passed.lines().filter_map(|line| line.strip_prefix("data: "));
        let choices: Vec<Value> = events
            .flat_map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"].as_array().unwrap().clone())
            .collect();
        let ends = choices.iter().filter(|choice| choice["finish_reason"].is_string());
        let ends: Vec<_> = ends.map(|choice| (choice["index"].clone(), choice["finish_reason"].clone())).collect();
        assert_eq!(ends, [(0.into(), "stop".into()), (1.into(), "tool_calls".into()), (2.into(), "stop".into())]);
        let arguments: String = choices
            .iter()
            .filter(|choice| choice["index"] == 1)
            .filter_map(|choice| choice["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
            .collect();
        assert!(arguments == "x" && passed.contains("three") && !passed.contains("abridge"), "{passed}");

        let answer = |calls: &str| {
            format!(r#"{{"finish_reason":"tool_calls","message":{{"content":"b","tool_calls":[{calls}]}}}}"#)
        };
        let whole =
            format!(r#"{{"choices":[{},{}]}}"#, answer(&own("a", "")), answer(&format!("{},{theirs}", own("b", ""))));
        let mut joiner = ChatJoiner::default();
        assert!(joiner.whole(whole.as_bytes()) && joiner.calls().is_none());
        let answer: Value = serde_json::from_slice(&joiner.rest()).unwrap();
        let [first, second] = [0, 1].map(|n| answer["choices"][n].clone());
        assert!(first["finish_reason"] == "stop" && first["message"].get("tool_calls").is_none(), "{first}");
        assert!(second["finish_reason"] == "tool_calls" && second["message"]["tool_calls"][0]["id"] == "y", "{second}");
    }

    #[test]
    fn an_error_behind_an_own_call_goes_on_once_and_nothing_else_follows_but_the_end() {
        let call = format!(r#"{{"delta":{{"tool_calls":[{}]}}}}"#, own("a", r#""index":0,"#));
        let mut joiner = ChatJoiner::default();
        round(&mut joiner, &[&call]);
        let error = br#"{"error":{"message":"overloaded"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#;
        let Passage::Replaced(passed) = joiner.event(&Bytes::new(), error) else { panic!("an id is added") };
        assert_eq!(str::from_utf8(&passed).unwrap().matches("overloaded").count(), 1);
        assert_eq!(joiner.event(&Bytes::new(), b"[DONE]"), Passage::Unchanged);
        assert!(joiner.calls().is_none() && joiner.close().is_none() && joiner.rest().is_empty());
        // Some servers write the key into each chunk.
        let end = br#"{"error":null,"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#;
        let mut joiner = ChatJoiner::default();
        round(&mut joiner, &[&call]);
        joiner.event(&Bytes::new(), end);
        assert!(joiner.calls().unwrap().is_alone);
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
}
