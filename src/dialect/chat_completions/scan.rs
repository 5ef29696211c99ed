//! The quick reader: one pass over the body, from quote to quote.
//!
//! Most of a body is strings, so strings are passed at the speed of `memchr`: to the next quote, then back over the
//! backslashes before it, which tell whether it ends the string. Between strings the grammar of JSON is checked to the
//! letter. What stands *inside* strings is not looked at, but for the few that are asked for; [`check_strings`] makes up for it
//! before a body is changed.
//!
//! The reader never guesses. Escaped keys, keys twice, great depth, a wrong type: it answers `None`, and the caller asks `serde_json`.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

use crate::{
    conversation::{Block, BlockKind, CallId, Conversation, MAX_ELEMENTS, Message, Role},
    span::Span,
};

/// The conversation in `body`, or none if the body is in any way odd.
pub(super) fn scan(body: &[u8]) -> Option<Conversation<'_>> {
    let mut scanner = Scanner { body, at: 0, conversation: Conversation::default() };
    scanner.space();
    scanner.request()?;
    scanner.space();
    (scanner.at == body.len()).then_some(scanner.conversation)
}

/// Checks what `scan` left out, given a body that it or the fallback accepted: UTF-8, escapes, and control characters in
/// strings. The error is the offset of the first fault.
pub(super) fn check_strings(body: &[u8]) -> Result<(), usize> {
    std::str::from_utf8(body).map_err(|error| error.valid_up_to())?;
    let mut scanner = Scanner { body, at: 0, conversation: Conversation::default() };
    while let Some(quote) = memchr(b'"', scanner.rest()) {
        scanner.at += quote;
        let start = scanner.at;
        let span = scanner.string().ok_or(start)?;
        check_string(span.of(body)).map_err(|at| start + at)?;
    }
    Ok(())
}

/// Checks one string, quotes included.
fn check_string(string: &[u8]) -> Result<(), usize> {
    // Whole chunks without a branch inside, so that the compiler can make vector code of it.
    for (n, chunk) in string.chunks(64).enumerate() {
        if chunk.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
            return Err(n * 64);
        }
    }
    let mut checked = 0;
    for at in memchr_iter(b'\\', string) {
        if at < checked {
            continue; // the second backslash of a pair
        }
        let length = match string.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') if string.get(at + 2..at + 6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => 6,
            _ => return Err(at),
        };
        checked = at + length;
    }
    Ok(())
}

/// The text of a JSON string, given with its quotes. None if it is not valid.
pub(super) fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr(b'\\', raw).is_some() {
        return serde_json::from_slice(raw).ok().map(Cow::Owned);
    }
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    std::str::from_utf8(inner).ok().map(Cow::Borrowed)
}

struct Scanner<'a> {
    body: &'a [u8],
    /// The next byte to look at.
    at: usize,
    conversation: Conversation<'a>,
}

/// The containers that are open around the current value, innermost last, as bits of one number.
#[derive(Default)]
struct Nesting {
    /// 1 for an object, 0 for an array; the innermost is the lowest.
    objects: u128,
    depth: u32,
}

