//! Counts that OpenAI has published, and the promise that tokens are never more than bytes.

use proptest::prelude::*;

use crate::{
    dialect,
    tokens::{Countable, Counter, Gauge, Meter, REQUEST_OVERHEAD, Settings},
};

/// Counts as requests of this dialect do.
struct Rules(Gauge);

impl Rules {
    fn message(&self, raw: &[u8]) -> usize {
        dialect::default().element_tokens(&self.0, raw)
    }

    fn tools(&self, raw: &[u8]) -> usize {
        dialect::default().tokens(&self.0, Countable::Tools, raw)
    }

    fn format(&self, raw: &[u8]) -> usize {
        dialect::default().tokens(&self.0, Countable::Format, raw)
    }

    fn text(&self, text: &str) -> usize {
        self.0.text(text)
    }
}

fn gauge(model: &str) -> Rules {
    Rules(Meter::new(&Settings::default(), &[]).for_model(Some(model)))
}

/// The count of what carries nothing but this content, which is what the content counts.
fn content(json: &str) -> usize {
    let message =
        |content: &str| gauge("gpt-4o").message(format!(r#"{{"role":"user","content":{content}}}"#).as_bytes());
    message(json) - message("null")
}

fn sum(gauge: &Rules, messages: &[&str]) -> usize {
    REQUEST_OVERHEAD + messages.iter().map(|message| gauge.message(message.as_bytes())).sum::<usize>()
}

// === published counts ===

#[test]
fn the_conversation_of_the_cookbook() {
    let messages = [
        r#"{"role": "system", "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."}"#,
        r#"{"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."}"#,
        r#"{"role": "system", "name": "example_assistant", "content": "Things working well together will increase revenue."}"#,
        r#"{"role": "system", "name": "example_user", "content": "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."}"#,
        r#"{"role": "system", "name": "example_assistant", "content": "Let's talk later when we're less busy about how to do better."}"#,
        r#"{"role": "user", "content": "This late pivot means we don't have time to boil the ocean for the client deliverable."}"#,
    ];
    assert_eq!(sum(&gauge("gpt-4o"), &messages), 124);
}

#[test]
fn the_tools_of_the_cookbook() {
    let messages = [
        r#"{"role": "system", "content": "You are a helpful assistant that can answer to questions about the weather."}"#,
        r#"{"role": "user", "content": "What's the weather like in San Francisco?"}"#,
    ];
    let tools = br#"[{"type": "function", "function": {
        "name": "get_current_weather", "description": "Get the current weather in a given location",
        "parameters": {"type": "object", "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {"type": "string", "description": "The unit of temperature to return", "enum": ["celsius", "fahrenheit"]}
        }, "required": ["location"]}}}]"#;
    let count = |model: &str| sum(&gauge(model), &messages) + gauge(model).tools(tools);
    assert_eq!(count("gpt-4o"), 101);
    assert_eq!(count("gpt-4o-mini"), 101);
}

// === messages ===

