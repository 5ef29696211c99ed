//! How the bodies of requests and answers are framed, where the HTTP library leaves more than one reading.

use http::header::{CONTENT_LENGTH, Entry, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request};
use http_body::Body;

/// An answer could be read in more than one way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Ambiguous;

/// Says of a body without a length that it comes in chunks. For these two methods the library would take it for none.
pub(super) fn announce<B: Body>(request: &mut Request<B>) {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return;
    }
    let body = request.body();
    if body.is_end_stream() || body.size_hint().exact().is_some() {
        return;
    }
    request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
}

/// Leaves an answer one length at most, written once. RFC 9110, section 8.6: one that is there twice is one, two are an error.
///
/// A transfer coding besides chunks is an error too. Nobody has asked for one, and the field goes no further than here, so the
/// client would get a coded body that is not said to be one.
pub(super) fn settle(headers: &mut HeaderMap) -> Result<(), Ambiguous> {
    // `identity` is what some old servers write for no coding.
    if is_coded(headers, &["chunked", "identity"]) {
        return Err(Ambiguous);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // RFC 9112, section 6.3: it is the chunks that say where a body ends, whatever length is stated beside them.
        headers.remove(CONTENT_LENGTH);
        return Ok(());
    }
    let Entry::Occupied(mut lengths) = headers.entry(CONTENT_LENGTH) else { return Ok(()) };
    let length = number(lengths.get()).ok_or(Ambiguous)?;
    let mut values = lengths.iter();
    let is_plain = values.next().is_some_and(|first| !first.as_bytes().contains(&b',')) && values.next().is_none();
    if is_plain {
        return Ok(());
    }
    if lengths.iter().any(|other| number(other) != Some(length)) {
        return Err(Ambiguous);
    }
    lengths.insert(HeaderValue::from(length));
    Ok(())
}

/// The one number of a length, which may be there more than once.
fn number(value: &HeaderValue) -> Option<u64> {
    let mut numbers = value.as_bytes().split(|byte| *byte == b',').map(|digits| {
        let digits = digits.trim_ascii();
        // A parser of numbers would take a sign.
        let is_number = digits.iter().all(u8::is_ascii_digit);
        str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
    });
    let first: Option<u64> = numbers.next()?;
    first.filter(|_| numbers.all(|other| other == first))
}

/// Whether a body comes in another transfer coding than one of these, or in more than one.
pub fn is_coded(headers: &HeaderMap, known: &[&str]) -> bool {
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

    fn settled(lines: &[(&'static str, &'static str)]) -> Result<Vec<String>, Ambiguous> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        settle(&mut headers)?;
        Ok(headers.get_all(CONTENT_LENGTH).iter().map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_length_is_one_number_however_often_it_is_there() {
        let name = "content-length";
        assert_eq!(settled(&[]), Ok(vec![]));
        assert_eq!(settled(&[(name, "5")]), Ok(vec!["5".to_owned()]));
        for lines in [&[(name, "5"), (name, "5")][..], &[(name, "5, 5")], &[(name, "5"), (name, "5,5")]] {
            assert_eq!(settled(lines), Ok(vec!["5".to_owned()]), "{lines:?}");
        }
        for lines in
            [&[(name, "5"), (name, "6")][..], &[(name, "5, 6")], &[(name, "5,")], &[(name, "+5")], &[(name, "")]]
        {
            assert_eq!(settled(lines), Err(Ambiguous), "{lines:?}");
        }
    }

    #[test]
    fn a_coding_is_chunks_or_none() {
        let name = "transfer-encoding";
        for good in [&[(name, "chunked")][..], &[(name, "CHUNKED")], &[(name, "identity")]] {
            assert_eq!(settled(good), Ok(vec![]), "{good:?}");
        }
        for bad in [&[(name, "gzip")][..], &[(name, "gzip, chunked")], &[(name, "chunked"), (name, "chunked")]] {
            assert_eq!(settled(bad), Err(Ambiguous), "{bad:?}");
        }
    }
}
