//! Whatever path and query ask for, a recall answers with what its documentation says, and gives back what it took.
//!
//! The first line of the input is what stands behind `/abridge/recall/`, where `H` at its beginning is a handle that there
//! is. The rest is the payload.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use abridge_proxy::admin::{Reader, RecallHandler, Requester};
use abridge_proxy::body::Budget;
use abridge_proxy::payload::{Keys, Lifetime};
use abridge_proxy::recall::PATH;
use abridge_proxy::store::tests::memory::MemoryStore;
use abridge_proxy::store::{Clock, Settings, Store, Time};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, StatusCode, Uri};
use http_body_util::BodyExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// What a limit of time is measured by; nothing here comes near one.
static CLOCK: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a clock"));

const LONGEST_QUERY: usize = 2000;
const LONGEST_LINE: usize = 2000;

/// Recalls a payload.
pub fn run(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (asked, payload) = (&input[..at], Bytes::copy_from_slice(input.get(at + 1..).unwrap_or_default()));
    let keys = Keys::new([1; 32]);
    let handle = keys.payload(keys.caller(b"me"), &payload);
    let target = match asked.strip_prefix(b"H") {
        Some(rest) => [PATH.as_bytes(), handle.to_string().as_bytes(), rest].concat(),
        None => [PATH.as_bytes(), asked].concat(),
    };
    let Ok(target) = Uri::try_from(target) else { return };
    let store = MemoryStore::new(Settings::default(), Clock::new(|| Time(0)));
    store.put(vec![(handle, payload.clone().into())], Lifetime::Usual).now_or_never().expect("at once").expect("kept");
    let scene = Scene { store, places: Arc::new(Semaphore::new(1)), budget: Budget::new(1 << 26) };

    let answer = scene.ask(&target, Requester::Unrestricted);
    assert_eq!(answer, scene.ask(&target, Requester::caller(&keys, b"me")), "the owner gets the same");
    let is_it = target.path().strip_prefix(PATH) == Some(handle.to_string().as_str());
    let query = target.query().unwrap_or_default();
    let expected = match expected(query, &payload) {
        None => StatusCode::BAD_REQUEST,
        Some(_) if !is_it => StatusCode::NOT_FOUND,
        Some(expected) => {
            expected.holds(&answer, &payload);
            StatusCode::OK
        }
    };
    assert_eq!(answer.status, expected, "{target}");
    let stranger = scene.ask(&target, Requester::caller(&keys, b"you"));
    assert_ne!(stranger.status, StatusCode::OK, "a handle is nothing to another caller");
    assert_eq!(scene.ask(&target, Requester::Unauthenticated).status, StatusCode::UNAUTHORIZED);
}

struct Scene {
    store: MemoryStore,
    places: Arc<Semaphore>,
    budget: Budget,
}

#[derive(Debug, Eq, PartialEq)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Scene {
    fn ask(&self, target: &Uri, requester: Requester) -> Answer {
        let recalls = RecallHandler::new(Arc::clone(&self.places), self.budget.clone(), 0, Duration::from_mins(1));
        let handle = target.path().strip_prefix(PATH).expect("a recall");
        let (query, store) = (target.query().unwrap_or_default(), Some(&self.store as &dyn Store));
        let _clock = CLOCK.enter();
        let answer =
            recalls.answer(handle, query, Reader { store, requester }).now_or_never().expect("nothing to wait for");
        let (head, body) = answer.into_parts();
        let body = body.collect().now_or_never().expect("it is there").expect("nothing fails").to_bytes();
        let answer = Answer { status: head.status, headers: head.headers, body: Bytes::copy_from_slice(&body) };
        drop(body);
        assert_eq!((self.places.available_permits(), self.budget.used()), (1, 0), "all is given back");
        answer
    }
}

/// What a query asks for, by the words of the documentation.
#[derive(Debug)]
enum Expected {
    Bytes(usize, usize),
    Lines(Bytes),
    Grep(Vec<u8>),
}

