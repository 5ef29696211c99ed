//! Sessions of an agent of which nothing has to be remembered: each message follows from its session and its place.

use std::fmt::Write as _;

use serde::Deserialize;

/// One session, which goes on over kills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Talk {
    pub(super) session: usize,
    /// How many messages the next request has.
    pub(super) len: usize,
}

/// Something that a session has said, which a handle must give back.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Said {
    /// The text of the result with this place.
    Result { session: usize, at: usize },
    /// All messages from after the instructions to this place, one a line.
    Transcript { session: usize, to: usize },
}

/// A summary in a body that went upstream.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) session: usize,
    /// The place of the first message after it.
    pub(super) to: usize,
    /// The whole message that it is.
    pub(super) text: String,
}

/// The handles that a body names.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    pub(super) session: usize,
    pub(super) handles: Vec<(String, Said)>,
    pub(super) summary: Option<Used>,
}

/// A session ends with this many messages, and another one takes its place.
const LENGTH: usize = 49;

/// A turn: the user, three rounds of a call and its result, and the model's answer.
const TURN: usize = 8;

// === impl Talk ===

impl Talk {
    pub(super) fn new(session: usize) -> Self {
        Self { session, len: 2 }
    }

    pub(super) fn body(self) -> String {
        let messages: Vec<_> = (0..self.len).map(|at| message(self.session, at)).collect();
        let tools = r#"[{"type":"function","function":{"name":"bash"}}]"#;
        format!(r#"{{"model":"some-model","messages":[{}],"tools":{tools}}}"#, messages.join(","))
    }

    /// The next request has the answer to this one, and a result or a question of the user.
    pub(super) fn go_on(&mut self) {
        self.len += 2;
    }

    pub(super) fn is_over(self) -> bool {
        self.len > LENGTH
    }
}

// === impl Said ===

impl Said {
    /// Returns what is recalled.
    pub(super) fn text(self) -> String {
        match self {
            Self::Result { session, at } => result(session, at),
            Self::Transcript { session, to } => (1..to).fold(String::new(), |mut lines, at| {
                writeln!(lines, "{}", message(session, at)).unwrap();
                lines
            }),
        }
    }
}

// === what a body names ===

#[derive(Debug, Deserialize)]
struct Chat {
    messages: Vec<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: String,
    tool_call_id: Option<String>,
}

/// Reads a body as the upstream has got it.
pub(super) fn named(body: &[u8]) -> Named {
    let Chat { messages } = serde_json::from_slice(body).unwrap();
    let (session, 0) = place(&messages[0].content).expect("the instructions name their session") else {
        panic!("the instructions should stand first: {:?}", messages[0]);
    };
    let mut named = Named { session, ..Named::default() };
    for (n, message) in messages.iter().enumerate() {
        let handles = super::recalls(message.content.as_bytes());
        let said = match &message.tool_call_id {
            Some(id) => {
                let (session, at) = place(&format!("<{id}>")).unwrap();
                Said::Result { session, at }
            }
            None if message.role == "user" && message.content.contains(super::model::OPEN) => {
                let (_, to) = messages.get(n + 1).and_then(|next| place(&next.content)).expect("a message behind it");
                assert_eq!((n, handles.len()), (1, 1), "one summary names one transcript: {}", message.content);
                named.summary = Some(Used { session, to, text: message.content.clone() });
                Said::Transcript { session, to }
            }
            None => {
                assert_eq!(handles, [""; 0], "who names this? {}", message.content);
                continue;
            }
        };
        named.handles.extend(handles.into_iter().map(|handle| (handle, said)));
    }
    named
}

/// The session and the place in the mark that a text begins with.
fn place(text: &str) -> Option<(usize, usize)> {
    let (session, at) = text.strip_prefix("<s")?.split_once('>')?.0.split_once('m')?;
    Some((session.parse().ok()?, at.parse().ok()?))
}

// === what is said ===

fn message(session: usize, at: usize) -> String {
    let Some(n) = at.checked_sub(1) else {
        return format!(r#"{{"role":"system","content":"<s{session}m0> be brief"}}"#);
    };
    let words = "so I think that this is what is to be done now, and that after it ".repeat(6);
    match n % TURN {
        0 => format!(r#"{{"role":"user","content":"<s{session}m{at}> a wish"}}"#),
        7 => format!(r#"{{"role":"assistant","content":"<s{session}m{at}> done, {words}"}}"#),
        n if n % 2 == 1 => {
            let next = at + 1;
            format!(
                r#"{{"role":"assistant","content":"<s{session}m{at}> {words}","tool_calls":[{{"id":"s{session}m{next}","type":"function","function":{{"name":"bash","arguments":"{{}}"}}}}]}}"#
            )
        }
        _ => {
            let text = serde_json::to_string(&result(session, at)).unwrap();
            format!(r#"{{"role":"tool","tool_call_id":"s{session}m{at}","content":{text}}}"#)
        }
    }
}

/// Short or long, and no two alike.
fn result(session: usize, at: usize) -> String {
    let mut text = format!("printed by s{session}m{at}\n");
    for line in 0..(session * 31 + at * 17) % 120 {
        writeln!(text, "{} \u{e9}\t\"{}\" {line}", session * 1000 + at, (line + at) * 7919 % 1000).unwrap();
    }
    text
}
