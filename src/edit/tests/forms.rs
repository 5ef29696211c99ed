//! Forms that upstreams require: what they change, and that a request in the form stays as it is.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{dialect, dialect::Form, platform::testing::thread_time, replay::planner_from_toml, span::splice};

/// The body that is sent, brought into all forms, except those that take the place of another one, or add what most lack.
fn formed(path: &str, body: &Value) -> Value {
    let without = [Form::Alternating, Form::NineIds, Form::TextsBesideCalls, Form::ReasoningContent, Form::SignedCalls];
    with_forms("[]", &without, path, body)
}

/// The body in one form.
fn in_form(form: Form, path: &str, body: &Value) -> Value {
    let others: Vec<_> = Form::ALL.iter().copied().filter(|other| *other != form).collect();
    with_forms("[]", &others, path, body)
}

/// The same after these edits.
fn with_forms(edits: &str, without: &[Form], path: &str, body: &Value) -> Value {
    let forms: Vec<_> = Form::ALL.iter().filter(|form| !without.contains(form)).map(|form| form.name()).collect();
    let planner = planner_from_toml(&format!("policy.edits = {edits}\npolicy.forms = {forms:?}\n")).unwrap();
    let dialect = dialect::for_path(path).unwrap();
    let apply = |body: Bytes| {
        let plan = planner.plan(dialect, &body).unwrap();
        (Bytes::from(splice(&body, &plan.splices).concat()), plan.is_empty())
    };
    let (once, _) = apply(body.to_string().into());
    let (twice, is_empty) = apply(once.clone());
    assert!(is_empty && once == twice, "{}", String::from_utf8_lossy(&twice));
    serde_json::from_slice(&once).unwrap()
}

#[test]
fn what_is_in_the_form_stays() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": " {\"a\": 1} "}});
    let chat = json!({"messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": "f", "tool_call_id": "c", "content": "t"},
        {"role": "assistant", "content": "a"}, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ]});
    assert_eq!(formed("/v1/chat/completions", &chat), chat);
    let responses = json!({"input": [
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs", "summary": [], "content": []},
        {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": ""},
        {"type": "local_shell_call", "call_id": "d", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "d", "output": "x"},
    ]});
    assert_eq!(formed("/v1/responses", &responses), responses);
    let messages = json!({"max_tokens": 9, "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
    ]});
    assert_eq!(formed("/v1/messages", &messages), messages);
}

#[test]
fn what_is_not_in_the_form_is_brought_into_it() {
    let call =
        |arguments: &str| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let chat = json!({"messages": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": null, "tool_calls": [call("[1]"), call("{\"a\"")]},
        {"role": "tool", "tool_call_id": "c", "content": ""}, {"role": "tool", "tool_call_id": "c", "content": "t"},
        {"role": "user", "content": []}, {"role": "assistant"}, {"role": "developer", "content": "d"},
    ]});
    let mut expected = chat.clone();
    let messages = expected["messages"].as_array_mut().unwrap();
    messages[0]["content"] = json!("(empty)");
    messages[1]["tool_calls"][0]["function"]["arguments"] = json!("{}");
    messages[1]["tool_calls"][1]["function"]["arguments"] = json!("{}");
    messages[1]["tool_calls"][1]["id"] = json!("c_2");
    messages[2]["content"] = json!("(empty)");
    messages[2]["name"] = json!("f");
    messages[3]["name"] = json!("f");
    messages[3]["tool_call_id"] = json!("c_2");
    messages[4]["content"] = json!("(empty)");
    messages[5]["content"] = json!("(empty)");
    messages[6]["role"] = json!("user");
    messages.insert(4, json!({"role": "assistant", "content": "OK."}));
    assert_eq!(formed("/v1/chat/completions", &chat), expected);
    let item = |arguments: Value| json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments});
    let responses = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}]}, item(json!({"a": 1})), item(json!("x"))]});
    let formed = formed("/v1/responses", &responses);
    assert_eq!(formed["input"][0]["content"][0]["text"], "(empty)");
    assert_eq!((&formed["input"][1]["arguments"], &formed["input"][1]["call_id"]), (&json!("{\"a\":1}"), &json!("c")));
    assert_eq!((&formed["input"][2]["arguments"], &formed["input"][2]["call_id"]), (&json!("{}"), &json!("c_2")));
}

