//! The header fields that keys are sent in.

use http::HeaderName;
use http::header::AUTHORIZATION;
use serde::{Deserialize, Serialize};

/// The header field that a key is sent in.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyHeader {
    /// `authorization: Bearer KEY`, as OpenAI and most others read it.
    #[default]
    Authorization,
    /// `x-api-key: KEY`, as Anthropic reads it.
    XApiKey,
    /// `api-key: KEY`, as Azure reads it.
    ApiKey,
    /// `x-goog-api-key: KEY`, as Gemini reads it.
    XGoogApiKey,
    /// A signature of AWS (Signature Version 4), as Bedrock reads it. The key is `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with
    /// `:SESSION_TOKEN` after it if there is one; the region is that of the host, else `us-east-1`. Only requests whose body
    /// abridge reads, or that have none, are signed.
    #[serde(rename = "aws-sigv4")]
    AwsSigV4,
}

impl KeyHeader {
    /// All fields that keys are sent in.
    pub const ALL: [Self; 4] = [Self::Authorization, Self::XApiKey, Self::ApiKey, Self::XGoogApiKey];

    /// The name of the field.
    pub fn name(self) -> HeaderName {
        match self {
            Self::Authorization | Self::AwsSigV4 => AUTHORIZATION,
            Self::XApiKey => HeaderName::from_static("x-api-key"),
            Self::ApiKey => HeaderName::from_static("api-key"),
            Self::XGoogApiKey => HeaderName::from_static("x-goog-api-key"),
        }
    }
}
