//! AWS Signature Version 4, by which Amazon Bedrock authenticates requests without a bearer key. A client's own signature
//! covers abridge's address and the body before the edits, so requests are signed again.
//!
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{self, SHA256};
use ring::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

use crate::body::RequestBody;
use crate::setup_error::SetupError;
use crate::units::utc_timestamp;

/// Signs requests with the key of an AWS account.
#[derive(Clone, derive_more::Debug)]
#[debug("Signer")]
pub(super) struct Signer {
    id: String,
    secret: Zeroizing<Vec<u8>>,
    token: Option<Zeroizing<String>>,
    /// Host and port, as the upstream reads them.
    host: HeaderValue,
    region: String,
}

/// The error of a key that does not have the form of AWS.
const INVALID: &str =
    "the key is not of the form ACCESS_KEY_ID:SECRET_ACCESS_KEY or ACCESS_KEY_ID:SECRET_ACCESS_KEY:SESSION_TOKEN";

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const BODY_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// The service whose requests are signed, and the region of a host that names none.
const SERVICE: &str = "bedrock";
const DEFAULT_REGION: &str = "us-east-1";

/// The characters of a path that are encoded for the signature. The path was encoded when it was sent: AWS encodes it twice.
const PATH_ENCODE_SET: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Signer {
    /// A signer with the key `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, or with `:SESSION_TOKEN` after it.
    pub(super) fn new(key: &HeaderValue, host: Option<HeaderValue>) -> Result<Self, SetupError> {
        let invalid = || SetupError::new(INVALID);
        let host = host.ok_or_else(invalid)?;
        let mut parts = key.to_str().map_err(|_| invalid())?.splitn(3, ':');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let (id, secret, token) = (part().ok_or_else(invalid)?, part().ok_or_else(invalid)?, part());
        let labels = host.to_str().map_err(|_| invalid())?.split('.');
        let region = labels.skip_while(|label| !label.starts_with(SERVICE)).nth(1).unwrap_or(DEFAULT_REGION).to_owned();
        Ok(Self {
            id: id.to_owned(),
            secret: secret.as_bytes().to_vec().into(),
            token: token.map(|token| token.to_owned().into()),
            region,
            host,
        })
    }

    /// Signs a request at `now`, in seconds since 1970, in place of a signature that it has. A request whose body is passed on
    /// as it arrives is not signed: the signature is over the hash of the body.
    pub(super) fn sign(&self, request: &mut Request<RequestBody>, now: u64) {
        let Some(parts) = request.body().parts() else { return };
        let mut hash = digest::Context::new(&SHA256);
        parts.for_each(|part| hash.update(part));
        let headers = request.headers_mut();
        let time = utc_timestamp(now);
        let day = time.get(..8).unwrap_or_default();
        headers.remove(BODY_HASH);
        headers.remove(TOKEN);
        insert_sensitive(headers, DATE, &time);
        if let Some(token) = &self.token {
            insert_sensitive(headers, TOKEN, token);
        }
        let (names, fields) = self.fields(headers);
        let canonical = format!(
            "{}\n{}\n{}\n{fields}\n{names}\n{}",
            request.method(),
            utf8_percent_encode(request.uri().path(), &PATH_ENCODE_SET),
            query(request.uri().query().unwrap_or_default()),
            hex(hash.finish().as_ref())
        );
        let scope = format!("{day}/{}/{SERVICE}/aws4_request", self.region);
        let hash = hex(digest::digest(&SHA256, canonical.as_bytes()).as_ref());
        let signature = self.signature(day, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}"));
        let shown =
            format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", self.id);
        insert_sensitive(request.headers_mut(), AUTHORIZATION, &shown);
    }

    /// The names of the fields that are signed, and the fields: the host, the type of the body, and those of AWS.
    fn fields(&self, headers: &HeaderMap) -> (String, String) {
        let mut fields = BTreeMap::from([("host", vec![&self.host])]);
        let is_signed = |name: &HeaderName| *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
        for (name, value) in headers.iter().filter(|(name, _)| is_signed(name)) {
            fields.entry(name.as_str()).or_default().push(value);
        }
        let words = |value: &&HeaderValue| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
        };
        let names = fields.keys().copied().collect::<Vec<_>>().join(";");
        let field = |(name, values): (_, Vec<_>)| {
            format!("{name}:{}\n", values.iter().map(words).collect::<Vec<_>>().join(","))
        };
        (names, fields.into_iter().map(field).collect::<Vec<_>>().concat())
    }

    fn signature(&self, day: &str, text: &str) -> String {
        let mut key = [b"AWS4", &**self.secret].concat();
        for part in [day, &self.region, SERVICE, "aws4_request", text] {
            key = hmac::sign(&hmac::Key::new(HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
        }
        hex(&key)
    }
}

/// Sets a field whose value is not logged. Keys and hosts are ASCII, so the value is valid.
fn insert_sensitive(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(mut value) = HeaderValue::from_str(value) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
}

/// The fields of a query in order, each with its value. They are encoded already.
fn query(query: &str) -> String {
    let fields = query.split('&').filter(|field| !field.is_empty());
    let mut fields: Vec<_> = fields.map(|field| field.split_once('=').unwrap_or((field, ""))).collect();
    fields.sort_unstable();
    fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const KEY: &str = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    /// 2026-11-28 23:59:58.
    const NOW: u64 = 1_795_910_398;

    fn signer(key: &str, host: &'static str) -> Result<Signer, SetupError> {
        Signer::new(&HeaderValue::from_str(key).unwrap(), HeaderValue::from_static(host).into())
    }

    /// The signatures are those of botocore 1.44.8.
    #[test]
    fn signs_as_the_sdk_of_aws_does() {
        let host = "bedrock-runtime.eu-west-3.amazonaws.com";
        let post = Request::post("https://h/model/anthropic.claude-opus-5-v1%3A0/invoke");
        let post = post.header("content-type", "application/json").header("x-amz-content-sha256", "of the client");
        let get = Request::get("https://h/a%20b/~x?z=1&b&b=%20").header("x-amz-meta", "  two   words ");
        let get = get.header("x-amz-security-token", "of the client").header("authorization", "of the client");
        let body =
            |parts: &[&'static str]| RequestBody::buffered(&parts.iter().copied().map(Bytes::from).collect::<Vec<_>>());
        for (key, request, names, signature) in [
            (
                KEY.to_owned(),
                post.body(body(&["{\"a\"", ":1}"])),
                "content-type;host;x-amz-date",
                "3c4d6bdacae5935890ddefe1b97987073d817e9fa9ff86d5712fef91c04d14a8",
            ),
            (
                format!("{KEY}:to/ken=="),
                get.body(body(&[])),
                "host;x-amz-date;x-amz-meta;x-amz-security-token",
                "7c68795f483285dae05deb5f441c8ffa4dc7c8e4140b228a56611fba4e74bddc",
            ),
        ] {
            let mut request = request.unwrap();
            signer(&key, host).unwrap().sign(&mut request, NOW);
            let shown = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261128/eu-west-3/bedrock/aws4_request, SignedHeaders={names}, Signature={signature}"
            );
            assert_eq!(request.headers()["authorization"], shown);
            assert!(request.headers()["authorization"].is_sensitive());
            assert_eq!(request.headers()["x-amz-date"], "20261128T235958Z");
        }
    }

    #[test]
    fn the_region_is_that_of_the_host_and_a_key_has_two_or_three_parts() {
        for (host, region) in [
            ("bedrock-runtime.us-west-2.amazonaws.com", "us-west-2"),
            ("vpce-1-a.bedrock-runtime-fips.us-gov-west-1.vpce.amazonaws.com", "us-gov-west-1"),
            ("127.0.0.1:8080", "us-east-1"),
        ] {
            assert_eq!(signer(KEY, host).unwrap().region, region);
        }
        for key in ["", "id", "id:", ":secret", "::"] {
            assert!(signer(key, "h").is_err(), "{key}");
        }
        assert_eq!(signer("id:secret:", "h").unwrap().token, None);
        assert_eq!(query("a=2&a-b=1&a=10&c"), "a=10&a=2&a-b=1&c=");
    }
}
