//! Generated conversations: whole steps of an agent, and the damage that real clients do to them. Messages are JSON
//! texts, with the spellings, the white space and the unknown fields that a proxy has to leave alone.

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};

/// One message, as JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) json: String,
    /// Of a tool result, the JSON text of the id.
    pub(crate) result_of: Option<String>,
}

/// The bytes around the messages in a body.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// From the first byte to after the bracket of the array.
    pub(crate) head: String,
    /// Between two messages.
    pub(crate) comma: String,
    /// From the bracket that ends the array to the end.
    pub(crate) tail: String,
}

/// One kind of damage.
#[derive(Clone, Debug)]
enum Damage {
    /// A result is lost.
    Lose(Index),
    /// A result goes elsewhere.
    Displace(Index, Index),
    /// A result comes twice.
    Repeat(Index, Index),
    /// A result for a call that never was.
    Orphan(Index, String),
    /// A result loses its id.
    Unname(Index),
    /// The conversation breaks off.
    Cut(Index),
    /// Any message comes again.
    Echo(Index, Index),
}

/// A conversation some of whose results come later than the rest.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    /// The messages that were there before.
    pub(crate) messages: Vec<Message>,
    /// The results that are still to come.
    pub(crate) results: Vec<Message>,
    /// The rounds that they belong to, without them.
    pub(crate) rounds: Vec<Vec<Message>>,
}

/// The body that holds `messages`.
pub(crate) fn body(layout: &Layout, messages: &[Message]) -> Bytes {
    let texts: Vec<&str> = messages.iter().map(|message| message.json.as_str()).collect();
    Bytes::from(format!("{}{}{}", layout.head, texts.join(&layout.comma), layout.tail))
}