/// None if the query is not one of ours.
fn expected(query: &str, payload: &[u8]) -> Option<Expected> {
    let pairs: Vec<(&str, Vec<u8>)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (key, decoded(value)))
        .collect();
    let text = |at: usize| std::str::from_utf8(&pairs[at].1).ok();
    let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
    if query.len() > LONGEST_QUERY || (0..pairs.len()).any(|at| text(at).is_none()) {
        return None;
    }
    match keys.as_slice() {
        [] => Some(Expected::Bytes(0, usize::MAX)),
        ["offset"] => Some(Expected::Bytes(number(text(0)?)?, usize::MAX)),
        ["limit"] => Some(Expected::Bytes(0, number(text(0)?)?)),
        ["offset", "limit"] => Some(Expected::Bytes(number(text(0)?)?, number(text(1)?)?)),
        ["limit", "offset"] => Some(Expected::Bytes(number(text(1)?)?, number(text(0)?)?)),
        ["lines"] => {
            let (first, last) = match text(0)?.split_once('-') {
                Some((first, "")) => (number(first)?, usize::MAX),
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(text(0)?)?, number(text(0)?)?),
            };
            let lines = payload.split_inclusive(|byte| *byte == b'\n');
            let lines = lines.skip(first.checked_sub(1)?).take(last.saturating_sub(first - 1));
            (first <= last).then(|| Expected::Lines(lines.collect::<Vec<_>>().concat().into()))
        }
        ["grep"] if !pairs[0].1.is_empty() => Some(Expected::Grep(pairs[0].1.clone())),
        _ => None,
    }
}

fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        let digits = text.get(at + 1..at + 3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (byte, digits) {
            (b'%', Some(digits)) => {
                decoded.push(u8::from_str_radix(digits, 16).expect("two digits"));
                bytes.nth(1);
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
    }
    decoded
}

impl Expected {
    fn holds(&self, answer: &Answer, payload: &Bytes) {
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().expect("ASCII").to_owned());
        assert_eq!(header("x-abridge-size"), Some(payload.len().to_string()));
        if std::str::from_utf8(payload).is_ok() {
            assert!(std::str::from_utf8(&answer.body).is_ok(), "no character is torn");
        }
        if let Some(range) = header("x-abridge-range") {
            let (start, end) = range.split_once('-').expect("two numbers");
            let range = start.parse::<usize>().expect("a number")..end.parse().expect("a number");
            assert_eq!(payload[range], answer.body[..]);
        }
        match self {
            Self::Bytes(offset, limit) => of_bytes(*offset, *limit, &answer.body, payload),
            Self::Lines(lines) => {
                assert_eq!(answer.body, lines);
                let n = payload.split_inclusive(|byte| *byte == b'\n').count();
                assert_eq!(header("x-abridge-lines"), Some(n.to_string()));
            }
            Self::Grep(needle) => {
                let n = of_grep(needle, &answer.body, payload);
                assert_eq!(header("x-abridge-matches"), Some(n.to_string()));
            }
        }
    }
}

/// Both ends move down to where a character begins; a limit that is less than a character gives that character.
fn of_bytes(offset: usize, limit: usize, body: &[u8], payload: &[u8]) {
    let Ok(text) = std::str::from_utf8(payload) else {
        assert!(body.len() <= limit.saturating_add(6), "a character is no longer than four bytes");
        return;
    };
    let start = text.floor_char_boundary(offset);
    let mut end = text.floor_char_boundary(offset.saturating_add(limit));
    if end <= start && limit > 0 {
        end = text.ceil_char_boundary(start + 1);
    }
    assert_eq!(body, &payload[start.min(payload.len())..end.max(start).min(payload.len())]);
}

/// Each line that holds the text, as `NUMBER:LINE`.
fn of_grep(needle: &[u8], body: &[u8], payload: &[u8]) -> usize {
    let mut expected = Vec::new();
    let (mut n, mut is_long) = (0, false);
    for (number, line) in payload.split(|byte| *byte == b'\n').enumerate() {
        if line.windows(needle.len()).any(|window| window == needle) {
            n += 1;
            is_long |= line.len() > LONGEST_LINE;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            expected.extend(format!("{}:{}\n", number + 1, String::from_utf8_lossy(line)).into_bytes());
        }
    }
    if !is_long {
        assert_eq!(body, expected);
    }
    n
}
