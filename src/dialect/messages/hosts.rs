//! The paths of Messages at Vertex AI and Amazon Bedrock, which name the model, as the bodies there do not. The bodies are those
//! of Messages with `anthropic_version` (Anthropic's documentation of both, and its SDKs for Python, 2.14.0).

use percent_encoding::percent_decode_str;

use crate::string_index::PathFacts;

/// A path of one of the two.
pub(super) struct HostedPath<'p> {
    /// The path before the part that the host knows.
    pub(super) base: &'p str,
    /// The model, as the path writes it.
    model: &'p str,
    is_framed: bool,
}

/// How a path of Vertex AI ends that only counts tokens. Its body names the model.
pub(super) const COUNTING: &str = "/publishers/anthropic/models/count-tokens:rawPredict";

/// The suffix of Bedrock's paths whose answers come in frames of AWS's event stream.
const FRAMED: &str = "-with-response-stream";

impl<'p> HostedPath<'p> {
    pub(super) fn of(path: &'p str) -> Option<Self> {
        Self::vertex(path).or_else(|| Self::bedrock(path))
    }

    fn vertex(path: &'p str) -> Option<Self> {
        let whole = path.strip_suffix(":rawPredict").or_else(|| path.strip_suffix(":streamRawPredict"))?;
        let (base, model) = whole.split_once("/publishers/anthropic/models/")?;
        let is_it = !model.contains(':') && !path.ends_with(COUNTING);
        is_it.then_some(Self { base, model, is_framed: false })
    }

    fn bedrock(path: &'p str) -> Option<Self> {
        let whole = unframed(path).unwrap_or(path);
        let (base, model) = whole.strip_suffix("/invoke")?.rsplit_once("/model/")?;
        // Models of other makers have other bodies; the resource name of a profile does not say whose model it is.
        let is_claude = ["anthropic.", "claude", "arn:", "arn%3A"].iter().any(|part| model.contains(part));
        is_claude.then_some(Self { base, model, is_framed: whole.len() < path.len() })
    }

    pub(super) fn facts(&self) -> PathFacts {
        let model = percent_decode_str(self.model).decode_utf8_lossy();
        PathFacts { model: Some(model.into()), is_framed: self.is_framed }
    }
}

/// The path at which the same answer comes as a whole; none if it does not come in frames.
pub(super) fn unframed(path: &str) -> Option<&str> {
    path.strip_suffix(FRAMED).filter(|whole| whole.ends_with("/invoke"))
}
