//! Request bodies of an exact size that look like an agent's: tools, rounds of calls and log-like results, with line
//! ends and quotes to escape and text that is not ASCII.

use anyhow::{Context as _, Result, ensure};

use super::stats::Random;

/// A request body, and where the one call without a result is, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) body: Vec<u8>,
    /// Where [`STAMP`] bytes of each result and of the last message are, which may be any digits.
    pub(crate) stamps: Vec<usize>,
    /// The offset right behind the message whose call has no result: where a repair has to go.
    pub(crate) gap: Option<usize>,
}

/// Whether every call of a sample has its result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Calls {
    Answered,
    /// One call, a quarter into the conversation, was interrupted.
    OneDangling,
}

/// How long a stamp is: what makes a text one that nobody has seen before.
pub(crate) const STAMP: usize = 8;

pub(crate) const SYSTEM: &str = "You are a coding agent. Work in small steps, run the tests after each change, and keep to the \
                      style of the project.\nNever touch files outside of the repository. Say \"done\" when you are.";
const CONTENT: &str = "\"content\":\"";
pub(crate) const TAIL: &str = r#"],"model":"gpt-5.2","temperature":0.2,"tools":[{"type":"function","function":{"name":"run_shell","description":"Run a command and return what it printed","parameters":{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer"}},"required":["command"]}}},{"type":"function","function":{"name":"read_file","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}}]}"#;
const LINES: [&str; 8] = [
    "2026-03-02T14:07:31.118Z INFO  worker::pool  job=4f1c finished in 183 ms\n",
    "test planner::keeps_the_last_rounds ... ok\n",
    "error[E0308]: mismatched types: expected `\"a\"`, found `&[u8]`\n   --> src/relay.rs:118:27\n",
    "{\"level\":\"warn\",\"msg\":\"retrying\",\"path\":\"C:\\\\build\\\\out\",\"attempt\":2}\n",
    "\tat com.example.Pipeline.run(Pipeline.java:212)\n",
    "Übersetzt: 42 Dateien → 3 Warnungen, größte Abweichung 0,7 µs ✓\n",
    "日志：连接已恢复，耗时 12 毫秒\n",
    "\u{1b}[32m✔\u{1b}[0m built in 1.2s\n",
];

/// Makes a request another one than those before it.
pub(crate) fn stamp(request: &mut [u8], stamps: &[usize], number: usize) {
    let digits = format!("{:0STAMP$}", number % 100_000_000);
    for &at in stamps {
        if let Some(stamp) = request.get_mut(at..at + STAMP) {
            stamp.copy_from_slice(digits.as_bytes());
        }
    }
}

/// Builds a body of exactly `bytes` bytes; the same one each time.
pub(crate) fn sample(bytes: usize, calls: Calls) -> Result<Sample> {
    let mut random = Random::new(u64::try_from(bytes)?);
    let result_bytes = (bytes / 24).clamp(160, 12_000);
    let mut body = format!(r#"{{"messages":[{{"role":"system","content":{}}},"#, quoted(SYSTEM)?);
    body.push_str(r#"{"role":"user","content":"The build is broken on main. Find out why and repair it."}"#);

    let (mut gap, mut stamps) = (None, Vec::new());
    let room_for_a_round = result_bytes * 2 + 450;
    for number in 0.. {
        if body.len() + TAIL.len() + room_for_a_round > bytes {
            break;
        }
        let id = format!("call_{:016x}{number:08}", random.next());
        body.push_str(&call(number, &id)?);
        if calls == Calls::OneDangling && gap.is_none() && body.len() * 4 >= bytes {
            gap = Some(body.len());
            body.push_str(r#",{"role":"user","content":"Stop that, look at the tests first."}"#);
        } else {
            let result = result(&id, &format!("{number:0STAMP$} {}", log(&mut random, result_bytes)))?;
            stamps.extend(result.find(CONTENT).map(|at| body.len() + at + CONTENT.len()));
            body.push_str(&result);
        }
    }
    ensure!(gap.is_some() == (calls == Calls::OneDangling), "too small a body for a call without a result");
    stamps.push(padding(&mut body, bytes)?);
    body.push_str(TAIL);
    Ok(Sample { body: body.into_bytes(), stamps, gap })
}

/// Fills messages up with one more, of plain letters, so that a body of `bytes` bytes is left with [`TAIL`] behind it. Returns where
/// its text begins.
pub(crate) fn padding(body: &mut String, bytes: usize) -> Result<usize> {
    let open = r#",{"role":"user","content":""#;
    let close = r#""}"#;
    let left = bytes.checked_sub(body.len() + open.len() + close.len() + TAIL.len()).context("too small a body")?;
    ensure!(left >= STAMP, "no room for a last message");
    body.push_str(open);
    let begins = body.len();
    // These are as long as they look.
    body.extend("and then go on with the next one ".chars().cycle().take(left));
    body.push_str(close);
    Ok(begins)
}

pub(crate) fn call(number: usize, id: &str) -> Result<String> {
    let arguments = quoted(&format!(r#"{{"command":"cargo test -p part_{number} -- --nocapture | tail -n 80"}}"#))?;
    let content =
        if number.is_multiple_of(3) { quoted("I look at the tests of this part first.")? } else { "null".to_owned() };
    Ok(format!(
        r#",{{"role":"assistant","content":{content},"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"run_shell","arguments":{arguments}}}}}]}}"#
    ))
}

pub(crate) fn result(id: &str, text: &str) -> Result<String> {
    Ok(format!(r#",{{"role":"tool","tool_call_id":"{id}","content":{}}}"#, quoted(text)?))
}

/// Log-like text of a half to one and a quarter times `bytes`, whose lines are not repeated elsewhere.
pub(crate) fn log(random: &mut Random, bytes: usize) -> String {
    let wanted = bytes / 2 + random.below(bytes * 3 / 4);
    let mut text = String::with_capacity(wanted + 128);
    while text.len() < wanted {
        text.push_str(&random.next().to_string());
        text.push(' ');
        text.push_str(LINES.get(random.below(LINES.len())).copied().unwrap_or_default());
    }
    text
}

pub(crate) fn quoted(text: &str) -> Result<String> {
    Ok(serde_json::to_string(text)?)
}
