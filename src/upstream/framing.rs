//! Framing of bodies where hyper leaves it ambiguous: `content-length` and `transfer-encoding`.

use http::header::{CONTENT_LENGTH, Entry, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request};
use http_body::Body;

use super::UpstreamErrorKind;

/// Marks a body of unknown length as chunked. For GET and HEAD, hyper would otherwise send none.
pub(super) fn set_chunked<B: Body>(request: &mut Request<B>) {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return;
    }
    let body = request.body();
    if body.is_end_stream() || body.size_hint().exact().is_some() {
        return;
    }
    request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
}

/// Reduces the lengths of an answer to at most one. RFC 9110, section 8.6: equal lengths count as one, different ones are
/// an error.
///
/// A transfer coding besides `chunked` is an error, too. No request allows one, and the field is hop-by-hop, so the client
/// would get a coded body without the field that says so.
pub(super) fn normalize(headers: &mut HeaderMap) -> Result<(), UpstreamErrorKind> {
    // Some old servers write `identity` for no coding.
    if has_coding_other_than(headers, &["chunked", "identity"]) {
        return Err(UpstreamErrorKind::Malformed);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // RFC 9112, section 6.3: chunks override a length.
        headers.remove(CONTENT_LENGTH);
        return Ok(());
    }
    let Entry::Occupied(mut lengths) = headers.entry(CONTENT_LENGTH) else { return Ok(()) };
    let length = parse_length(lengths.get()).ok_or(UpstreamErrorKind::Malformed)?;
    let mut values = lengths.iter();
    let is_plain = values.next().is_some_and(|first| !first.as_bytes().contains(&b',')) && values.next().is_none();
    if is_plain {
        return Ok(());
    }
    if lengths.iter().any(|other| parse_length(other) != Some(length)) {
        return Err(UpstreamErrorKind::Malformed);
    }
    lengths.insert(HeaderValue::from(length));
    Ok(())
}

/// The value of a length, which may be repeated in a list; `None` if the values differ or are not numbers.
fn parse_length(value: &HeaderValue) -> Option<u64> {
    let mut numbers = value.as_bytes().split(|byte| *byte == b',').map(|digits| {
        let digits = digits.trim_ascii();
        // `parse` would accept a sign.
        let is_number = digits.iter().all(u8::is_ascii_digit);
        str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
    });
    let first: Option<u64> = numbers.next()?;
    first.filter(|_| numbers.all(|other| other == first))
}

/// Whether the transfer coding is none of the `known` ones, or there is more than one.
pub fn has_coding_other_than(headers: &HeaderMap, known: &[&str]) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |value: &HeaderValue| {
        let coding = value.as_bytes().trim_ascii();
        known.iter().any(|known| coding.eq_ignore_ascii_case(known.as_bytes()))
    };
    codings.next().is_some_and(|first| !is_known(first)) || codings.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(lines: &[(&'static str, &'static str)]) -> Result<Vec<String>, UpstreamErrorKind> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        normalize(&mut headers)?;
        Ok(headers.get_all(CONTENT_LENGTH).iter().map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn equal_lengths_are_merged_and_others_are_refused() {
        let name = "content-length";
        assert_eq!(normalized(&[]), Ok(vec![]));
        assert_eq!(normalized(&[(name, "5")]), Ok(vec!["5".to_owned()]));
        for lines in [&[(name, "5"), (name, "5")][..], &[(name, "5, 5")], &[(name, "5"), (name, "5,5")]] {
            assert_eq!(normalized(lines), Ok(vec!["5".to_owned()]), "{lines:?}");
        }
        for lines in
            [&[(name, "5"), (name, "6")][..], &[(name, "5, 6")], &[(name, "5,")], &[(name, "+5")], &[(name, "")]]
        {
            assert_eq!(normalized(lines), Err(UpstreamErrorKind::Malformed), "{lines:?}");
        }
    }

    #[test]
    fn only_one_chunked_coding_is_accepted() {
        let name = "transfer-encoding";
        for good in [&[(name, "chunked")][..], &[(name, "CHUNKED")], &[(name, "identity")]] {
            assert_eq!(normalized(good), Ok(vec![]), "{good:?}");
        }
        for bad in [&[(name, "gzip")][..], &[(name, "gzip, chunked")], &[(name, "chunked"), (name, "chunked")]] {
            assert_eq!(normalized(bad), Err(UpstreamErrorKind::Malformed), "{bad:?}");
        }
    }
}