impl Nesting {
    fn open(&mut self, object: bool) -> Option<()> {
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        (self.depth <= u128::BITS).then_some(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

/// Remembers which keys of one object came by, so that none is taken twice.
#[derive(Default)]
struct Seen(u8);

impl Seen {
    fn first(&mut self, key: u8) -> Option<()> {
        let before = self.0;
        self.0 |= 1 << key;
        (before != self.0).then_some(())
    }
}

// === the objects that are looked into ===

impl<'a> Scanner<'a> {
    fn request(&mut self) -> Option<()> {
        let mut seen = Seen::default();
        let mut key = self.first_key()?;
        let mut found = false;
        while let Some(name) = key {
            match name {
                b"messages" => {
                    seen.first(0)?;
                    found = true;
                    self.messages()?;
                }
                b"model" => {
                    seen.first(1)?;
                    let value = self.value()?;
                    self.conversation.model = self.text(value)?;
                }
                _ => {
                    self.value()?;
                }
            }
            key = self.next_key()?;
        }
        found.then_some(())
    }

    fn messages(&mut self) -> Option<()> {
        let mut more = self.first_element()?;
        while more {
            (self.conversation.messages.len() < MAX_ELEMENTS).then_some(())?;
            self.message()?;
            more = self.next_element()?;
        }
        Some(())
    }

    fn message(&mut self) -> Option<()> {
        let start = self.at;
        let index = self.conversation.messages.len();
        let first_block = self.conversation.blocks.len();
        let mut seen = Seen::default();
        let (mut role, mut content, mut call_id) = (Role::Other, None, None);
        let mut key = self.first_key()?;
        while let Some(name) = key {
            match name {
                b"role" => {
                    seen.first(0)?;
                    let value = self.value()?;
                    role = self.text(value)?.map_or(Role::Other, |name| Role::named(&name));
                }
                b"content" => {
                    seen.first(1)?;
                    content = Some(self.value()?).filter(|value| value.of(self.body) != b"null");
                }
                b"tool_call_id" => {
                    seen.first(2)?;
                    call_id = Some(self.value()?);
                }
                b"tool_calls" => {
                    seen.first(3)?;
                    self.tool_calls(index)?;
                }
                _ => {
                    self.value()?;
                }
            }
            key = self.next_key()?;
        }
        let span = Span { start, end: self.at };
        if role != Role::Assistant {
            self.conversation.blocks.truncate(first_block); // calls of anyone else are no calls
        }
        if role == Role::Tool {
            let call_id = self.call_id(call_id)?;
            self.block(Block { message: index, span, kind: BlockKind::ToolResult { call_id } })?;
        }
        let blocks = first_block..self.conversation.blocks.len();
        self.conversation.messages.push(Message { span, role, content, blocks });
        Some(())
    }

    fn tool_calls(&mut self, message: usize) -> Option<()> {
        if self.rest().first() != Some(&b'[') {
            let value = self.value()?;
            return (value.of(self.body) == b"null").then_some(());
        }
        let mut more = self.first_element()?;
        while more {
            self.tool_call(message)?;
            more = self.next_element()?;
        }
        Some(())
    }

    fn tool_call(&mut self, message: usize) -> Option<()> {
        let start = self.at;
        let mut seen = Seen::default();
        let (mut id, mut function, mut custom) = (None, None, None);
        let mut key = self.first_key()?;
        while let Some(name) = key {
            match name {
                b"id" => {
                    seen.first(0)?;
                    id = Some(self.value()?);
                }
                b"function" => {
                    seen.first(1)?;
                    function = self.name()?;
                }
                b"custom" => {
                    seen.first(2)?;
                    custom = self.name()?;
                }
                _ => {
                    self.value()?;
                }
            }
            key = self.next_key()?;
        }
        let span = Span { start, end: self.at };
        let kind = BlockKind::ToolCall { id: self.call_id(id)?, name: function.or(custom) };
        self.block(Block { message, span, kind })
    }

    /// The `name` in a value that may be an object.
    fn name(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.rest().first() != Some(&b'{') {
            self.value()?;
            return Some(None);
        }
        let mut seen = Seen::default();
        let mut found = None;
        let mut key = self.first_key()?;
        while let Some(name) = key {
            let value = self.value()?;
            if name == b"name" {
                seen.first(0)?;
                found = self.text(value)?;
            }
            key = self.next_key()?;
        }
        Some(found)
    }

    fn block(&mut self, block: Block<'a>) -> Option<()> {
        self.conversation.blocks.push(block);
        (self.conversation.blocks.len() <= MAX_ELEMENTS).then_some(())
    }

    fn call_id(&self, value: Option<Span>) -> Option<CallId<'a>> {
        match value.map(|span| (span, span.of(self.body))) {
            None | Some((_, b"null")) => Some(CallId::default()),
            Some((span, raw)) => Some(CallId { raw: Some(span), text: decode(raw)? }),
        }
    }

    /// The text of a value that may be a string. Fails if it is a string that cannot be decoded.
    fn text(&self, value: Span) -> Option<Option<Cow<'a, str>>> {
        match value.of(self.body) {
            raw @ [b'"', ..] => decode(raw).map(Some),
            _ => Some(None),
        }
    }
}

// === the grammar ===

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a [u8] {
        self.body.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
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

    /// Into an object and behind the colon of its first key; none if the object is empty.
    fn first_key(&mut self) -> Option<Option<&'a [u8]>> {
        self.take_if(b'{').then_some(())?;
        self.space();
        if self.take_if(b'}') { Some(None) } else { self.plain_key().map(Some) }
    }

