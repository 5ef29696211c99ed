//! Request bodies of an exact size from the session of an agent: one of a corpus, or one that is generated with as many
//! escapes as recorded ones have. Readers of JSON stop at each backslash, so a text without any is read faster.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::conversation::{Calls, SYSTEM, Sample, TAIL, call, padding, quoted, result};
use super::stats::{Random, float};

/// In generated texts, as JSON writes them: a backslash each so many bytes, and an escaped quote each so many.
const BACKSLASH_EACH: usize = 18;
const QUOTE_EACH: usize = 60;
/// How far the whole body may be from these, in per cent of them.
const TOLERANCE: f64 = 5.0;

/// The shortest session of a corpus that is taken, in bytes.
const SHORTEST: usize = 256 << 10;
const GENERATED_ROUNDS: usize = 48;
const GENERATED_RESULT: usize = 12_000;
const WORDS: [&str; 8] = ["let ", "value ", "= ", "self.", "buffer", "(offset) ", "-> ", "Result "];

/// A session that can be repeated up to any size.
#[derive(Debug)]
pub(crate) struct Session {
    name: String,
    rounds: Vec<Round>,
}

/// Messages that belong together, as JSON: a message, and the results of its calls.
#[derive(Debug)]
struct Round {
    messages: Vec<String>,
    /// The ids of its calls.
    ids: Vec<String>,
    /// Whether it is there once, however often the session is repeated: instructions.
    once: bool,
}

/// Where the texts are from, and how many bytes of JSON there are for each backslash and for each escaped quote.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Texts {
    pub(crate) session: String,
    pub(crate) backslash_each: f64,
    pub(crate) quote_each: f64,
}

#[derive(Deserialize)]
struct Transcript<'t> {
    #[serde(borrow)]
    messages: Vec<&'t RawValue>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    tool_calls: Option<Vec<Call>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
}

impl Session {
    /// The session with the most escapes of those in `ABRIDGE_CORPUS` that need no repair; a generated one, if there is none.
    pub(crate) fn load() -> Result<Self> {
        let Some(corpus) = env::var_os("ABRIDGE_CORPUS").map(PathBuf::from) else {
            return Self::generated();
        };
        let mut best: Option<(f64, Self)> = None;
        let mut files: Vec<_> = fs::read_dir(corpus.join("trajectories"))?.collect::<std::io::Result<_>>()?;
        files.sort_unstable_by_key(fs::DirEntry::path);
        for file in files {
            let text = fs::read_to_string(file.path())?;
            let each = Texts::of("", text.as_bytes()).backslash_each;
            if text.len() < SHORTEST || best.as_ref().is_some_and(|(least, _)| each >= *least) {
                continue;
            }
            if let Some(session) = Self::recorded(&file.path(), &text)? {
                best = Some((each, session));
            }
        }
        best.map(|(_, session)| session).context("no long session in ABRIDGE_CORPUS in which each call has its result")
    }

    /// A session of a corpus, unless an edit would repair it.
    fn recorded(path: &Path, text: &str) -> Result<Option<Self>> {
        let transcript: Transcript<'_> =
            serde_json::from_str(text).with_context(|| format!("{} is no transcript", path.display()))?;
        let mut rounds: Vec<Round> = Vec::new();
        let mut results: Vec<Vec<String>> = Vec::new();
        for raw in transcript.messages {
            let message: Message = serde_json::from_str(raw.get())?;
            if let (Some(id), Some(round), Some(results)) =
                (message.tool_call_id, rounds.last_mut(), results.last_mut())
            {
                round.messages.push(raw.get().to_owned());
                results.push(id);
                continue;
            }
            let ids = message.tool_calls.unwrap_or_default().into_iter().map(|call| call.id).collect();
            let once = matches!(message.role.as_str(), "system" | "developer");
            rounds.push(Round { messages: vec![raw.get().to_owned()], ids, once });
            results.push(Vec::new());
        }
        let mut ids: Vec<_> = rounds.iter().flat_map(|round| &round.ids).collect();
        let n_calls = ids.len();
        ids.sort_unstable();
        ids.dedup();
        let is_whole =
            n_calls == ids.len() && rounds.iter().zip(&results).all(|(round, results)| round.ids == *results);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(is_whole.then_some(Self { name, rounds }))
    }

