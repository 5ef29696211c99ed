//! Splits an event stream into its events, each with all of its bytes.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// The bytes of the event that has not ended yet.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    buffer: BytesMut,
    // Where the present line begins, and up to where it is known to have no end.
    line: usize,
    scanned: usize,
    // Whether the last event ended with a carriage return, to which a line feed may belong.
    after_return: bool,
}

// === impl EventSplitter ===

impl EventSplitter {
    /// Adds a chunk.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
        if !chunk.is_empty() && std::mem::take(&mut self.after_return) && chunk.starts_with(b"\n") {
            (self.line, self.scanned) = (1, 1);
        }
    }

    /// The next event that has ended, with the empty line after it.
    pub(crate) fn next_event(&mut self) -> Option<Bytes> {
        while let Some(n) = memchr2(b'\r', b'\n', self.buffer.get(self.scanned..)?) {
            let end = self.scanned + n;
            let next = match self.buffer.get(end..)? {
                // A line feed may follow. The event that an empty line ends does not wait for that.
                b"\r" if end > self.line => {
                    self.scanned = end;
                    return None;
                }
                [b'\r', b'\n', ..] => end + 2,
                _ => end + 1,
            };
            let is_empty = end == self.line;
            (self.line, self.scanned) = (next, next);
            if is_empty {
                self.after_return = self.buffer.get(end..) == Some(b"\r");
                return Some(self.take(next));
            }
        }
        self.scanned = self.buffer.len();
        None
    }

    /// Returns what has not ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.take(self.buffer.len())
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    fn take(&mut self, end: usize) -> Bytes {
        (self.line, self.scanned) = (0, 0);
        self.buffer.split_to(end).freeze()
    }
}

/// The data of an event.
pub(crate) fn data(event: &[u8]) -> Vec<u8> {
    field(event, b"data:")
}

/// A field of an event, with its colon: its lines of that name, joined.
pub(crate) fn field(event: &[u8], name: &[u8]) -> Vec<u8> {
    let lines = event.split(|byte| matches!(byte, b'\r' | b'\n'));
    let values = lines.filter_map(|line| line.strip_prefix(name));
    values.map(|value| value.strip_prefix(b" ").unwrap_or(value)).collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_bytes_at_any_chunk_boundary() {
        let stream = "data: 1\n\n: comment\r\nevent: x\r\ndata: {\r\ndata:}\r\n\r\n\ndata: rest";
        let expected = ["data: 1\n\n", ": comment\r\nevent: x\r\ndata: {\r\ndata:}\r\n\r\n", "\n"];
        for n in 1..=stream.len() {
            let (mut splitter, mut events) = (EventSplitter::default(), Vec::new());
            for chunk in stream.as_bytes().chunks(n) {
                splitter.push(chunk);
                while let Some(event) = splitter.next_event() {
                    events.push(event);
                }
            }
            // A line feed that comes after the end of its event begins the next one.
            let ends = |events: &[Bytes]| events.iter().map(|event| data(event)).collect::<Vec<_>>();
            assert_eq!((events.concat(), events.len()), (expected.concat().into_bytes(), 3), "by {n}");
            assert_eq!(ends(&events), [b"1".to_vec(), b"{\n}".to_vec(), Vec::new()], "by {n}");
            assert_eq!((splitter.len(), splitter.rest()), (10, Bytes::from_static(b"data: rest")));
        }
        assert_eq!(data(expected[1].as_bytes()), b"{\n}");
    }

    #[test]
    fn an_event_that_a_carriage_return_ends_waits_for_nothing() {
        let mut splitter = EventSplitter::default();
        for (chunk, event) in
            [("data: 1\r", None), ("\r", Some("data: 1\r\r")), ("\ndata: 2\r\n\r", Some("\ndata: 2\r\n\r"))]
        {
            splitter.push(chunk.as_bytes());
            assert_eq!(splitter.next_event(), event.map(Bytes::from), "{chunk:?}");
        }
        splitter.push(b"");
        splitter.push(b"\n");
        assert_eq!((splitter.next_event(), splitter.rest()), (None, Bytes::from_static(b"\n")));
    }

    #[test]
    fn lines_may_end_with_a_carriage_return_alone() {
        let stream = "data: 1\r\revent: x\rdata: 2\r\rdata: 3";
        for n in 1..=stream.len() {
            let (mut splitter, mut events) = (EventSplitter::default(), Vec::new());
            for chunk in stream.as_bytes().chunks(n) {
                splitter.push(chunk);
                events.extend(std::iter::from_fn(|| splitter.next_event()));
            }
            assert_eq!(events, ["data: 1\r\r", "event: x\rdata: 2\r\r"], "by {n}");
            assert_eq!((data(&events[1]), splitter.rest()), (b"2".to_vec(), Bytes::from_static(b"data: 3")));
        }
    }
}
