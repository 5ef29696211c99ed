//! Bytes become a request: as they are if they begin as JSON does, or else message by message, each byte a choice.

use std::fmt::Write as _;

use bytes::Bytes;

/// A request body, and perhaps what it was made of.
#[derive(Debug)]
pub enum Given {
    /// Any bytes.
    Body(Bytes),
    /// A conversation that was made message by message.
    Made(Made),
}

/// A conversation as JSON texts.
#[derive(Debug, Default)]
pub struct Made {
    head: String,
    comma: &'static str,
    tail: &'static str,
    messages: Vec<String>,
    /// How many messages there were before whole steps alone were added; none if none were.
    pub n_before_growth: Option<usize>,
}

const SPACES: [&str; 4] = ["", " ", "\n  ", "\r\n\t"];
const OTHER_KEYS: [&str; 4] =
    ["", r#""model":"gpt-4o","#, r#""x":{"messages":[]},"n":1.50e+2,"#, r#""tools":[{"function":{"name":"bash"}}],"#];
const TAILS: [&str; 4] = ["]}", r#"],"stream":true}"#, "] }\n", r#"],"extra":"\u00e9\/"}"#];
const IDS: [&str; 10] = [
    r#""a""#,
    r#""b""#,
    r#""c""#,
    r#""functions.bash:0""#,
    r#""\u0061""#,
    r#""a\"b\\""#,
    r#""{tool_name}""#,
    r#""é\n""#,
    r#""""#,
    "null",
];
const NAMES: [&str; 4] = [r#""bash""#, r#""re\u0061d""#, r#""read_file""#, r#""{handle}""#];
const ARGUMENTS: [&str; 5] =
    [r#""{\"a\": \"]\"}""#, r#""{}""#, r#"{"a":1}"#, "null", r#""{\"path\":\"/tmp/x\",\"n\":[1,2,3,4]}""#];
const MORE_KEYS: [&str; 4] =
    ["", "", r#", "cache_control" : {"type":"ephemeral"}"#, r#","reasoning_content":"so \u0022""#];
const PIECES: [&str; 6] =
    ["word ", "line\n", "é😀", "\"\\", "x", "GET http://h/abridge/recall/0123456789abcdefghjkmnpqrs "];
const SPELLED: [&str; 6] =
    [r#""""#, r#""\u00e9\/\ud83d\ude00""#, r#""]}, {[""#, r#""\\\"\\""#, r#""\ud800""#, r#""ok""#];

impl Given {
    /// What these bytes say.
    pub fn read(bytes: &[u8]) -> Self {
        if bytes.first().is_none_or(|byte| b" \n\r\t{[".contains(byte)) {
            return Self::Body(Bytes::copy_from_slice(bytes));
        }
        Self::Made(Made::read(&mut Choices(bytes)))
    }

    /// The request body.
    pub fn body(&self) -> Bytes {
        match self {
            Self::Body(body) => body.clone(),
            Self::Made(made) => made.first(made.messages.len()),
        }
    }
}

impl Made {
    /// The body with the first `n` messages.
    pub fn first(&self, n: usize) -> Bytes {
        format!("{}{}{}", self.head, self.messages[..n].join(self.comma), self.tail).into()
    }

    fn read(choices: &mut Choices<'_>) -> Self {
        let space = choices.one_of(&SPACES);
        let head = format!("{space}{{{}\"messages\"{space}:[{space}", choices.one_of(&OTHER_KEYS));
        let comma = if choices.below(2) == 0 { "," } else { " ,\n" };
        let mut made = Self { head, comma, tail: choices.one_of(&TAILS), ..Self::default() };
        let mut late = Vec::new();
        while !choices.0.is_empty() && made.messages.len() < 40 {
            made.step(choices, &mut late);
        }
        made
    }

    fn step(&mut self, choices: &mut Choices<'_>, late: &mut Vec<String>) {
        let is_growing = self.n_before_growth.is_some();
        match choices.below(16) {
            0..=6 => self.round(choices, late),
            7 | 8 => self.plain("user", choices),
            9 => self.plain("assistant", choices),
            10 => {
                let role = choices.one_of(&["system", "developer", "function", "critic"]);
                self.plain(role, choices);
            }
            11 => self.n_before_growth = self.n_before_growth.or(Some(self.messages.len())),
            _ if is_growing => self.plain("user", choices),
            12 => self.messages.append(late),
            13 => {
                let orphan = result(choices.one_of(&IDS), &content(choices), "");
                self.messages.push(orphan);
            }
            14 => self.messages.push(r#"{"role":"tool","content":"unnamed"}"#.to_owned()),
            _ => {
                if let Some(n) = choices.below(64).checked_rem(self.messages.len()) {
                    self.messages.push(self.messages[n].clone());
                }
            }
        }
    }

    fn plain(&mut self, role: &str, choices: &mut Choices<'_>) {
        let (content, more) = (content(choices), choices.one_of(&MORE_KEYS));
        self.messages.push(format!(r#"{{"role":"{role}","content":{content}{more}}}"#));
    }

    /// A message that calls, and its results: in any order, and where the conversation does not grow, lost or late ones.
    fn round(&mut self, choices: &mut Choices<'_>, late: &mut Vec<String>) {
        let (mut calls, mut results) = (String::new(), Vec::new());
        for n in 0..=choices.below(3) {
            let (id, name, arguments) = (choices.one_of(&IDS), choices.one_of(&NAMES), choices.one_of(&ARGUMENTS));
            let kind = if choices.below(5) == 0 { "custom" } else { "function" };
            let comma = if n == 0 { "" } else { " ," };
            let _ = write!(
                calls,
                r#"{comma}{{"id":{id}, "type":"{kind}","{kind}":{{"name":{name},"arguments":{arguments}}}}}"#
            );
            results.push((choices.below(8), result(id, &content(choices), choices.one_of(&MORE_KEYS))));
        }
        let asked = match choices.below(3) {
            0 => format!(r#"{{"role":"assistant","tool_calls":[{calls}]}}"#),
            1 => format!(r#"{{ "tool_calls" : [ {calls} ], "role":"assistant","content":null}}"#),
            _ => format!(r#"{{"role":"assistant","content":"hm","tool_calls":[{calls}],"z":[{{}}]}}"#),
        };
        self.messages.push(asked);
        if choices.below(2) == 0 {
            results.reverse();
        }
        for (fate, result) in results {
            match fate {
                0 if self.n_before_growth.is_none() => {}
                1 if self.n_before_growth.is_none() => late.push(result),
                _ => self.messages.push(result),
            }
        }
    }
}

fn result(id: &str, content: &str, more: &str) -> String {
    format!(r#"{{"tool_call_id":{id},"content": {content},"role":"tool"{more}}}"#)
}

/// The JSON text of a content.
fn content(choices: &mut Choices<'_>) -> String {
    match choices.below(8) {
        0 => (*choices.one_of(&SPELLED)).to_owned(),
        1 => "null".to_owned(),
        2 => format!(
            r#"[ {{"type":"text","text":{}}},{{"type":"image_url","image_url":{{"url":"data:"}}}},{{"text":{},"type":"text"}}]"#,
            text(choices),
            text(choices)
        ),
        _ => text(choices),
    }
}

/// The JSON text of a string: a piece again and again, perhaps with bytes of the input behind it.
fn text(choices: &mut Choices<'_>) -> String {
    let (piece, n) = (choices.one_of(&PIECES), choices.below(128));
    let own = if choices.below(4) == 0 { choices.text() } else { String::new() };
    // Mostly short, so that there are many conversations a second.
    let times = if n < 120 { n / 8 } else { (n - 119) * 20 };
    let text = serde_json::to_string(&(piece.repeat(times) + &own)).expect("any text can be written");
    text.replace('\u{FFFD}', "\\ud83d") // bytes that are no text: half a surrogate pair
}

/// Bytes that choose; when there are none left, the first choice is taken.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(byte) % n
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn text(&mut self) -> String {
        let (text, rest) = self.0.split_at(self.below(32).min(self.0.len()));
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}