    /// From the end of a value in an object to behind the colon of the next key; none at the end of the object.
    fn next_key(&mut self) -> Option<Option<&'a [u8]>> {
        self.space();
        match self.take()? {
            b'}' => Some(None),
            b',' => {
                self.space();
                self.plain_key().map(Some)
            }
            _ => None,
        }
    }

    /// A key that is written without escapes, and its colon.
    fn plain_key(&mut self) -> Option<&'a [u8]> {
        let key = self.key()?.of(self.body);
        let name = key.get(1..key.len() - 1)?;
        memchr(b'\\', name).is_none().then_some(name)
    }

    fn key(&mut self) -> Option<Span> {
        (self.peek()? == b'"').then_some(())?;
        let key = self.string()?;
        self.space();
        self.take_if(b':').then_some(())?;
        self.space();
        Some(key)
    }

    /// Into an array; false if it is empty.
    fn first_element(&mut self) -> Option<bool> {
        self.take_if(b'[').then_some(())?;
        self.space();
        Some(!self.take_if(b']'))
    }

    /// From the end of an element to the next; false at the end of the array.
    fn next_element(&mut self) -> Option<bool> {
        self.space();
        match self.take()? {
            b']' => Some(false),
            b',' => {
                self.space();
                Some(true)
            }
            _ => None,
        }
    }

    /// Any value, with all that is in it.
    fn value(&mut self) -> Option<Span> {
        let start = self.at;
        let mut nesting = Nesting::default();
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.space();
                    let object = open == b'{';
                    if !self.take_if(if object { b'}' } else { b']' }) {
                        nesting.open(object)?;
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'-' | b'0'..=b'9' => self.number()?,
                _ => self.literal()?,
            }
            if !self.behind_value(&mut nesting)? {
                return Some(Span { start, end: self.at });
            }
        }
    }

    /// From the end of a value out of all containers that end with it, to the next value; false if there is none.
    fn behind_value(&mut self, nesting: &mut Nesting) -> Option<bool> {
        while nesting.depth > 0 {
            self.space();
            match (self.take()?, nesting.in_object()) {
                (b',', true) => {
                    self.space();
                    self.key()?;
                    return Some(true);
                }
                (b',', false) => {
                    self.space();
                    return Some(true);
                }
                (b'}', true) | (b']', false) => nesting.close(),
                _ => return None,
            }
        }
        Some(false)
    }

    /// A string, from its opening quote; the span has both quotes.
    fn string(&mut self) -> Option<Span> {
        let start = self.at;
        let mut at = start + 1;
        loop {
            let quote = at + memchr(b'"', self.body.get(at..)?)?;
            let backslashes = self.body.get(start + 1..quote)?.iter().rev().take_while(|&&byte| byte == b'\\').count();
            at = quote + 1;
            if backslashes % 2 == 0 {
                self.at = at;
                return Some(Span { start, end: at });
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        self.take_if(b'-');
        if !self.take_if(b'0') {
            self.digits()?;
        }
        if self.take_if(b'.') {
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let length = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += length;
        (length > 0).then_some(())
    }

    fn literal(&mut self) -> Option<()> {
        let rest = self.rest();
        let length = [b"true".as_slice(), b"false", b"null"].into_iter().find(|word| rest.starts_with(word))?.len();
        self.at += length;
        Some(())
    }
}