#[test]
fn inputs_of_calls_in_messages_become_objects() {
    let body = |input: Value| {
        json!({"max_tokens": 9, "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "t"}]},
        ]})
    };
    for input in [json!("{\"a\": "), json!(""), json!(null), json!([1]), json!({})] {
        assert_eq!(in_form(Form::Arguments, "/v1/messages", &body(input)), body(json!({})));
    }
    assert_eq!(in_form(Form::Arguments, "/v1/messages", &body(json!("{\"a\":1}"))), body(json!({"a": 1})));
}

#[test]
fn messages_of_the_model_get_what_one_vendor_wants_and_lose_what_one_has_given() {
    const CHAT: &str = "/v1/chat/completions";
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "t"});
    let messages = |messages: &[Value]| json!({"messages": messages});
    let user = json!({"role": "user", "content": "u", "reasoning_content": null});
    for content in [json!(null), json!(""), json!([])] {
        let calls = |content: &Value| json!({"role": "assistant", "content": content, "tool_calls": call});
        let came = messages(&[user.clone(), calls(&content), result.clone()]);
        let sent = in_form(Form::TextsBesideCalls, CHAT, &came);
        assert_eq!(sent, messages(&[user.clone(), calls(&json!("(empty)")), result.clone()]));
    }
    let alone = messages(&[user.clone(), json!({"role": "assistant", "tool_calls": call}), result.clone()]);
    assert_eq!(in_form(Form::TextsBesideCalls, CHAT, &alone)["messages"][1]["content"], "(empty)");

    let said = |reasoning: Value| json!({"role": "assistant", "content": "a", "reasoning_content": reasoning});
    let silent = json!({"role": "assistant", "content": "a"});
    let came = messages(&[user.clone(), silent.clone(), said(json!("")), said(json!("so"))]);
    let sent = in_form(Form::ReasoningContent, CHAT, &came);
    assert_eq!(sent, messages(&[user, said(json!(" ")), said(json!(" ")), said(json!("so"))]));

    let came = json!({"messages": [{"role": "user", "content": "u"},
        {"role": "assistant", "reasoning": "a", "content": "a", "reasoning_content": "b", "reasoning_details": [{}]},
        {"reasoning_content": "c", "role": "assistant", "content": "a"}]})
    .to_string()
    .into();
    let planner = planner_from_toml("policy.edits = []\npolicy.forms = [\"no_reasoning_fields\"]\n").unwrap();
    let plan = planner.plan(dialect::for_path(CHAT).unwrap(), &came).unwrap();
    let sent: Value = serde_json::from_slice(&splice(&came, &plan.splices).concat()).unwrap();
    assert_eq!(sent, messages(&[json!({"role": "user", "content": "u"}), silent.clone(), silent]));
    assert!(!plan.offloads.is_empty(), "what leaves is stored");
}

/// All orders in which these may be written.
fn orders(of: &[&str]) -> Vec<Vec<String>> {
    let Some((first, rest)) = of.split_first() else { return vec![Vec::new()] };
    let with_first = |order: &Vec<String>, at: usize| [&order[..at], &[(*first).to_owned()], &order[at..]].concat();
    orders(rest).iter().flat_map(|order| (0..of.len()).map(|at| with_first(order, at)).collect::<Vec<_>>()).collect()
}

