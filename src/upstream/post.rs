//! What abridge posts of its own: events to a webhook, questions to a handler.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};

use crate::body::{Lease, RequestBody};

/// A request that posts JSON.
pub fn json_post(target: Uri, json: Bytes) -> Request<RequestBody> {
    let length = HeaderValue::from(json.len());
    let mut request = Request::new(RequestBody::buffered(&[json], Lease::default()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("abridge/", env!("CARGO_PKG_VERSION"))));
    request
}
