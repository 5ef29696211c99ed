//! Pages of stored payloads, newest first, selected by a prefix of the handle or by a text that they contain. The work
//! for one page is bounded.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::str::FromStr;

use bytes::Bytes;
use memchr::memmem;

use super::{PayloadInfo, Time};
use crate::payload::{Caller, HANDLE_LEN, InvalidHandle, Keys, PayloadKey};

/// Selects payloads. With both `prefix` and `text`, those that match one of the two.
#[derive(Clone, Debug, Default)]
pub struct PageQuery {
    /// The most payloads of a page.
    pub limit: usize,
    /// Only payloads behind this place.
    pub after: Option<Cursor>,
    /// A prefix of the handle.
    pub prefix: Option<String>,
    /// A text that the payload contains.
    pub text: Option<String>,
    /// Whose payloads; those of others are not read.
    pub owner: Option<Owner>,
    /// Whether the beginnings of the payloads are wanted.
    pub previews: bool,
}

/// A caller, and the keys that name its payloads.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The keys.
    pub keys: Keys,
    /// The caller.
    pub caller: Caller,
}

/// A page of payloads.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// The payloads.
    pub entries: Vec<PayloadInfo>,
    /// The beginnings of the payloads that are text, if one page may read that much.
    pub previews: BTreeMap<PayloadKey, String>,
    /// Where the next page begins; `None` for the last page. The next page may be empty without being the last.
    pub next: Option<Cursor>,
}

/// A place in the list of payloads that is sorted by last use, and then by what the store has them under.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, PartialEq)]
#[display("{}-{row}", used.0)]
pub struct Cursor {
    /// When the payload before was last used.
    pub(super) used: Time,
    /// The name of the row of that payload.
    pub(super) row: PayloadKey,
}

/// A scan of all payloads for one page.
pub(super) struct PageScan<'a> {
    query: &'a PageQuery,
    /// The newest candidates by their places, and one more to know whether there is a next page.
    found: BTreeMap<(Reverse<Time>, PayloadKey), PayloadInfo>,
    /// How many of the newest candidates decide on the page.
    pub(super) capacity: usize,
}

/// The longest preview, in characters.
const MAX_PREVIEW: usize = 160;

/// How many payloads, and how many bytes of them, are searched for one page.
const MAX_PAYLOADS_READ: usize = 500;
pub(super) const MAX_BYTES_READ: u64 = 64 << 20;

// === impl PageQuery ===

impl PageQuery {
    pub(super) fn scan(&self) -> PageScan<'_> {
        let capacity = if self.text.is_some() { MAX_PAYLOADS_READ } else { self.limit };
        PageScan { query: self, found: BTreeMap::new(), capacity }
    }
}

impl PageScan<'_> {
    /// Passes a payload to the scan, and what the store has it under. They may come in any order. Whether it may be on the
    /// page.
    pub(super) fn visit(&mut self, row: PayloadKey, entry: PayloadInfo) -> bool {
        let PageQuery { after, prefix, text, owner, .. } = self.query;
        let place = (Reverse(entry.used), row);
        let is_behind = after.is_none_or(|after| place > (Reverse(after.used), after.row));
        let is_owned = || owner.as_ref().is_none_or(|owner| owner.keys.may_be_of(owner.caller, entry.key));
        let has_prefix = || prefix.as_ref().is_none_or(|prefix| entry.key.to_string().starts_with(prefix));
        if !is_behind || !is_owned() || (text.is_none() && !has_prefix()) {
            return false;
        }
        self.found.insert(place, entry);
        if self.found.len() > self.capacity.saturating_add(1) {
            self.found.pop_last();
        }
        true
    }

    /// Builds the page when all payloads were visited. `read` returns the content of a row to search.
    pub(super) fn finish<E>(self, read: impl Fn(PayloadKey) -> Result<Option<Bytes>, E>) -> Result<Page, E> {
        let PageQuery { limit, prefix, text, previews, .. } = self.query;
        let (mut page, mut last, mut bytes_read) = (Page::default(), None, 0);
        for (n, ((Reverse(used), row), entry)) in self.found.into_iter().enumerate() {
            let too_much = text.is_some() && bytes_read > 0 && bytes_read + entry.bytes > MAX_BYTES_READ;
            if n == self.capacity || page.entries.len() == *limit || too_much {
                page.next = last;
                break;
            }
            last = Some(Cursor { used, row });
            let is_named = prefix.as_ref().is_some_and(|prefix| entry.key.to_string().starts_with(prefix));
            let is_searched = text.is_some() && !is_named;
            let has_room = bytes_read == 0 || bytes_read + entry.bytes <= MAX_BYTES_READ;
            let payload = if is_searched || (*previews && has_room) {
                bytes_read += entry.bytes;
                read(row)?
            } else {
                None
            };
            let has_text =
                |text: &String| payload.as_ref().is_some_and(|of| memmem::find(of, text.as_bytes()).is_some());
            if is_searched && !text.as_ref().is_some_and(has_text) {
                continue;
            }
            let preview = payload.as_deref().filter(|_| *previews).and_then(preview);
            page.previews.extend(preview.map(|preview| (entry.key, preview)));
            page.entries.push(entry);
        }
        Ok(page)
    }
}