#[test]
fn all_calls_and_all_reasoning_leave_a_message_in_whatever_order_it_has_them() {
    let call = |id: &str| format!(r#"{{"id":"{id}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}"#);
    let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":"r"}}"#);
    let settings = r#"policy = { edits = ["filter_tool_calls"], forms = ["no_reasoning_fields"] }
        filter_tool_calls = { max_tool_calls = 1 }"#;
    let planner = planner_from_toml(settings).unwrap();
    let calls = format!(r#""tool_calls": [{}]"#, call("a"));
    let members =
        [r#""role": "assistant""#, r#""content": "t""#, r#""reasoning_content": "x""#, r#""reasoning": "y""#, &calls];
    for order in orders(&members) {
        for comma in [",", " , "] {
            let message = format!("{{{}}}", order.join(comma));
            let last = format!(r#"{{"role":"assistant","content":"u","tool_calls":[{}]}}"#, call("b"));
            let user = r#"{"role":"user","content":"u"}"#;
            let all = [user, &message, &result("a"), &last, &result("b"), user].join(",");
            let came = format!(r#"{{"messages":[{all}]}}"#).into();
            let plan = planner.plan(dialect::for_path("/v1/chat/completions").unwrap(), &came).unwrap();
            let sent = splice(&came, &plan.splices).concat();
            let sent: Value = serde_json::from_slice(&sent).unwrap_or_else(|error| panic!("{error}: {message}"));
            assert_eq!(sent["messages"][1], json!({"role": "assistant", "content": "t"}), "{message}");
        }
    }
}

#[test]
fn contents_of_gemini_are_filled_and_their_calls_signed() {
    const GEMINI: &str = "/v1beta/models/gemini-3-pro:generateContent";
    let call = json!({"functionCall": {"name": "f", "args": {}}});
    let result = json!({"functionResponse": {"name": "f", "response": {"output": ""}}});
    let signed = json!({"text": "", "thoughtSignature": "s"});
    let mut came = json!({"contents": [
        {"role": "user", "parts": [{"text": "u"}, {"text": ""}, {}]}, {"role": "model", "parts": []}, {"role": "user"},
        {"role": "model", "parts": [signed, call, call]}, {"role": "user", "parts": [result, result]},
    ]});
    let filled = in_form(Form::Filled, GEMINI, &came);
    let empty = json!({"text": "(empty)"});
    came["contents"][0]["parts"] = json!([{"text": "u"}, empty, empty]);
    came["contents"][1]["parts"] = json!([empty]);
    came["contents"][2]["parts"] = json!([empty]);
    assert_eq!(filled, came);
    let signed = in_form(Form::SignedCalls, GEMINI, &came);
    came["contents"][3]["parts"][1]["thoughtSignature"] = "skip_thought_signature_validator".into();
    assert_eq!(signed, came);
    let part = |signature: &str| json!([{"text": "x", "thoughtSignature": "s"}, {"functionCall": {"name": "f"}, "thought_signature": signature}, {"text": "y"}]);
    came["contents"][1]["parts"] = part("s");
    let resigned = in_form(Form::NewSignatures, GEMINI, &came);
    came["contents"][1]["parts"] = part("skip_thought_signature_validator");
    came["contents"][1]["parts"][0] = json!({"text": "x"});
    came["contents"][3]["parts"][0] = empty;
    assert_eq!(resigned, came);
}

#[test]
fn calls_of_gemini_in_chat_are_signed() {
    const CHAT: &str = "/v1/chat/completions";
    let call = |extra: Value| json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra});
    let of = |signature: &str| json!({"google": {"thought_signature": signature}});
    let body = |calls: [Value; 2]| json!({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}]});
    let mut bare = call(json!(null));
    bare.as_object_mut().unwrap().remove("extra_content");
    let placeholder = of("skip_thought_signature_validator");
    for unsigned in [bare.clone(), call(json!(null)), call(json!({}))] {
        let signed = in_form(Form::SignedCalls, CHAT, &body([unsigned, bare.clone()]));
        assert_eq!(signed, body([call(placeholder.clone()), bare.clone()]));
    }
    let came = body([call(of("s")), bare.clone()]);
    assert_eq!(in_form(Form::SignedCalls, CHAT, &came), came);
    assert_eq!(in_form(Form::NewSignatures, CHAT, &came), body([call(placeholder), bare]));
}

#[test]
fn new_ids_and_texts_between_texts_stay_when_the_conversation_grows() {
    let call = |id: &str| json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "t"});
    let said = |role: &str| json!({"role": role, "content": "x"});
    let mut messages = vec![said("system"), said("system"), said("assistant"), said("user"), said("user")];
    for id in ["call_1", "functions.f:0", "call_1", "abcdefgh1"] {
        messages.extend([call(id), result(id), said("user"), said("assistant"), said("assistant"), said("user")]);
    }
    let formed = |n: usize| with_forms("[]", &[], "/v1/chat/completions", &json!({"messages": messages[..n]}));
    let whole = formed(messages.len());
    let whole = whole["messages"].as_array().unwrap();
    for n in (5..messages.len()).filter(|n| messages[n - 1]["role"] == "user") {
        let part = formed(n);
        assert!(whole.starts_with(part["messages"].as_array().unwrap()), "{n}: {part}");
    }
    let ids: HashSet<_> = whole.iter().filter_map(|message| message["tool_call_id"].as_str()).collect();
    assert_eq!(ids.len(), 4);
    assert!(ids.contains("abcdefgh1") && ids.iter().all(|id| id.len() == 9), "{ids:?}");
    let roles: Vec<_> = whole.iter().take(8).map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user", "assistant", "tool"]);
}

