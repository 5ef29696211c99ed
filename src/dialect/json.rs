//! JSON as bytes, for the readers and writers of all dialects: a cursor that passes values quickly without looking into
//! strings, and the text of a string.
//!
//! Most of a body is strings, so they are passed 64 bytes at a time: bits of one number say where a quote is, and which of
//! them are escaped. Between strings the grammar is checked to the letter.

use std::borrow::Cow;

use memchr::memchr;

use super::{ParseError, ParseErrorKind};
use crate::raw::{self, Fields, closing_quote, near_closing_quote, utf8};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The input is not what the reader takes. [`Cursor::finish`] says why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Unsupported;

/// The result of reading a value.
pub(super) type ReadResult<T = ()> = Result<T, Unsupported>;

/// `Ok` if it holds.
pub(super) fn require(holds: bool) -> ReadResult {
    if holds { Ok(()) } else { Err(Unsupported) }
}

/// A place in a body.
pub(super) struct Cursor<'a> {
    body: &'a [u8],
    /// Where its long strings are, as far as that is known.
    strings: &'a StringIndex,
    /// The next byte to look at.
    at: usize,
    /// Whether it reads a whole body, of which it takes any depth, and keys with escapes. Edits leave such values alone.
    is_whole: bool,
    /// Where the fault is, and its kind, unless it is invalid JSON at `at`.
    fault: Option<Fault>,
}

/// The place of a fault of a body, and its kind.
pub(super) type Fault = (usize, ParseErrorKind);

/// The containers that are open around the current value, innermost last, as bits of one number.
#[derive(Default)]
struct Nesting {
    /// 1 for an object, 0 for an array; the innermost is the lowest.
    objects: u128,
    depth: u32,
    /// Full words of bits of the containers further out, innermost last.
    outer: Vec<u128>,
}

impl Nesting {
    fn open(&mut self, object: bool, any_depth: bool) -> ReadResult {
        if self.depth == u128::BITS {
            require(any_depth)?;
            self.outer.push(self.objects);
            self.depth = 0;
        }
        self.depth += 1;
        self.objects = (self.objects << 1) | u128::from(object);
        Ok(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
        if self.depth == 0
            && let Some(objects) = self.outer.pop()
        {
            (self.objects, self.depth) = (objects, u128::BITS);
        }
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

impl<'a> Cursor<'a> {
    /// At the first value of a body.
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { is_whole: false, ..Self::indexed(body, StringIndex::EMPTY) }
    }

    /// At the first value of a whole body whose long strings are known.
    pub(super) fn indexed(body: &'a [u8], strings: &'a StringIndex) -> Self {
        let mut cursor = Self { body, strings, at: 0, is_whole: true, fault: None };
        cursor.space();
        cursor
    }

    /// At a value somewhere in a body.
    pub(super) fn starting(body: &'a [u8], at: usize) -> Self {
        Self { body, strings: StringIndex::EMPTY, at, is_whole: false, fault: None }
    }

    /// Goes to a place that it has passed before, or back.
    pub(super) fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Notes what is wrong.
    pub(super) fn refuse(&mut self, fault: Fault) -> Unsupported {
        self.fault = Some(fault);
        Unsupported
    }

    /// Keeps a value that the object at `object` may have once.
    pub(super) fn once<T>(&mut self, object: usize, place: &mut Option<T>, value: T) -> ReadResult {
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.refuse((object, ParseErrorKind::DuplicateKey))),
        }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bytes of a span.
    pub(super) fn bytes(&self, span: Span) -> &'a [u8] {
        span.of(self.body)
    }

    /// The next byte.
    pub(super) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Returns what was read, or notes the fault.
    pub(super) fn accept<T>(&mut self, read: Result<T, Fault>) -> ReadResult<T> {
        read.map_err(|fault| self.refuse(fault))
    }

    /// The result of reading a whole body in `dialect`, after which only white space may follow; else the fault.
    pub(super) fn finish<T>(&mut self, dialect: &'static str, read: ReadResult<T>) -> Result<T, ParseError> {
        let read = read.and_then(|read| self.end().map(|()| read));
        let fault = |Unsupported| self.fault.unwrap_or((self.at, ParseErrorKind::NotJson));
        read.map_err(|unsupported| ParseError::new(dialect, fault(unsupported)))
    }

