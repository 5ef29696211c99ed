//! What a model that summarises is given where all is too much: a part of the messages, or one text for upstreams that refuse
//! them.

use std::{borrow::Cow, fmt::Write};

use crate::conversation::{BlockIndex, Role, Unit};
use crate::dialect::Dialect;
use crate::draft::ParsedRequest;
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// A source that has no more than so many tokens: of what is summarised, the first quarter and the last three quarters of
/// what there is room for, parted where it may be. As it is if it fits, or if not even its end does.
pub fn fitted(source: &SummaryInput, most_tokens: usize) -> SummaryInput {
    let Some((leading, region)) = source.split() else { return source.clone() };
    let room = most_tokens.saturating_sub(source.base_tokens).saturating_sub(tokens(leading));
    if tokens(region) <= room {
        return source.clone();
    }
    let stretches: Vec<_> = region.chunk_by(|_, next| !next.opens).collect();
    match ends(&stretches, room) {
        Some(region) => SummaryInput { messages: [leading, &region].concat(), ..source.clone() },
        None => source.clone(),
    }
}

/// The parts that are kept at the beginning and at the end; none if there would be nothing at the end. The first stretch, where the
/// summary before this one stands, may take up to half of the room.
fn ends(stretches: &[&[InputElement]], room: usize) -> Option<Vec<InputElement>> {
    let first = stretches.first().map(|first| tokens(first)).filter(|first| *first <= room / 2);
    let for_head = first.unwrap_or_default().max(room / 4);
    [for_head, 0].into_iter().find_map(|for_head| {
        let (n_head, taken) = fitting(stretches.iter(), for_head);
        let (mut head, behind) = stretches.split_at_checked(n_head)?;
        let (n_tail, _) = fitting(behind.iter().rev(), room - taken);
        let tail = behind.get(behind.len() - n_tail..)?;
        let must_alternate = |element: Option<&InputElement>| element.is_some_and(|element| element.must_alternate);
        if must_alternate(tail.first()?.first()) {
            let fits = |stretch: &&[InputElement]| !must_alternate(stretch.last());
            head = head.get(..head.iter().rposition(fits).map_or(0, |last| last + 1))?;
        }
        Some([head, tail].concat().concat())
    })
}

/// How many of the first stretches fit, and how many tokens they have.
fn fitting<'a>(stretches: impl Iterator<Item = &'a &'a [InputElement]>, room: usize) -> (usize, usize) {
    let sums = stretches.scan(0_usize, |sum, stretch| {
        *sum = sum.saturating_add(tokens(stretch));
        (*sum <= room).then_some(*sum)
    });
    sums.fold((0, 0), |(n, _), sum| (n + 1, sum))
}

/// The tokens of messages.
pub fn tokens(pieces: &[InputElement]) -> usize {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.tokens))
}

// === a conversation as one text ===

/// Replaces the middle of a conversation that is too long.
const LEFT_OUT: &str = "\n\n[…]\n\n";

/// The text of one message that asks for a summary: some words, the conversation, and some words after it. None if `source` cannot be read. Of a conversation of more than `most_tokens`, the middle is left out.
pub fn prompt(
    source: &SummaryInput,
    dialect: &dyn Dialect,
    [before, behind]: &[&str; 2],
    most_tokens: usize,
) -> Option<String> {
    // A fresh request has nothing that a model does not read: no reasoning, no ids, no calls of programs.
    let asked = Prompt { input: PromptMode::Fresh, system: "", instruction: "", max_tokens: 0, model: Some("") };
    let body = dialect.summary_request(source, &asked)?;
    let conversation = dialect.parse(&body).ok()?;
    let request = ParsedRequest { dialect, body: &body, conversation: &conversation };
    let mut text = String::with_capacity(body.len());
    for unit in &conversation.units {
        push(&mut text, request, unit);
    }
    // Of what may stay, a quarter is its beginning.
    let tokens = tokens(&source.messages);
    if tokens > most_tokens {
        let most = text.len().saturating_mul(most_tokens) / tokens;
        let (head, tail) = (text.floor_char_boundary(most / 4), text.ceil_char_boundary(text.len() - most / 4 * 3));
        text.replace_range(head..tail, LEFT_OUT);
    }
    Some([before, text.trim(), behind].join("\n\n"))
}

/// Adds who speaks in a unit, what it says, and its calls.
fn push(text: &mut String, request: ParsedRequest<'_>, unit: &Unit) {
    let mut parts: Vec<Cow<'_, str>> = request.text(unit).into_iter().collect();
    for call in BlockIndex::each(&unit.blocks) {
        if let Some(input) = request.arguments(call) {
            parts.push(format!("[calls {}: {input}]", request.conversation.tool_name(call)).into());
        }
    }
    let said = parts.join("\n");
    let who = match unit.role {
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool result",
        Role::Other => "other",
    };
    if !said.is_empty() {
        let _ = write!(text, "### {who}\n{said}\n\n");
    }
}

#[cfg(test)]
mod tests;