#[test]
fn ids_that_not_every_upstream_accepts_and_repeated_ids_of_items_are_replaced() {
    let item = |call: &str, id: &str| json!({"type": "function_call", "id": id, "call_id": call, "name": "f", "arguments": "{}"});
    let output = |call: &str| json!({"type": "function_call_output", "call_id": call, "output": "t"});
    let long = "x".repeat(41);
    let think = |id: &str| json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "e"});
    let body = json!({"input": [
        {"role": "user", "content": "u"}, think("rs"), item("a:b", "fc"), output("a:b"), think("rs"), item(&long, "fc"), output(&long),
    ]});
    let formed = formed("/v1/responses", &body);
    let items = formed["input"].as_array().unwrap();
    let ids: Vec<_> = items.iter().filter_map(|item| item["call_id"].as_str()).collect();
    let of_long = format!("{}_1", "x".repeat(32));
    assert_eq!(ids, ["a_b_1", "a_b_1", &of_long, &of_long]);
    let of_items: Vec<_> = items.iter().filter_map(|item| item["id"].as_str()).collect();
    assert_eq!(of_items, ["rs", "fc"]);
}

#[test]
fn marks_of_an_hour_are_shortened_after_shorter_ones() {
    let marked = |ttl: &str| json!({"type": "text", "text": "t", "cache_control": {"type": "ephemeral", "ttl": ttl}});
    let ttls = |system: &str| {
        let body = json!({"max_tokens": 9, "system": [marked(system)], "messages": [{"role": "user", "content": [marked("1h"), marked("5m"), marked("1h")]}]});
        let content = formed("/v1/messages", &body)["messages"][0]["content"].clone();
        (0..3).map(|n| content[n]["cache_control"]["ttl"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ttls("1h"), ["1h", "5m", "5m"]);
    assert_eq!(ttls("5m"), ["5m", "5m", "5m"]);
}

#[test]
fn many_calls_of_one_id_take_linear_time() {
    let before = thread_time();
    let pairs = (0..20_000).flat_map(|n| {
        let id = format!("{}{}", "x".repeat(60), n % 7000);
        let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        [
            json!({"role": "assistant", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": "t"}),
        ]
    });
    let formed = formed("/v1/chat/completions", &json!({"messages": pairs.collect::<Vec<_>>()}));
    let ids =
        formed["messages"].as_array().unwrap().iter().filter_map(|message| message["tool_calls"][0]["id"].as_str());
    assert_eq!(ids.collect::<HashSet<_>>().len(), 20_000);
    let took = thread_time().saturating_sub(before);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A step of a conversation: the ids of its calls, which of them have no result or a late one, and what comes then.
type Step = (Vec<usize>, Vec<usize>, bool, usize);

fn conversation(steps: &[Step]) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "Go."})];
    let mut late = Vec::new();
    for (ids, missing, is_broken, next) in steps {
        let arguments = if *is_broken { "{\"a\"" } else { "{}" };
        let call = |id: &usize| json!({"id": format!("c{id}"), "type": "function", "function": {"name": "f", "arguments": arguments}});
        messages.push(
            json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()}),
        );
        let result = |id: &usize| json!({"role": "tool", "tool_call_id": format!("c{id}"), "content": "t"});
        let (left_out, there): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(n, _)| missing.contains(n));
        messages.extend(there.iter().map(|(_, id)| result(id)));
        late.extend(left_out.iter().map(|(_, id)| result(id)));
        match next {
            0 => messages.append(&mut late),
            1 => messages.push(json!({"role": "user", "content": ""})),
            2 => messages.push(json!({"role": "system", "content": "more"})),
            3 => {
                messages.push(json!({"role": "assistant", "content": "a"}));
                messages.push(json!({"role": "user", "content": "u"}));
            }
            _ => {}
        }
    }
    json!({"messages": messages})
}

