//! Byte ranges of a request body, and putting a body together from replaced and untouched ranges.

use bytes::Bytes;

/// A half-open range of bytes. All positions are offsets into the request body.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// One after the last byte.
    pub end: usize,
}

/// One range of the body and what is there afterwards. An empty range inserts, an empty replacement cuts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Splice {
    /// The bytes that are replaced.
    pub span: Span,
    /// What replaces it.
    pub with: Bytes,
}

impl Span {
    /// The empty span at `at`.
    pub fn empty(at: usize) -> Self {
        Self { start: at, end: at }
    }

    /// How many bytes it covers.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether it covers no byte.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes it covers; none if it is not in `body`.
    #[inline]
    pub fn of(self, body: &[u8]) -> &[u8] {
        body.get(self.start..self.end).unwrap_or_default()
    }
}

/// Sorted cuts of members of an object. The comma before the last member may have left with the one before it: then the comma before
/// both leaves, and they are one cut.
pub fn apart(body: &[u8], cuts: impl IntoIterator<Item = Splice>) -> Vec<Splice> {
    let mut apart: Vec<Splice> = Vec::new();
    for mut cut in cuts {
        while let Some(before) = apart.pop_if(|before| before.span.end > cut.span.start) {
            let rest = body.get(..before.span.start).unwrap_or_default().trim_ascii_end();
            cut.span.start = rest.strip_suffix(b",").map_or(before.span.start, <[u8]>::len);
        }
        apart.push(cut);
    }
    apart
}

/// The body with `splices` made, as pieces in order. They are sorted and disjoint, and are in `body`; several may stand
/// at one place, and then follow each other there. What no splice touches is a slice of the allocation of `body`;
/// without splices the answer is `body` itself.
pub fn splice(body: &Bytes, splices: &[Splice]) -> Vec<Bytes> {
    if splices.is_empty() {
        return vec![body.clone()];
    }
    let mut pieces = Vec::with_capacity(2 * splices.len() + 1);
    let mut at = 0;
    for Splice { span, with } in splices {
        debug_assert!(at <= span.start && span.start <= span.end, "splices are sorted and disjoint");
        if at < span.start {
            pieces.push(body.slice(at..span.start));
        }
        if !with.is_empty() {
            pieces.push(with.clone());
        }
        at = span.end;
    }
    if at < body.len() {
        pieces.push(body.slice(at..));
    }
    pieces
}

/// A body in one piece. One that is in one piece already is not copied.
pub fn joined(pieces: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([whole]) => whole,
        Err(pieces) => pieces.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &'static str, splices: &[(usize, usize, &'static str)], expected: &str) {
        let body = Bytes::from_static(body.as_bytes());
        let splices: Vec<_> = splices
            .iter()
            .map(|&(start, end, with)| Splice { span: Span { start, end }, with: Bytes::from_static(with.as_bytes()) })
            .collect();
        let pieces = splice(&body, &splices);
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        assert_eq!(pieces.concat(), expected.as_bytes());
    }

    #[test]
    fn replaces_cuts_and_inserts() {
        check("0123456789", &[(2, 4, "xyz"), (5, 5, "-"), (5, 5, "+"), (6, 9, "")], "01xyz4-+59");
        check("0123", &[(0, 2, ""), (4, 4, "!")], "23!");
        check("0123", &[(0, 4, "")], "");
    }

    #[test]
    fn no_splices_are_the_same_allocation() {
        let body = Bytes::from("0123".to_owned());
        let pieces = splice(&body, &[]);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn untouched_ranges_are_slices_of_the_body() {
        let body = Bytes::from("0123".to_owned());
        let pieces = splice(&body, &[Splice { span: Span { start: 1, end: 2 }, with: Bytes::from_static(b"x") }]);
        assert_eq!(pieces[0].as_ptr(), body.as_ptr());
        assert_eq!(pieces[2].as_ptr(), body[2..].as_ptr());
        assert_eq!(joined(pieces), "0x23");
        assert_eq!(joined(vec![body.clone()]).as_ptr(), body.as_ptr());
    }
}
