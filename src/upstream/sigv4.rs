//! AWS Signature Version 4, which Amazon Bedrock asks for where there is no bearer key. A client's own signature names
//! abridge's address and the body before the edits, so requests are signed anew.
//!
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>

use std::fmt::Write as _;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{self, SHA256};
use ring::hmac::{self, HMAC_SHA256};

use crate::body::RequestBody;
use crate::units::date_of_day;

/// Signs requests with the key of an AWS account.
#[derive(Clone, derive_more::Debug)]
#[debug("Signer")]
pub(super) struct Signer {
    id: String,
    secret: zeroize::Zeroizing<Vec<u8>>,
    token: Option<HeaderValue>,
    /// Host and port, as the upstream reads them.
    host: HeaderValue,
    region: String,
}

/// The key is not one of AWS.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key is not of the form ACCESS_KEY_ID:SECRET_ACCESS_KEY or ACCESS_KEY_ID:SECRET_ACCESS_KEY:SESSION_TOKEN")]
pub struct NoAwsKey;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const BODY_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// The service whose requests are signed, and the region of a host that names none.
const SERVICE: &str = "bedrock";
const DEFAULT_REGION: &str = "us-east-1";

/// What a path keeps when it is encoded. It has been encoded once already: the signature is over a path that is encoded twice.
const IN_PATHS: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Signer {
    /// A signer with the key `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, or with `:SESSION_TOKEN` behind it.
    pub(super) fn new(key: &HeaderValue, host: HeaderValue) -> Result<Self, NoAwsKey> {
        let mut parts = key.as_bytes().splitn(3, |byte| *byte == b':').map(|part| (!part.is_empty()).then_some(part));
        let (Some(Some(id)), Some(Some(secret)), token) = (parts.next(), parts.next(), parts.next().flatten()) else {
            return Err(NoAwsKey);
        };
        let mut token = token.map(HeaderValue::from_bytes).transpose().map_err(|_| NoAwsKey)?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let labels = host.to_str().unwrap_or_default().split('.');
        let region = labels.skip_while(|label| !label.starts_with(SERVICE)).nth(1).unwrap_or(DEFAULT_REGION).to_owned();
        let id = String::from_utf8(id.to_vec()).map_err(|_| NoAwsKey)?;
        Ok(Self { id, secret: secret.to_vec().into(), token, region, host })
    }

    /// Signs a request at `now`, in seconds since 1970, in place of a signature that it has. One whose body is passed on as it comes is not signed: the
    /// signature is over its hash.
    pub(super) fn sign(&self, request: &mut Request<RequestBody>, now: u64) -> Result<(), InvalidHeaderValue> {
        let mut hash = digest::Context::new(&SHA256);
        let Some(parts) = request.body().parts() else { return Ok(()) };
        parts.for_each(|part| hash.update(part));
        let headers = request.headers_mut();
        let time = timestamp(now);
        let day = time.get(..8).unwrap_or_default();
        headers.remove(BODY_HASH);
        headers.remove(TOKEN);
        headers.insert(DATE, HeaderValue::from_str(&time)?);
        if let Some(token) = &self.token {
            headers.insert(TOKEN, token.clone());
        }
        let (names, fields) = self.fields(headers);
        let canonical = format!(
            "{}\n{}\n{}\n{fields}\n{names}\n{}",
            request.method(),
            utf8_percent_encode(request.uri().path(), &IN_PATHS),
            query(request.uri().query().unwrap_or_default()),
            hex(hash.finish().as_ref())
        );
        let scope = format!("{day}/{}/{SERVICE}/aws4_request", self.region);
        let hash = hex(digest::digest(&SHA256, canonical.as_bytes()).as_ref());
        let signature = self.signature(day, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}"));
        let shown =
            format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", self.id);
        let mut shown = HeaderValue::from_str(&shown)?;
        shown.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, shown);
        Ok(())
    }

    /// The names of the fields that are signed, and the fields: the host, the type of the body, and those of AWS.
    fn fields(&self, headers: &HeaderMap) -> (String, String) {
        let is_signed = |name: &HeaderName| *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
        let mut names: Vec<_> = headers.keys().filter(|name| is_signed(name)).chain([&HOST]).collect();
        names.sort_unstable_by_key(|name| name.as_str());
        let mut fields = String::new();
        for name in &names {
            let values: Vec<_> = match *name {
                name if *name == HOST => vec![&self.host],
                name => headers.get_all(name).iter().collect(),
            };
            let words = |value: &&HeaderValue| {
                let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            };
            let values: Vec<_> = values.iter().map(words).collect();
            let _ = writeln!(fields, "{name}:{}", values.join(","));
        }
        (names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(";"), fields)
    }

    fn signature(&self, day: &str, text: &str) -> String {
        let mut key = [b"AWS4", &**self.secret].concat();
        for part in [day, &self.region, SERVICE, "aws4_request", text] {
            key = hmac::sign(&hmac::Key::new(HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
        }
        hex(&key)
    }
}

/// The fields of a query in order, each with its value. They are encoded already.
fn query(query: &str) -> String {
    let fields = query.split('&').filter(|field| !field.is_empty());
    let mut fields: Vec<_> = fields.map(|field| field.split_once('=').unwrap_or((field, ""))).collect();
    fields.sort_unstable();
    fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// `20261128T235959Z`.
fn timestamp(seconds: u64) -> String {
    let ((year, month, day), of_day) = (date_of_day(seconds / 86_400), seconds % 86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
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

    fn signer(key: &str, host: &'static str) -> Result<Signer, NoAwsKey> {
        Signer::new(&HeaderValue::from_str(key).unwrap(), HeaderValue::from_static(host))
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
            signer(&key, host).unwrap().sign(&mut request, NOW).unwrap();
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
