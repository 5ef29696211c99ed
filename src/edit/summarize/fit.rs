//! What of a source a model that summarises has room for.

use crate::summary::{InputElement, SummaryInput};

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
        let (head, behind) = stretches.split_at_checked(n_head)?;
        let (n_tail, _) = fitting(behind.iter().rev(), room - taken);
        let tail = behind.get(behind.len() - n_tail..)?;
        (n_tail > 0).then(|| [head, tail].concat().concat())
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

#[cfg(test)]
mod tests;