/// White space and neighbours of the array, odd ones included.
pub(crate) fn layout() -> impl Strategy<Value = Layout> {
    let space = || prop::sample::select(&["", "", " ", "\n  ", "\t", "\r\n"][..]);
    let other = prop::sample::select(
        &[r#""model":"gpt-4o","#, r#""seed":12345678901234567890,"temperature":1.0e0,"#, r#""x":{"messages":[]},"#, ""]
            [..],
    );
    let behind = prop::sample::select(&["", r#","stream":true"#, r#","tools":[{"a":["]}"]}],"extra":"\u00e9\/""#][..]);
    (space(), space(), space(), other, behind).prop_map(|(a, b, c, other, behind)| Layout {
        head: format!("{a}{{{other}{b}\"messages\"{c}:{b}[{a}"),
        comma: format!("{b},{c}"),
        tail: format!("{c}]{behind}{b}}}{a}"),
    })
}

/// The JSON text of an id. Some repeat from step to step, some are spelled with escapes, some are empty or null.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "\"call_[a-z0-9]{4}\"",
        4 => prop::sample::select(&[r#""functions.bash:0""#, r#""c1""#, r#""\u00631""#, r#""a\"b\\""#, r#""{tool_name}""#, r#""é\n""#][..]).prop_map(str::to_owned),
        1 => prop::sample::select(&[r#""""#, "null"][..]).prop_map(str::to_owned),
    ]
}

/// The JSON text of a content.
fn content() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        "[ -~]{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        ".{0,6}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        prop::sample::select(&[r#""\u00e9\/\ud83d\ude00""#, r#""]}, {[""#, r#""\\\"\\""#, r#""""#][..])
            .prop_map(str::to_owned),
    ];
    prop_oneof![
        6 => text.clone(),
        1 => text.prop_map(|text| format!(r#"[ {{"type":"text","text":{text}}},{{"type":"image_url","image_url":{{"url":"data:"}}}}]"#)),
        1 => Just("null".to_owned()),
    ]
}

fn unknown_fields() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &[
            "",
            "",
            r#","reasoning_content":"so \u0022""#,
            r#", "cache_control" : {"type":"ephemeral"}"#,
            r#","n":1.50e+2,"z":[{}]"#,
        ][..],
    )
}

fn message(role: &'static str) -> impl Strategy<Value = Message> {
    (content(), unknown_fields()).prop_map(move |(content, more)| Message {
        json: format!(r#"{{"role":"{role}","content":{content}{more}}}"#),
        result_of: None,
    })
}

fn result(id: &str, content: &str, more: &str) -> Message {
    let json = format!(r#"{{"tool_call_id":{id},"content": {content},"role":"tool"{more}}}"#);
    Message { json, result_of: Some(id.to_owned()) }
}

/// The JSON text of a content as long as those that are worth making shorter.
fn long_content() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(&["word ", "line\n", "é😀", "\"\\", "x"][..]);
    let text = (piece, 0..600_usize).prop_map(|(piece, n)| serde_json::to_string(&piece.repeat(n)).unwrap());
    prop_oneof![
        6 => text.clone(),
        1 => (text.clone(), text).prop_map(|(a, b)| format!(r#"[{{"type":"text","text":{a}}}, {{"type":"image_url","image_url":{{"url":"data:"}}}},{{"text":{b},"type":"text"}}]"#)),
        1 => content(),
    ]
}

/// An assistant message that calls, and its results in some order.
fn round() -> impl Strategy<Value = Vec<Message>> {
    round_of(content().boxed())
}

fn round_of(result_content: BoxedStrategy<String>) -> impl Strategy<Value = Vec<Message>> {
    let name = prop::sample::select(&[r#""bash""#, r#""re\u0061d""#, r#""{tool_call_id}""#][..]);
    let call = (id(), name, any::<bool>(), result_content, unknown_fields());
    let calls = prop::collection::vec(call, 1..4);
    (calls, any::<prop::sample::Selector>(), content(), unknown_fields()).prop_map(|(calls, order, content, more)| {
        let entries: Vec<String> = calls
            .iter()
            .map(|(id, name, custom, ..)| {
                let kind = if *custom { "custom" } else { "function" };
                format!(r#"{{"id":{id}, "type":"{kind}","{kind}":{{"name":{name},"arguments":"{{\"a\": \"]\"}}"}}}}"#)
            })
            .collect();
        let asked = Message {
            json: format!(r#"{{"role":"assistant","content":{content},"tool_calls":[{}]{more}}}"#, entries.join(" ,")),
            result_of: None,
        };
        let mut results: Vec<Message> =
            calls.iter().map(|(id, _, _, content, more)| result(id, content, more)).collect();
        if order.select([true, false]) {
            results.reverse();
        }
        std::iter::once(asked).chain(results).collect()
    })
}

/// Whole steps: after each, every call has its result.
pub(crate) fn steps(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Message>> {
    let one = |role| message(role).prop_map(|message| vec![message]);
    let step = prop_oneof![
        4 => round(),
        2 => one("user"),
        2 => one("assistant"),
        1 => prop_oneof![one("system"), one("developer"), one("function"), one("critic")],
    ];
    prop::collection::vec(step, n).prop_map(|steps| steps.concat())
}

/// Whole steps with long results.
pub(crate) fn long_steps(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Message>> {
    let one = |role| message(role).prop_map(|message| vec![message]);
    let step = prop_oneof![6 => round_of(long_content().boxed()), 1 => one("user"), 1 => one("assistant")];
    prop::collection::vec(step, n).prop_map(|steps| steps.concat())
}

/// Steps with long results, one or several of which are late.
pub(crate) fn late_results() -> impl Strategy<Value = Late> {
    let round = || round_of(long_content().boxed());
    let steps = prop::collection::vec(prop_oneof![4 => round(), 1 => message("user").prop_map(|one| vec![one])], 3..12);
    (steps, prop::collection::vec(any::<Index>(), 1..4)).prop_map(|(mut steps, which)| {
        let mut results = Vec::new();
        let mut parted = std::collections::BTreeSet::new();
        for index in which {
            let n = index.index(steps.len());
            if let Some(at) = steps[n].iter().rposition(|message| message.result_of.is_some()) {
                results.push(steps[n].remove(at));
                parted.insert(n);
            }
        }
        let rounds = parted.into_iter().map(|n| steps[n].clone()).collect();
        Late { messages: steps.concat(), results, rounds }
    })
}

/// What the ids of calls begin with whose results may arrive late. Their messages have it, too, and no other has.
pub(crate) const LATE: &str = "late_";

/// Whole steps with long results, and rounds among them of which some results come some steps later, or never.
pub(crate) fn late_steps(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Message>> {
    let content = (prop::sample::select(&["word ", "line\n", "é😀"][..]), 40..600_usize);
    let call = (prop::option::weighted(0.7, 1..6_usize), content);
    let step = prop_oneof![
        3 => long_steps(1..2).prop_map(|messages| (messages, Vec::new())),
        1 => (message("assistant"), prop::collection::vec(call, 1..4)).prop_map(|(said, calls)| (vec![said], calls)),
    ];
    prop::collection::vec(step, n).prop_map(|steps| {
        let (mut all, mut late) = (Vec::new(), Vec::new());
        for (n, (mut messages, calls)) in steps.into_iter().enumerate() {
            all.extend(late.extract_if(.., |(due, _)| *due == n).map(|(_, result)| result));
            let mut entries = Vec::new();
            let mut results = Vec::new();
            for (delay, (piece, times)) in calls {
                let id = format!("\"{LATE}{n}_{}\"", entries.len());
                entries.push(format!(
                    r#"{{"id":{id},"type":"function","function":{{"name":"bash","arguments":"{{\"a\": 1}}"}}}}"#
                ));
                let result = result(&id, &serde_json::to_string(&piece.repeat(times)).unwrap(), "");
                match delay {
                    Some(delay) => late.push((n + delay, result)),
                    None => results.push(result),
                }
            }
            if let Some(said) = messages.last_mut().filter(|_| !entries.is_empty()) {
                let calls = format!(r#","tool_calls":[{}],"x":"{LATE}"}}"#, entries.join(","));
                said.json.replace_range(said.json.len() - 1.., &calls);
            }
            all.extend(messages.into_iter().chain(results));
        }
        all
    })
}

/// Whole steps with damage of all kinds done to them.
pub(crate) fn damaged() -> impl Strategy<Value = Vec<Message>> {
    damaged_of(steps(0..8).boxed())
}

/// The same of the steps.
pub(crate) fn damaged_of(steps: BoxedStrategy<Vec<Message>>) -> impl Strategy<Value = Vec<Message>> {
    let index = any::<Index>;
    let damage = prop_oneof![
        3 => index().prop_map(Damage::Lose),
        3 => (index(), index()).prop_map(|(from, to)| Damage::Displace(from, to)),
        1 => (index(), index()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        1 => (index(), id()).prop_map(|(at, id)| Damage::Orphan(at, id)),
        1 => index().prop_map(Damage::Unname),
        1 => index().prop_map(Damage::Cut),
        1 => (index(), index()).prop_map(|(from, to)| Damage::Echo(from, to)),
    ];
    (steps, prop::collection::vec(damage, 0..6)).prop_map(|(mut messages, damages)| {
        for damage in &damages {
            harm(&mut messages, damage);
        }
        messages
    })
}

fn harm(messages: &mut Vec<Message>, damage: &Damage) {
    let results: Vec<usize> = (0..messages.len()).filter(|&index| messages[index].result_of.is_some()).collect();
    let a_result = |index: &Index| (!results.is_empty()).then(|| results[index.index(results.len())]);
    match damage {
        Damage::Lose(which) => {
            if let Some(at) = a_result(which) {
                messages.remove(at);
            }
        }
        Damage::Displace(which, to) => {
            if let Some(at) = a_result(which) {
                let moved = messages.remove(at);
                messages.insert(to.index(messages.len() + 1), moved);
            }
        }
        Damage::Repeat(which, to) => {
            if let Some(at) = a_result(which) {
                messages.insert(to.index(messages.len() + 1), messages[at].clone());
            }
        }
        Damage::Orphan(at, id) => messages.insert(at.index(messages.len() + 1), result(id, r#""?""#, "")),
        Damage::Unname(which) => {
            if let Some(at) = a_result(which) {
                messages[at] = Message {
                    json: r#"{"role":"tool","content":"unnamed"}"#.to_owned(),
                    result_of: Some("null".to_owned()),
                };
            }
        }
        Damage::Cut(at) => messages.truncate(at.index(messages.len() + 1)),
        Damage::Echo(which, to) => {
            if !messages.is_empty() {
                let echo = messages[which.index(messages.len())].clone();
                messages.insert(to.index(messages.len() + 1), echo);
            }
        }
    }
}
