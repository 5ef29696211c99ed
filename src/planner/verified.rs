//! Messages whose strings have been checked: one that comes again is not checked again.

use smart_default::SmartDefault;

use crate::dialect::{ParseError, ParseErrorKind, strings};
use crate::draft::ParsedRequest;
use crate::payload::Fingerprint;
use crate::payload::cache::{self, Cache};
use crate::span::Span;

/// The slots for messages that are remembered. One takes some 40 bytes with its share of the tables around it.
const SLOTS: usize = 32_768;

/// Shorter messages are checked again and not remembered: that is not dearer.
const MIN_BYTES: usize = 256;

/// The messages that were found to be valid.
#[derive(Debug, SmartDefault)]
pub(super) struct VerifiedMessages {
    #[default(cache::with_slots(SLOTS))]
    known: Cache<Fingerprint, ()>,
}

impl VerifiedMessages {
    /// Checks what a conversation was read from, except for the messages that are known to be valid, and for the `hidden`
    /// stretches, in order, which do not go on. A message may replace one of them.
    pub(super) fn check(
        &self,
        request: ParsedRequest<'_>,
        hidden: impl Iterator<Item = Span>,
    ) -> Result<(), ParseError> {
        let ParsedRequest { dialect, body, conversation } = request;
        let (mut new, mut from) = (Vec::new(), 0);
        let mut hidden = hidden.peekable();
        let stretch = |start, end| {
            let (dialect, kind) = (dialect.name(), ParseErrorKind::NotJson);
            strings::verify(Span { start, end }.of(body)).map_err(|at| ParseError { dialect, offset: start + at, kind })
        };
        for message in &conversation.units {
            let span = message.span;
            while let Some(gone) = hidden.next_if(|hidden| hidden.start <= span.start) {
                stretch(from, gone.start)?;
                from = gone.end;
            }
            if span.start < from || span.len() < MIN_BYTES {
                continue;
            }
            let print = message.fingerprint(body);
            if self.known.get(&print).is_some() {
                stretch(from, span.start)?;
                from = span.end;
            } else {
                new.push(print);
            }
        }
        for gone in hidden {
            stretch(from, gone.start)?;
            from = gone.end;
        }
        stretch(from, body.len())?;
        for print in new {
            self.known.insert(print, ());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::dialect;

    fn body(texts: &[&str]) -> String {
        let message = |text: &&str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        format!("{{\"messages\":[{}],\n\"x\":\"\"}}", texts.iter().map(message).collect::<Vec<_>>().join(" , "))
    }

    fn check(verified: &VerifiedMessages, body: &[u8]) -> Result<(), usize> {
        let dialect = dialect::for_path("/chat/completions").unwrap();
        let conversation = dialect.parse(body).unwrap();
        let request = ParsedRequest { dialect, body: &Bytes::copy_from_slice(body), conversation: &conversation };
        let checked = verified.check(request, std::iter::empty()).map_err(|error| error.offset);
        assert_eq!(checked.is_ok(), strings::verify(body).is_ok());
        checked
    }

    #[test]
    fn only_what_is_valid_is_remembered() {
        let verified = VerifiedMessages::default();
        let long = |end: &str| "é\\n".repeat(200) + end;
        let (valid, other, bad, worse) = (long("a"), long("b"), long("\\x"), long("\u{1}"));
        for fault in [&bad, &worse, "\\u12"] {
            for texts in [[&valid, fault, &other], [fault, &valid, &other], [&valid, &other, fault]] {
                let body = body(&texts);
                for _ in 0..3 {
                    let at = check(&verified, body.as_bytes()).unwrap_err();
                    let fault = body.find(fault).unwrap() + fault.len();
                    assert!(at.abs_diff(fault) <= 80, "{at} is not near {fault}");
                }
                assert_eq!(verified.known.len(), 0);
            }
        }
        check(&verified, body(&[&valid, "short"]).as_bytes()).unwrap();
        assert_eq!(verified.known.len(), 1);
        for texts in [[&valid, &bad], [&bad, &valid]] {
            check(&verified, body(&[texts[0], texts[1]]).as_bytes()).unwrap_err();
        }
        check(&verified, body(&[&valid, &other, &valid]).as_bytes()).unwrap();
        assert_eq!(verified.known.len(), 2);
    }

    #[test]
    fn what_stands_around_messages_is_checked_each_time() {
        let verified = VerifiedMessages::default();
        let valid = body(&[&"a".repeat(300)]);
        check(&verified, valid.as_bytes()).unwrap();
        for fault in ["\\q", "\u{2}", "\\u000"] {
            check(&verified, valid.replace("\"x\":\"", &format!("\"x\":\"{fault}")).as_bytes()).unwrap_err();
            check(&verified, valid.replacen('{', &format!("{{\"y\":\"{fault}\","), 1).as_bytes()).unwrap_err();
        }
        let mut broken = valid.into_bytes();
        let last = broken.len() - 2;
        broken.insert(last, 0xff);
        check(&verified, &broken).unwrap_err();
    }

    #[test]
    fn what_does_not_go_on_is_not_checked() {
        let whole = body(&["\\q", "a", "\\q", "b", "\\q"]);
        let conversation = dialect::for_path("/chat/completions").unwrap().parse(whole.as_bytes()).unwrap();
        let spans: Vec<_> = conversation.units.iter().map(|message| message.span).collect();
        let check = |hidden: &[usize]| {
            let dialect = dialect::for_path("/chat/completions").unwrap();
            let mut view = conversation.clone();
            // The first that is hidden is where the summary is; the others are not there.
            let mut n = 0;
            view.units.retain(|_| {
                n += 1;
                n == 1 || !hidden.contains(&(n - 1))
            });
            let request = ParsedRequest { dialect, body: &whole.clone().into(), conversation: &view };
            VerifiedMessages::default().check(request, hidden.iter().map(|n| spans[*n])).is_ok()
        };
        assert!(check(&[0, 2, 4]));
        for some in [&[0, 2][..], &[0, 4], &[0], &[0, 1, 3]] {
            assert!(!check(some), "{some:?}");
        }
    }

    #[test]
    fn a_fault_behind_what_is_known_is_where_it_is_in_the_body() {
        let (verified, valid) = (VerifiedMessages::default(), "a".repeat(3000));
        let whole = body(&[&valid, "\\q"]);
        let at = check(&verified, whole.as_bytes()).unwrap_err();
        check(&verified, body(&[&valid]).as_bytes()).unwrap();
        assert_eq!(check(&verified, whole.as_bytes()), Err(at));
        assert!(at > 3000, "{at}");
    }
}