/// The beginning of a text in one line; `None` for other bytes.
fn preview(payload: &[u8]) -> Option<String> {
    let beginning = payload.get(..4 * MAX_PREVIEW).unwrap_or(payload);
    let text = match std::str::from_utf8(beginning) {
        Err(error) if error.error_len().is_some() => return None,
        Err(error) => std::str::from_utf8(beginning.get(..error.valid_up_to())?).ok()?,
        Ok(text) => text,
    };
    let words: Vec<_> = text.split_whitespace().collect();
    let preview: String = words.join(" ").chars().filter(|c| !c.is_control()).take(MAX_PREVIEW).collect();
    (!preview.is_empty()).then_some(preview)
}

/// The first and the last key whose handles begin with this prefix; `None` if there are none.
pub(crate) fn key_range(prefix: &str) -> Option<[PayloadKey; 2]> {
    let n_left = HANDLE_LEN.checked_sub(prefix.len())?;
    let key = |digit: &str| {
        let mut handle = prefix.to_owned() + &digit.repeat(n_left);
        // 26 digits are 130 bits, so the first one has two bits less.
        if prefix.is_empty() && digit == "z" {
            handle.replace_range(..1, "7");
        }
        handle.parse().ok()
    };
    Some([key("0")?, key("z")?])
}

// === impl Cursor ===

impl FromStr for Cursor {
    type Err = InvalidHandle;

    fn from_str(text: &str) -> Result<Self, InvalidHandle> {
        let (used, row) = text.split_once('-').ok_or(InvalidHandle)?;
        Ok(Self { used: Time(used.parse().map_err(|_| InvalidHandle)?), row: row.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u8) -> PayloadInfo {
        let key = PayloadKey::from_bytes([n; 16]);
        PayloadInfo { key, bytes: 40 << 20, stored_bytes: 1, created: Time(0), used: Time(n.into()) }
    }

    #[test]
    fn a_page_reads_a_bounded_amount_and_the_next_one_continues() {
        let mut query = PageQuery { limit: 9, text: Some("x".to_owned()), ..PageQuery::default() };
        let mut found = Vec::new();
        for _ in 0..5 {
            let mut scan = query.scan();
            (0..5).for_each(|n| _ = scan.visit(entry(n).key, entry(n)));
            let page = scan.finish(|_| Ok::<_, ()>(Some(Bytes::from_static(b"axb")))).unwrap();
            assert!(page.entries.len() <= 1, "two of them are too long");
            found.extend(page.entries.into_iter().map(|entry| entry.used.0));
            query.after = page.next;
        }
        assert_eq!((found, query.after), (vec![4, 3, 2, 1, 0], None));
    }

    #[test]
    fn a_preview_is_the_beginning_of_a_text_and_reads_a_bounded_amount() {
        for (payload, shown) in [
            ("one\n\ttwo\u{1b}[0m ".as_bytes(), Some("one two[0m")),
            (b"\xff\xd8\xff".as_slice(), None),
            (b" \n".as_slice(), None),
        ] {
            assert_eq!(preview(payload).as_deref(), shown);
        }
        let long = "é".repeat(3 * MAX_PREVIEW);
        assert_eq!(preview(format!("a{long}").as_bytes()).unwrap().chars().count(), MAX_PREVIEW);
        let query = PageQuery { limit: 9, previews: true, ..PageQuery::default() };
        let mut scan = query.scan();
        (0..5).for_each(|n| _ = scan.visit(entry(n).key, entry(n)));
        let page = scan.finish(|_| Ok::<_, ()>(Some(Bytes::from_static(b"text")))).unwrap();
        assert_eq!((page.entries.len(), page.next), (5, None), "all are listed");
        assert_eq!(page.previews, BTreeMap::from([(entry(4).key, "text".to_owned())]), "two of them are too long");
    }

    #[test]
    fn a_prefix_selects_a_range_of_keys() {
        let key = |byte| PayloadKey::from_bytes([byte; 16]);
        assert_eq!(key_range(""), Some([key(0), key(255)]));
        let handle = key(0xA5).to_string();
        for len in 1..=HANDLE_LEN {
            let prefix = handle.get(..len).unwrap();
            let [first, last] = key_range(prefix).unwrap();
            assert!(first <= key(0xA5) && key(0xA5) <= last, "{len}");
            assert!([first, last].iter().all(|key| key.to_string().starts_with(prefix)), "{len}");
        }
        for wrong in ["8", "u", "é", &format!("{handle}0")] {
            assert_eq!(key_range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_cursor_parses_back_from_its_text() {
        let cursor = Cursor { used: Time(17), row: entry(3).key };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "-", "1", "x-00000000000000000000000000", "1-0"] {
            assert_eq!(wrong.parse::<Cursor>(), Err(InvalidHandle), "{wrong}");
        }
    }
}