    /// Only white space may be left.
    pub(super) fn end(&mut self) -> ReadResult {
        self.space();
        require(self.at == self.body.len())
    }

    /// Reads the members of an object: `read` gets each key, and reads its value. Returns the span of the object.
    pub(super) fn members(&mut self, mut read: impl FnMut(&mut Self, Cow<'a, [u8]>) -> ReadResult) -> ReadResult<Span> {
        let start = self.at;
        let mut more = self.enter(b'{', b'}', ParseErrorKind::NotAnObject)?;
        while more {
            let key = self.name()?;
            read(self, key)?;
            more = self.next(b'}')?;
        }
        Ok(Span { start, end: self.at })
    }

    /// Reads each element of an array with `read`. Returns the span of the array.
    pub(super) fn elements(&mut self, mut read: impl FnMut(&mut Self) -> ReadResult) -> ReadResult<Span> {
        let start = self.at;
        let mut more = self.enter(b'[', b']', ParseErrorKind::NotAnArray)?;
        while more {
            read(self)?;
            more = self.next(b']')?;
        }
        Ok(Span { start, end: self.at })
    }

    /// Into a container; false if it is empty. Another value at this place is a fault of this kind.
    fn enter(&mut self, open: u8, close: u8, kind: ParseErrorKind) -> ReadResult<bool> {
        if self.take_if(open) {
            self.space();
            return Ok(!self.take_if(close));
        }
        let is_value = matches!(self.peek(), Some(b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'));
        if is_value { Err(self.refuse((self.at, kind))) } else { Err(Unsupported) }
    }

    /// From the end of a value in a container to the next; false at the end of the container.
    #[inline]
    fn next(&mut self, close: u8) -> ReadResult<bool> {
        let more = self.take_spaced(b',');
        require(more || self.take_if(close)).map(|()| more)
    }

    /// Over any value, with all that is in it.
    #[inline]
    pub(super) fn value(&mut self) -> ReadResult<Span> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{' | b'[') => self.nested(),
            _ => self.literal(),
        }
    }

    fn nested(&mut self) -> ReadResult<Span> {
        let start = self.at;
        let mut nesting = Nesting::default();
        loop {
            match self.peek().ok_or(Unsupported)? {
                b'"' => _ = self.string()?,
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.space();
                    let object = open == b'{';
                    if !self.take_if(if object { b'}' } else { b']' }) {
                        nesting.open(object, self.is_whole)?;
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => _ = self.literal()?,
            }
            if !self.behind_value(&mut nesting)? {
                return Ok(Span { start, end: self.at });
            }
        }
    }

    /// From the end of a value out of all containers that end with it, to the next value; false if there is none.
    fn behind_value(&mut self, nesting: &mut Nesting) -> ReadResult<bool> {
        while nesting.depth > 0 {
            let object = nesting.in_object();
            if self.take_spaced(b',') {
                if object {
                    self.key()?;
                }
                return Ok(true);
            }
            require(self.take_if(if object { b'}' } else { b']' }))?;
            nesting.close();
        }
        Ok(false)
    }

    /// A key, and its colon.
    #[inline]
    fn name(&mut self) -> ReadResult<Cow<'a, [u8]>> {
        let rest = self.body.get(self.at..).and_then(|rest| rest.strip_prefix(b"\"")).ok_or(Unsupported)?;
        let key = near_closing_quote(rest).and_then(|length| Some((length, spaced(rest.get(length + 1..)?, b':')?)));
        let Some((length, colon)) = key else { return self.odd_name() };
        self.at += length + 2 + colon;
        Ok(Cow::Borrowed(rest.get(..length).unwrap_or_default()))
    }

    /// The same for a key that is long, has escapes, or has more white space after it. Escapes are taken in a whole body alone.
    #[cold]
    fn odd_name(&mut self) -> ReadResult<Cow<'a, [u8]>> {
        let key = self.string().map(|key| self.bytes(key))?;
        let name = match key {
            [b'"', plain @ .., b'"'] if !plain.contains(&b'\\') => Cow::Borrowed(plain),
            _ => Cow::Owned(decode(key).filter(|_| self.is_whole).ok_or(Unsupported)?.into_owned().into_bytes()),
        };
        require(self.take_spaced(b':'))?;
        Ok(name)
    }

    #[inline]
    fn key(&mut self) -> ReadResult {
        require(self.peek() == Some(b'"'))?;
        self.string()?;
        require(self.take_spaced(b':'))
    }

    /// A string, from its opening quote; the span has both quotes.
    pub(super) fn string(&mut self) -> ReadResult<Span> {
        let start = self.at;
        let rest = self.body.get(start + 1..).unwrap_or_default();
        let indexed = || self.strings.starting(start).map(|string| string.len() - 2);
        let Some(quote) = near_closing_quote(rest).or_else(indexed).or_else(|| closing_quote(rest)) else {
            self.at = self.body.len().saturating_sub(1); // where its end is missing
            return Err(Unsupported);
        };
        self.at = start + quote + 2;
        Ok(Span { start, end: self.at })
    }

    fn number(&mut self) -> ReadResult {
        self.take_if(b'-');
        if !self.take_if(b'0') {
            self.digits()?;
        }
        if self.take_if(b'.') {
            self.digits()?;
        }
        if self.take_if(b'e') || self.take_if(b'E') {
            let _signed = self.take_if(b'+') || self.take_if(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> ReadResult {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        require(self.at > start)
    }

    /// A number, or one of three words.
    fn literal(&mut self) -> ReadResult<Span> {
        let start = self.at;
        let rest = self.body.get(start..).unwrap_or_default();
        if let Some(b'-' | b'0'..=b'9') = rest.first() {
            self.number()?;
        } else {
            let word = [b"true".as_slice(), b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
            self.at += word.ok_or(Unsupported)?.len();
        }
        Ok(Span { start, end: self.at })
    }

    /// Over a byte and the white space around it; over that alone if another byte is there.
    #[inline]
    fn take_spaced(&mut self, byte: u8) -> bool {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let Some(length) = spaced(rest, byte) else {
            let is_other = rest.first().is_some_and(|first| *first > b' ' && *first != byte);
            return !is_other && self.take_spaced_slow(byte);
        };
        self.at += length;
        true
    }

    #[cold]
    fn take_spaced_slow(&mut self, byte: u8) -> bool {
        self.space();
        self.take_if(byte).then(|| self.space()).is_some()
    }

    fn take_if(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }
}

/// The length of a byte with the white space after it, if that is one blank or none, as mostly.
#[inline]
fn spaced(bytes: &[u8], byte: u8) -> Option<usize> {
    match bytes {
        [first, b' ', b'!'..=255, ..] if *first == byte => Some(2),
        [first, b'!'..=255, ..] if *first == byte => Some(1),
        _ => None,
    }
}

/// The values of some keys of an object, by their order in `keys`; none of them may be there twice.
pub(super) fn fields<const N: usize>(cursor: &mut Cursor<'_>, keys: [&[u8]; N]) -> ReadResult<[Option<Span>; N]> {
    fields_by(cursor, keys, |cursor, _, _| cursor.value()).map(|(_, found)| found)
}

/// The same with the span of the object. `read` reads each value; it gets the place of its key, and what was found before.
pub(super) fn fields_by<'a, const N: usize>(
    cursor: &mut Cursor<'a>,
    keys: [&[u8]; N],
    mut read: impl FnMut(&mut Cursor<'a>, Option<usize>, &[Option<Span>; N]) -> ReadResult<Span>,
) -> ReadResult<(Span, [Option<Span>; N])> {
    let (start, mut found) = (cursor.at(), [None; N]);
    let span = cursor.members(|cursor, name| {
        let at = keys.iter().position(|key| *key == &*name);
        let value = read(cursor, at, &found)?;
        if let Some(place) = at.and_then(|at| found.get_mut(at)) {
            cursor.once(start, place, value)?;
        }
        Ok(())
    })?;
    Ok((span, found))
}

/// The values of some keys of an object as [`fields`] reads them. None of another value, and of an odd object.
pub(super) fn fields_of<const N: usize>(body: &[u8], object: Span, keys: [&[u8]; N]) -> Option<[Option<Span>; N]> {
    fields(&mut Cursor::starting(body, object.start), keys).ok()
}

/// The value of one key of an object.
pub(super) fn field(body: &[u8], object: Span, key: &[u8]) -> Option<Span> {
    fields_of(body, object, [key]).and_then(|[value]| value)
}

/// The text of a value, if that is a string.
pub(super) fn text_of(body: &[u8], value: Option<Span>) -> Option<Cow<'_, str>> {
    decode(value?.of(body))
}

/// A value, if it begins with this byte: an object with `{`, an array with `[`, a string with `"`.
pub(super) fn beginning(body: &[u8], value: Option<Span>, first: u8) -> Option<Span> {
    value.filter(|value| value.of(body).first() == Some(&first))
}

/// Reads each element of an array with `read`.
pub(super) fn each_element<'a>(
    body: &'a [u8],
    array: Span,
    read: impl FnMut(&mut Cursor<'a>) -> ReadResult,
) -> ReadResult {
    Cursor::starting(body, array.start).elements(read).map(drop)
}

/// The elements of an array.
pub(super) fn values(body: &[u8], array: Span) -> Option<Vec<Span>> {
    let mut values = Vec::new();
    let read = each_element(body, array, |cursor| cursor.value().map(|value| values.push(value)));
    read.ok().map(|()| values)
}

/// Gathers what `read` finds in the objects of an array: it gets the span of each, and these fields. Other elements are skipped.
/// None if one of them is odd, or if `read` says so.
pub(super) fn objects<T, I: IntoIterator<Item = T>, const N: usize>(
    body: &[u8],
    array: Span,
    keys: [&[u8]; N],
    mut read: impl FnMut(Span, [Option<Span>; N]) -> Option<I>,
) -> Option<Vec<T>> {
    let mut all = Vec::new();
    let each = each_element(body, array, |cursor| {
        if cursor.peek() != Some(b'{') {
            return cursor.value().map(drop);
        }
        let (span, found) = fields_by(cursor, keys, |cursor, _, _| cursor.value())?;
        all.extend(read(span, found).ok_or(Unsupported)?);
        Ok(())
    });
    each.ok().map(|()| all)
}

/// All fields of an element, if that is an object: quickly, unless a key has escapes.
pub(super) fn element_fields(json: &str) -> Option<Fields<'_>> {
    let mut cursor = Cursor::new(json.as_bytes());
    let quick = fields_at(&mut cursor, json).and_then(|fields| cursor.end().map(|()| fields));
    quick.ok().or_else(|| Fields::of(json))
}

/// All fields of the object at a cursor in `json`, unless a key has escapes.
pub(super) fn fields_at<'a>(cursor: &mut Cursor<'a>, json: &'a str) -> ReadResult<Fields<'a>> {
    let mut fields = Vec::with_capacity(8);
    // Not by `members`, which does not say where a key is: a slice of `json` is text, and its bytes would be checked again.
    let mut more = cursor.enter(b'{', b'}', ParseErrorKind::NotAnObject)?;
    while more {
        let start = cursor.at + 1;
        let Cow::Borrowed(name) = cursor.name()? else { return Err(Unsupported) };
        let value = cursor.value()?;
        let text = |start, end| json.get(start..end).ok_or(Unsupported);
        fields.push((text(start, start + name.len())?.into(), text(value.start, value.end)?));
        more = cursor.next(b'}')?;
    }
    Ok(Fields::new(fields))
}

/// The text of a JSON string, given with its quotes. None if it has none: bad escapes, half a surrogate pair.
pub(super) fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr(b'\\', raw).is_some() {
        return raw::unescaped(utf8(raw)?);
    }
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    utf8(inner).map(Cow::Borrowed)
}

/// The value of the key that ends before `at`. None if a string of the same letters is there, which is not a key.
pub(super) fn value_of_key(body: &[u8], at: usize) -> Option<Span> {
    let mut cursor = Cursor::starting(body, at);
    cursor.take_spaced(b':').then(|| cursor.value().ok()).flatten()
}

/// A member of an object within `within`, with one comma: its key, with the quotes, precedes the value.
pub(super) fn member(body: &[u8], within: Span, key: &[u8], value: Span) -> Option<Span> {
    let before = Span { start: within.start, end: value.start }.of(body).trim_ascii_end();
    let before_key = before.strip_suffix(b":")?.trim_ascii_end().strip_suffix(key)?.trim_ascii_end();
    let after = Span { start: value.end, end: within.end }.of(body);
    let n_blanks = after.len() - after.trim_ascii_start().len();
    if after.get(n_blanks) == Some(&b',') {
        return Some(Span { start: within.start + before_key.len(), end: value.end + n_blanks + 1 });
    }
    let before_comma = before_key.strip_suffix(b",").unwrap_or(before_key);
    Some(Span { start: within.start + before_comma.len(), end: value.end })
}

#[cfg(test)]
mod tests;