/// Returns what a strict upstream says of messages.
fn fault(messages: &[Value]) -> Option<&'static str> {
    let (mut ids, mut open) = (HashSet::new(), Vec::new());
    let mut before = "";
    for (n, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            let Some(at) = open.iter().position(|open| *open == id) else { return Some("a result without a call") };
            open.remove(at);
        } else if !open.is_empty() {
            return Some("a call without its result");
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap();
            if !ids.insert(id) {
                return Some("an id twice");
            }
            if call["function"]["arguments"] != "{}" {
                return Some("broken arguments");
            }
            open.push(id);
        }
        match (before, role) {
            ("tool", "user") => return Some("the user behind a result"),
            (_, "system") if n > 0 => return Some("instructions in the middle"),
            _ if message["content"] == "" => return Some("an empty text"),
            _ => before = role,
        }
    }
    (!open.is_empty()).then_some("a call without its result")
}

proptest! {
    #[test]
    fn in_all_forms_a_strict_upstream_takes_any_conversation(
        steps in prop::collection::vec(
            (prop::collection::vec(0..4_usize, 1..4), prop::collection::vec(0..3_usize, 0..2), any::<bool>(), 0..5_usize),
            1..8,
        ),
    ) {
        let superset = [Form::Alternating, Form::NineIds];
        for without in [&[], &superset[..]] {
            let formed = with_forms("[\"patch_tool_calls\"]", without, "/v1/chat/completions", &conversation(&steps));
            let messages = formed["messages"].as_array().unwrap();
            prop_assert_eq!(fault(messages), None, "{}", formed);
        }
    }
}

#[test]
fn images_of_the_user_are_cleared_once_the_model_has_answered_and_the_newest_stay() {
    let data = "A".repeat(8000);
    let chat_image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let item = json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}")});
    for (path, array, text, image) in [
        ("/v1/chat/completions", "messages", "text", chat_image),
        ("/v1/messages", "messages", "text", block),
        ("/v1/responses", "input", "input_text", item),
    ] {
        let asks = |what: &str| json!({"role": "user", "content": [{"type": text, "text": what}, image]});
        let answer = json!({"role": "assistant", "content": "A cat."});
        let body = json!({"model": "m", array: [asks("What is it?"), answer, asks("And here?"), answer, asks("Now?")]});
        let planner = planner_from_toml(
            "policy.forms = [\"new_images\"]\nrecall = { via = \"http\", public_url = \"http://h\" }",
        )
        .unwrap();
        let bytes = Bytes::from(body.to_string());
        let plan = planner.plan(dialect::for_path(path).unwrap(), &bytes).unwrap();
        assert_eq!(plan.offloads.len(), 1, "the same image twice is one payload: {plan}");
        let sent: Value = serde_json::from_slice(&splice(&bytes, &plan.splices).concat()).unwrap();
        for n in [0, 2] {
            let part = &sent[array][n]["content"][1];
            assert_eq!(part["type"], text, "{path}: {part}");
            let words = part["text"].as_str().unwrap();
            assert!(words.starts_with("[Cleared: image/png of 6000 bytes. Read it with GET http://h/"), "{words}");
            assert_eq!(sent[array][n]["content"][0], body[array][n]["content"][0], "{path}");
        }
        assert_eq!(sent[array][4], body[array][4], "{path}: the newest stays");
    }
}
