//! Framing of bodies where hyper leaves it ambiguous: `content-length` and `transfer-encoding`.

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
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

/// Removes the length of an answer where chunks override it, or where it is written several times: hyper has read equal lengths
/// as one, and has refused others. It writes the length of the body.
///
/// A transfer coding besides `chunked` is an error. No request allows one, and the field is hop-by-hop, so the client would get a
/// coded body without the field that says so.
pub(super) fn normalize(headers: &mut HeaderMap) -> Result<(), UpstreamErrorKind> {
    // Some old servers write `identity` for no coding.
    if has_coding_other_than(headers, &["chunked", "identity"]) {
        return Err(UpstreamErrorKind::Malformed);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_one = lengths.next().is_none_or(|first| !first.as_bytes().contains(&b',')) && lengths.next().is_none();
    if headers.contains_key(TRANSFER_ENCODING) || !is_one {
        headers.remove(CONTENT_LENGTH);
    }
    Ok(())
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
    fn a_length_stays_if_it_is_written_once() {
        let name = "content-length";
        assert_eq!(normalized(&[]), Ok(vec![]));
        assert_eq!(normalized(&[(name, "5")]), Ok(vec!["5".to_owned()]));
        for lines in
            [&[(name, "5"), (name, "5")][..], &[(name, "5, 5")], &[(name, "5"), ("transfer-encoding", "chunked")]]
        {
            assert_eq!(normalized(lines), Ok(vec![]), "{lines:?}");
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