#[test]
fn content_in_parts_counts_as_the_text_that_it_is() {
    assert_eq!(content(r#""tiktoken is great!""#), 6);
    assert_eq!(content(r#"[{"type":"text","text":"tiktoken is great!","cache_control":{"type":"ephemeral"}}]"#), 6);
    assert_eq!(content(r#"["tiktoken is great!"]"#), 6);
    for kind in ["", r#""type":null,"#, r#""type":"input_text","#, r#""type":"output_text","#] {
        assert_eq!(content(&format!(r#"[{{{kind}"text":"tiktoken is great!"}}]"#)), 6, "{kind}");
    }
    // A part that no one knows counts as all of its JSON, however it is named.
    for part in [r#"{"type":"texts","text":"tiktoken is great!"}"#, r#"{"text":["tiktoken is great!"]}"#] {
        assert_eq!(content(&format!("[{part}]")), gauge("gpt-4o").text(part), "{part}");
    }
    assert_eq!(content(r#"[{"type":"refusal","refusal":"tiktoken is great!"}]"#), 6);
    for nothing in ["null", "\"\"", "[]"] {
        assert_eq!(content(nothing), 0, "{nothing}");
    }
}

#[test]
fn escapes_count_as_what_they_stand_for() {
    assert_eq!(content(r#""\u0074iktoken is gr\u0065at!""#), 6);
    assert_eq!(content(r#""\ud83d\ude00""#), content("\"😀\""));
    assert_eq!(content(r#""half \ud83d of a pair""#), content("\"half \u{FFFD} of a pair\""));
}

#[test]
fn images_and_other_data_are_not_read_as_text() {
    let data = "QUJD".repeat(250_000);
    for (part, tokens) in [
        (format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#), 765),
        (format!(r#"{{"type":"image_url","image_url":"data:image/png;base64,{data}"}}"#), 765),
        (format!(r#"{{"type":"image_url","image_url":{{"url":"data:,{data}","detail":"low"}}}}"#), 85),
        (format!(r#"{{"type":"input_image","detail":"low","image_url":"data:,{data}"}}"#), 85),
        (format!(r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#), 765),
        (format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#), 157),
        (format!(r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"mp3"}}}}"#), 469),
        (format!(r#"{{"type":"file","file":{{"file_data":"data:application/pdf;base64,{data}"}}}}"#), 11_720),
    ] {
        assert_eq!(content(&format!("[{part}]")), tokens, "{part:.60}");
    }
}

#[test]
fn an_image_that_is_a_link_counts_no_more_than_its_bytes() {
    let message = br#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a.b/c.png"}}]}"#;
    assert_eq!(gauge("gpt-4o").message(message), message.len());
}

#[test]
fn calls_count_their_names_and_arguments_but_not_their_ids() {
    let count =
        |call: &str| gauge("gpt-4o").message(format!(r#"{{"role":"assistant","content":null,{call}}}"#).as_bytes());
    let one = count(
        r#""tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"a\": 1}"}}]"#,
    );
    let long_id = count(
        r#""tool_calls":[{"id":"call_8a7b6c5d4e3f","type":"function","function":{"name":"bash","arguments":"{\"a\": 1}"}}]"#,
    );
    let custom =
        count(r#""tool_calls":[{"id":"call_1","type":"custom","custom":{"name":"bash","input":"{\"a\": 1}"}}]"#);
    let old = count(r#""function_call":{"name":"bash","arguments":"{\"a\": 1}"}"#);
    let gauge = gauge("gpt-4o");
    // Three for the message, one for the role.
    assert_eq!(one, 4 + 3 + gauge.text("bash") + gauge.text(r#"{"a": 1}"#));
    assert_eq!([long_id, custom, old], [one; 3]);
}

#[test]
fn what_is_not_understood_counts_as_its_text() {
    let gauge = gauge("gpt-4o");
    let odd = r#"{"type":"novelty","payload":{"deep":["tiktoken is great!"]}}"#;
    assert_eq!(content(&format!("[{odd}]")), gauge.text(odd));
    for broken in ["not json at all, but long enough", r#"{"role":"user","content":"#, r#"[{"role":"user"},"text"]"#] {
        assert_eq!(gauge.message(broken.as_bytes()), (3 + gauge.text(broken)).min(broken.len()), "{broken}");
    }
    let unknown = gauge.message(br#"{"role":"assistant","content":null,"reasoning_content":"tiktoken is great!"}"#);
    assert_eq!(unknown, 4 + 6);
}

// === the form of the answer ===

#[test]
fn the_form_of_the_answer_counts_as_its_json() {
    let gauge = gauge("gpt-4o");
    let compact = r#"{"type":"json_schema","json_schema":{"name":"city","schema":{"type":"object"}}}"#;
    assert_eq!(gauge.format(compact.as_bytes()), gauge.text(compact));
    assert!(gauge.text(compact) > 10);
    assert_eq!(gauge.format(compact.replace(':', " :\n ").as_bytes()), gauge.text(compact));
}

// === tools ===

#[test]
fn schemas_within_schemas_count_as_compact_json() {
    let gauge = gauge("gpt-4o");
    let tools = |schema: &str| {
        let tool = format!(
            r#"[{{"type":"function","function":{{"name":"edit_the_file","description":"Changes lines of a file in place.","parameters":{{"type":"object","properties":{{"edits":{{"type":"array","description":"What is to be changed, in order."{schema}}}}}}}}}}}]"#
        );
        gauge.tools(tool.as_bytes())
    };
    let items = r#""items":{"type":"object","properties":{"line":{"type":"integer"},"text":{"type":"string"}}}"#;
    assert_eq!(tools(&format!(",{items}")), tools("") + gauge.text(items));
    assert_eq!(tools(&format!(", {}", items.replace(':', " :\n "))), tools("") + gauge.text(items));
}

#[test]
fn parameters_without_a_schema_count_as_they_are_written() {
    let gauge = gauge("gpt-4o");
    let tools = |parameters: &str| {
        let tool = format!(r#"[{{"type":"function","function":{{"name":"read_the_file"{parameters}}}}}]"#);
        gauge.tools(tool.as_bytes())
    };
    let properties = |of: &str| tools(&format!(r#","parameters":{{"type":"object","properties":{{{of}}}}}"#));
    assert_eq!(properties(""), tools(""));
    assert_eq!(properties(r#""a":true"#), tools("") + 3 + 3 + gauge.text("a:true"));
    let choice = r#""oneOf":[{"required":["a"]}]"#;
    assert_eq!(tools(&format!(r#","parameters":{{"type":"object",{choice}}}"#)), tools("") + gauge.text(choice));
    let two = properties(r#""a":true,"path_of_it":[ 1, 2 ]"#);
    assert_eq!(two, properties(r#""a":true"#) + 3 + gauge.text("path_of_it:[1,2]"));
}

#[test]
fn tools_that_are_no_functions_and_what_is_no_list_count_as_json() {
    let gauge = gauge("gpt-4o");
    assert_eq!(gauge.tools(b"[]"), 0);
    assert_eq!(gauge.tools(b"null"), 0);
    let search = r#"{"type":"web_search","filters":{"allowed_domains":["example.org"]}}"#;
    assert_eq!(gauge.tools(format!("[{search}]").as_bytes()), 12 + gauge.text(search));
    assert_eq!(gauge.tools(search.as_bytes()), gauge.text(search));
}

// === bounds ===

fn json() -> impl Strategy<Value = String> {
    let text = || prop_oneof!["[a-z ]{0,40}", "\\PC{0,20}", Just("\u{0}\n\t\"\\".to_owned())];
    let string = text().prop_map(|text| serde_json::to_string(&text).unwrap());
    let leaf = prop_oneof![
        string,
        Just("null".to_owned()),
        Just("[]".to_owned()),
        "[0-9]{1,9}",
        Just("\"\\ud800\"".to_owned())
    ];
    let key = prop::sample::select(vec![
        "role",
        "content",
        "name",
        "tool_calls",
        "function",
        "arguments",
        "type",
        "text",
        "image_url",
        "detail",
        "file",
        "input_audio",
        "data",
        "properties",
        "parameters",
        "enum",
        "description",
        "x",
    ]);
    let kind = prop::sample::select(vec!["text", "image_url", "file", "input_audio", "function"])
        .prop_map(|kind| format!(r#"{{"type":"{kind}"}}"#));
    prop_oneof![leaf, kind].prop_recursive(5, 40, 6, move |inner| {
        let field = (key.clone(), inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::vec(field, 0..6).prop_map(|all| format!("{{{}}}", all.join(","))),
        ]
    })
}

proptest! {
    #[test]
    fn tokens_are_never_more_than_bytes(json in json(), bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for counter in [Counter::Exact, Counter::Estimate] {
            let settings = Settings { counter, ..Settings::default() };
            let gauge = Rules(Meter::new(&settings, &[]).for_model(None));
            for raw in [json.as_bytes(), &bytes] {
                prop_assert!(gauge.message(raw) <= raw.len());
                prop_assert!(gauge.tools(raw) <= raw.len());
            }
            prop_assert!(gauge.text(&json) <= json.len());
        }
    }

    #[test]
    fn a_remembered_count_is_the_count(json in json()) {
        let gauge = gauge("gpt-4o");
        let forgetful = || Rules(Meter::new(&Settings::default(), &[]).for_model(None));
        for _ in 0..2 {
            prop_assert_eq!(gauge.message(json.as_bytes()), forgetful().message(json.as_bytes()));
            prop_assert_eq!(gauge.tools(json.as_bytes()), forgetful().tools(json.as_bytes()));
            prop_assert_eq!(gauge.text(&json), forgetful().text(&json));
        }
    }
}

#[test]
fn the_same_bytes_count_differently_as_text_message_and_tools() {
    let gauge = gauge("gpt-4o");
    let raw = r#"[{"type":"function","function":{"name":"a_tool_of_some_length","description":"Does what it does."}}]"#;
    for _ in 0..2 {
        assert_eq!(gauge.message(raw.as_bytes()), gauge.text(raw) + 3);
        assert_ne!(gauge.tools(raw.as_bytes()), gauge.text(raw));
    }
}

#[test]
fn an_estimate_counts_a_message_as_its_text_and_its_frame() {
    let settings = Settings { counter: Counter::Estimate, ..Settings::default() };
    let gauge = Rules(Meter::new(&settings, &[]).for_model(Some("gpt-4o")));
    assert_eq!(gauge.message(format!(r#"{{"role":"user","content":"{}"}}"#, "a".repeat(400)).as_bytes()), 3 + 1 + 100);
}
