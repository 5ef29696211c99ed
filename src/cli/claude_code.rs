//! Where Claude Code finds Claude: Anthropic's API, or a host that its variables choose.

/// A host, by the variables of Claude Code 2.1.197 and Anthropic's SDKs 2.12.0.
#[derive(Debug)]
pub(super) struct ClaudeHost {
    /// The variable with its base URL.
    pub(super) variable: &'static str,
    /// The path of its base URL.
    pub(super) path: &'static str,
    /// Its base URL, as far as variables say one.
    pub(super) url: Option<String>,
    /// A variable that must be empty where the base URL is set.
    pub(super) excluded: Option<&'static str>,
}

/// The base URL of Anthropic's clients.
pub(super) const BASE_URL: &str = "ANTHROPIC_BASE_URL";

const FOUNDRY_RESOURCE: &str = "ANTHROPIC_FOUNDRY_RESOURCE";

impl ClaudeHost {
    /// The host that variables choose.
    pub(super) fn of(value: impl Fn(&'static str) -> Option<String>) -> Self {
        let value = |name| value(name).filter(|value| !value.is_empty());
        let is_on = |name| value(name).is_some_and(|value| !matches!(&*value, "0" | "false"));
        let (mut variable, mut path, mut default, mut excluded) = (BASE_URL, "", None, None);
        if is_on("CLAUDE_CODE_USE_BEDROCK") {
            let region = value("AWS_REGION").or_else(|| value("AWS_DEFAULT_REGION"));
            let region = region.as_deref().unwrap_or("us-east-1");
            variable = "ANTHROPIC_BEDROCK_BASE_URL";
            default = Some(format!("https://bedrock-runtime.{region}.amazonaws.com"));
        } else if is_on("CLAUDE_CODE_USE_VERTEX") {
            (variable, path) = ("ANTHROPIC_VERTEX_BASE_URL", "/v1");
            default = Some(match value("CLOUD_ML_REGION").as_deref().unwrap_or("us-east5") {
                "global" => "https://aiplatform.googleapis.com/v1".to_owned(),
                region @ ("us" | "eu") => format!("https://aiplatform.{region}.rep.googleapis.com/v1"),
                region => format!("https://{region}-aiplatform.googleapis.com/v1"),
            });
        } else if is_on("CLAUDE_CODE_USE_FOUNDRY") {
            (variable, path) = ("ANTHROPIC_FOUNDRY_BASE_URL", "/anthropic");
            excluded = Some(FOUNDRY_RESOURCE);
            let of_resource = |resource| format!("https://{resource}.services.ai.azure.com/anthropic");
            default = value(FOUNDRY_RESOURCE).map(of_resource);
        }
        Self { variable, path, url: value(variable).or(default), excluded }
    }
}