    /// A session of rounds of one call and a result of code.
    fn generated() -> Result<Self> {
        let mut random = Random::new(18);
        let once = format!(r#"{{"role":"system","content":{}}}"#, quoted(SYSTEM)?);
        let mut rounds = vec![Round { messages: vec![once], ids: Vec::new(), once: true }];
        for number in 0..GENERATED_ROUNDS {
            let id = format!("call_{:016x}", random.next());
            let messages = [call(number, &id)?, result(&id, &code(&mut random, GENERATED_RESULT))?];
            let messages = messages.map(|message| message.trim_start_matches(',').to_owned()).into();
            rounds.push(Round { messages, ids: vec![id], once: false });
        }
        let session = Self { name: "generated".to_owned(), rounds };
        let texts = session.texts()?;
        for (found, wanted) in [(texts.backslash_each, BACKSLASH_EACH), (texts.quote_each, QUOTE_EACH)] {
            let wanted = float(wanted);
            ensure!(
                (found - wanted).abs() * 100.0 <= wanted * TOLERANCE,
                "an escape each {found:.1} bytes, not {wanted}"
            );
        }
        Ok(session)
    }

    /// Where the texts of a body of 1 MB are from, and how many escapes it has.
    pub(crate) fn texts(&self) -> Result<Texts> {
        Ok(Texts::of(&self.name, &self.sample(1 << 20, Calls::Answered)?.body))
    }

    /// A body of exactly `bytes` bytes: the session, again and again, with new ids each time.
    pub(crate) fn sample(&self, bytes: usize, calls: Calls) -> Result<Sample> {
        let mut body = r#"{"messages":["#.to_owned();
        let mut gap = None;
        let mut is_full = false;
        for repetition in 0.. {
            for round in self.rounds.iter().filter(|round| repetition == 0 || !round.once) {
                let mut messages = round.with_ids_of(repetition);
                let length: usize = messages.iter().map(|message| message.len() + 1).sum();
                if body.len() + length + ROOM > bytes {
                    is_full = true;
                    continue;
                }
                let is_interrupted = calls == Calls::OneDangling && gap.is_none() && round.ids.len() == 1;
                if is_interrupted && body.len() * 4 >= bytes {
                    messages = vec![messages.swap_remove(0), INTERRUPTION.to_owned()];
                    gap = messages.first().map(|call| body.len() + 1 + call.len());
                }
                for message in &messages {
                    push(&mut body, message);
                }
            }
            if is_full {
                break;
            }
        }
        ensure!(gap.is_some() == (calls == Calls::OneDangling), "too small a body for a call without a result");
        padding(&mut body, bytes)?;
        body.push_str(TAIL);
        Ok(Sample { body: body.into_bytes(), stamps: Vec::new(), gap })
    }
}

/// What is left free for the last message and for what stands behind the messages.
const ROOM: usize = 1024;
const INTERRUPTION: &str = r#"{"role":"user","content":"Stop that, look at the tests first."}"#;

fn push(body: &mut String, message: &str) {
    if !body.ends_with('[') {
        body.push(',');
    }
    body.push_str(message);
}

impl Round {
    /// The messages as they are in this repetition of the session.
    fn with_ids_of(&self, repetition: usize) -> Vec<String> {
        let renamed = |message: &String| {
            // In a text the quote before the id is escaped, and so is the one behind it.
            self.ids.iter().fold(message.clone(), |message, id| {
                message.replace(&format!("\"{id}\""), &format!("\"{id}-{repetition}\""))
            })
        };
        self.messages.iter().map(renamed).collect()
    }
}

impl Texts {
    fn of(session: &str, json: &[u8]) -> Self {
        let each = |byte| float(json.len()) / float(memchr::memchr_iter(byte, json).count().max(1));
        let (mut quotes, mut rest) = (0_usize, json);
        while let Some(at) = memchr::memchr(b'\\', rest) {
            quotes += usize::from(rest.get(at + 1) == Some(&b'"'));
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        Self {
            session: session.to_owned(),
            backslash_each: each(b'\\'),
            quote_each: float(json.len()) / float(quotes.max(1)),
        }
    }
}

/// Text that takes at least `bytes` bytes as JSON, with escapes as often as the constants say.
fn code(random: &mut Random, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes);
    let (mut written, mut backslashes, mut quotes) = (0, 0, 0);
    while written < bytes {
        let next = if quotes * QUOTE_EACH <= written {
            quotes += 1;
            "\""
        } else if backslashes * BACKSLASH_EACH <= written {
            ["\n", "\n", "\n", "\t", "\\"].get(random.below(5)).copied().unwrap_or_default()
        } else {
            WORDS.get(random.below(WORDS.len())).copied().unwrap_or_default()
        };
        let escapes = match next {
            "\"" | "\n" | "\t" => 1,
            "\\" => 2,
            _ => 0,
        };
        backslashes += escapes;
        written += if escapes == 0 { next.len() } else { 2 };
        text.push_str(next);
    }
    text
}
