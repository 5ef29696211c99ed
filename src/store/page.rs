//! Payloads page by page, newest first, by the beginning of their handles or by what they say. The work of one page is bounded.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use memchr::memmem;

use super::{Entry, Time};
use crate::payload::{NotAHandle, PayloadKey};

/// Which payloads are wanted. With both, those for which one of the two is true.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// How many at most.
    pub most: usize,
    /// Only those behind this one.
    pub after: Option<Cursor>,
    /// The handle begins so.
    pub prefix: Option<String>,
    /// The payload holds this text.
    pub text: Option<String>,
}

/// A page.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Paged {
    /// The payloads.
    pub entries: Vec<Entry>,
    /// Where the next page begins; none if this is the last one. The next page may be empty, and not be the last one.
    pub next: Option<Cursor>,
}

/// A place among payloads that are sorted by their last use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cursor {
    used: Time,
    key: PayloadKey,
}

/// Payloads that are gone through for a page.
pub(super) struct Looking<'a> {
    page: &'a Page,
    /// Those to show or to read, the newest first, and one more.
    found: BTreeSet<(Reverse<Time>, PayloadKey, Kept)>,
    room: usize,
}

/// What there is to show of a payload.
type Kept = (u64, u64, u64);

/// So many payloads are read for one page, and so many bytes of them.
const MOST_READ: usize = 500;
const MOST_BYTES_READ: u64 = 64 << 20;

// === impl Page ===

impl Page {
    pub(super) fn begin(&self) -> Looking<'_> {
        let room = if self.text.is_some() { MOST_READ } else { self.most };
        Looking { page: self, found: BTreeSet::new(), room }
    }
}

impl Looking<'_> {
    /// Shows it a payload. They may come in any order.
    pub(super) fn see(&mut self, entry: Entry) {
        let Page { after, prefix, text, .. } = self.page;
        let place = |used, key| (Reverse(used), key);
        if after.is_some_and(|after| place(entry.used, entry.key) <= place(after.used, after.key)) {
            return;
        }
        if text.is_none() && prefix.as_ref().is_some_and(|prefix| !entry.key.to_string().starts_with(prefix)) {
            return;
        }
        let kept = (entry.bytes, entry.stored_bytes, entry.created.0);
        self.found.insert((Reverse(entry.used), entry.key, kept));
        if self.found.len() > self.room + 1 {
            self.found.pop_last();
        }
    }

    /// The page, once it has seen all payloads. `read` gives those whose text is looked through.
    pub(super) fn end<E>(self, read: impl Fn(PayloadKey) -> Result<Option<Bytes>, E>) -> Result<Paged, E> {
        let Page { most, prefix, text, .. } = self.page;
        let (mut paged, mut last, mut bytes_read) = (Paged::default(), None, 0);
        for (n, (Reverse(used), key, (bytes, stored_bytes, created))) in self.found.into_iter().enumerate() {
            let too_much = text.is_some() && bytes_read > 0 && bytes_read + bytes > MOST_BYTES_READ;
            if n == self.room || paged.entries.len() == *most || too_much {
                paged.next = last;
                break;
            }
            last = Some(Cursor { used, key });
            let is_wanted = match text {
                None => true,
                Some(_) if prefix.as_ref().is_some_and(|prefix| key.to_string().starts_with(prefix)) => true,
                Some(text) => {
                    bytes_read += bytes;
                    read(key)?.is_some_and(|payload| memmem::find(&payload, text.as_bytes()).is_some())
                }
            };
            if is_wanted {
                paged.entries.push(Entry { key, bytes, stored_bytes, created: Time(created), used });
            }
        }
        Ok(paged)
    }
}

// === impl Cursor ===

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.used.0, self.key)
    }
}

impl FromStr for Cursor {
    type Err = NotAHandle;

    fn from_str(text: &str) -> Result<Self, NotAHandle> {
        let (used, key) = text.split_once('-').ok_or(NotAHandle)?;
        Ok(Self { used: Time(used.parse().map_err(|_| NotAHandle)?), key: key.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u8) -> Entry {
        let key = PayloadKey::from_bytes([n; 16]);
        Entry { key, bytes: 40 << 20, stored_bytes: 1, created: Time(0), used: Time(n.into()) }
    }

    #[test]
    fn no_more_is_read_than_may_be_and_the_next_page_goes_on_there() {
        let mut page = Page { most: 9, text: Some("x".to_owned()), ..Page::default() };
        let mut found = Vec::new();
        for _ in 0..5 {
            let mut looking = page.begin();
            (0..5).for_each(|n| looking.see(entry(n)));
            let paged = looking.end(|_| Ok::<_, ()>(Some(Bytes::from_static(b"axb")))).unwrap();
            assert!(paged.entries.len() <= 1, "two of them are too long");
            found.extend(paged.entries.into_iter().map(|entry| entry.used.0));
            page.after = paged.next;
        }
        assert_eq!((found, page.after), (vec![4, 3, 2, 1, 0], None));
    }

    #[test]
    fn a_cursor_reads_back() {
        let cursor = Cursor { used: Time(17), key: entry(3).key };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "-", "1", "x-00000000000000000000000000", "1-0"] {
            assert_eq!(wrong.parse::<Cursor>(), Err(NotAHandle), "{wrong}");
        }
    }
}
