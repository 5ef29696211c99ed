//! Well-known models, as they were documented by their makers on 2026-11-21.
//!
//! A server may offer less, and then mostly says so in its listing, which wins over this table. Where a maker writes
//! "128K" and not which thousand that is, it is the smaller one. Not here: names that move from model to model, windows
//! that depend on who serves the model, and whatever is not known for sure.

use std::borrow::Cow;

use crate::tokens::tiktoken::Encoding::{self, Cl100kBase, O200kBase, O200kHarmony, P50kBase, R50kBase};

/// A line of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Known {
    /// A bare name, or the beginning of one and `*`.
    pub(super) pattern: &'static str,
    pub(super) window: Option<usize>,
    pub(super) encoding: Option<Encoding>,
}

/// The first line that fits is the one that counts.
pub(super) static TABLE: &[Known] = &[
    // OpenAI. Families are named by what their members have in common; what is only spoken or drawn has no window here.
    encoding("gpt-4o-realtime*", O200kBase),
    encoding("gpt-4o-transcribe*", O200kBase),
    encoding("gpt-4o-mini-realtime*", O200kBase),
    encoding("gpt-4o-mini-transcribe*", O200kBase),
    encoding("gpt-4o-mini-tts*", O200kBase),
    known("gpt-4o*", 128_000, O200kBase),
    known("chatgpt-4o*", 128_000, O200kBase),
    known("gpt-4.1*", 1_047_576, O200kBase),
    known("gpt-4.5-preview*", 128_000, O200kBase),
    known("o1-mini", 128_000, O200kBase),
    known("o1-preview", 128_000, O200kBase),
    known("o1", 200_000, O200kBase),
    known("o1-pro", 200_000, O200kBase),
    known("o3", 200_000, O200kBase),
    known("o3-mini", 200_000, O200kBase),
    known("o3-pro", 200_000, O200kBase),
    known("o4-mini", 200_000, O200kBase),
    known("codex-mini", 200_000, O200kBase),
    known("gpt-5-chat", 128_000, O200kBase),
    known("gpt-5.1-chat", 128_000, O200kBase),
    known("gpt-5.2-chat", 128_000, O200kBase),
    known("gpt-5", 400_000, O200kBase),
    known("gpt-5-mini", 400_000, O200kBase),
    known("gpt-5-nano", 400_000, O200kBase),
    known("gpt-5-pro", 400_000, O200kBase),
    known("gpt-5-codex", 400_000, O200kBase),
    known("gpt-5.1", 400_000, O200kBase),
    known("gpt-5.1-codex", 400_000, O200kBase),
    known("gpt-5.1-codex-mini", 400_000, O200kBase),
    known("gpt-5.1-codex-max", 400_000, O200kBase),
    known("gpt-5.2", 400_000, O200kBase),
    known("gpt-5.2-pro", 400_000, O200kBase),
    known("gpt-5.2-codex", 400_000, O200kBase),
    known("gpt-5.4-mini", 400_000, O200kBase),
    known("gpt-5.4-nano", 400_000, O200kBase),
    known("gpt-5.4", 1_050_000, O200kBase),
    known("gpt-5.4-pro", 1_050_000, O200kBase),
    known("gpt-oss-*", 131_072, O200kHarmony),
    known("gpt-4-turbo*", 128_000, Cl100kBase),
    known("gpt-4-1106*", 128_000, Cl100kBase),
    known("gpt-4-0125*", 128_000, Cl100kBase),
    known("gpt-4-vision*", 128_000, Cl100kBase),
    known("gpt-4-32k*", 32_768, Cl100kBase),
    known("gpt-4", 8_192, Cl100kBase),
    known("gpt-4-0314", 8_192, Cl100kBase),
    known("gpt-4-0613", 8_192, Cl100kBase),
    encoding("gpt-4-*", Cl100kBase),
    known("gpt-3.5-turbo-instruct*", 4_096, Cl100kBase),
    known("gpt-3.5-turbo-0301", 4_096, Cl100kBase),
    known("gpt-3.5-turbo-0613", 4_096, Cl100kBase),
    known("gpt-3.5-turbo*", 16_385, Cl100kBase),
    // Azure has sold this name with two windows.
    encoding("gpt-35-turbo*", Cl100kBase),
    encoding("text-davinci-00*", P50kBase),
    encoding("code-*", P50kBase),
    encoding("davinci-002", Cl100kBase),
    encoding("babbage-002", Cl100kBase),
    encoding("gpt2", R50kBase),
    encoding("davinci", R50kBase),
    // Anthropic. Sonnet 4 and 4.5 take more only from those who ask for it with a header.
    window("claude-2.0", 100_000),
    window("claude-instant*", 100_000),
    window("claude-2.1", 200_000),
    window("claude-3-*", 200_000),
    window("claude-3.5-*", 200_000),
    window("claude-3.7-*", 200_000),
    window("claude-opus-4", 200_000),
    window("claude-opus-4-0", 200_000),
    window("claude-opus-4-1", 200_000),
    window("claude-opus-4.1", 200_000),
    window("claude-opus-4-5", 200_000),
    window("claude-opus-4.5", 200_000),
    window("claude-sonnet-4", 200_000),
    window("claude-sonnet-4-0", 200_000),
    window("claude-sonnet-4-5", 200_000),
    window("claude-sonnet-4.5", 200_000),
    window("claude-haiku-4-5", 200_000),
    window("claude-haiku-4.5", 200_000),
    window("claude-opus-4-6", 1_000_000),
    window("claude-opus-4.6", 1_000_000),
    window("claude-sonnet-4-6", 1_000_000),
    window("claude-sonnet-4.6", 1_000_000),
    window("claude-opus-5", 1_000_000),
    window("claude-opus-5-5", 1_000_000),
    window("claude-opus-5.5", 1_000_000),
    // Google.
    window("gemini-1.5-pro*", 2_097_152),
    window("gemini-1.5-flash*", 1_048_576),
    window("gemini-2.0-flash", 1_048_576),
    window("gemini-2.0-flash-001", 1_048_576),
    window("gemini-2.0-flash-lite", 1_048_576),
    window("gemini-2.0-flash-lite-001", 1_048_576),
    window("gemini-2.5-pro", 1_048_576),
    window("gemini-2.5-flash", 1_048_576),
    window("gemini-2.5-flash-lite", 1_048_576),
    window("gemini-3-pro-preview", 1_048_576),
    window("gemini-3-flash-preview", 1_048_576),
    window("gemma-2-*", 8_192),
    window("gemma2", 8_192),
    window("gemma-3-4b-it", 131_072),
    window("gemma-3-12b-it", 131_072),
    window("gemma-3-27b-it", 131_072),
    // DeepSeek. `deepseek-chat` and `deepseek-reasoner` have been several models, with several windows.
    window("deepseek-v4-pro", 1_000_000),
    window("deepseek-v4-flash", 1_000_000),
    window("deepseek-flash", 1_000_000),
    // Qwen, where the window is the one that the model has without being stretched.
    window("qwen2.5-7b-instruct-1m", 1_010_000),
    window("qwen2.5-14b-instruct-1m", 1_010_000),
    window("qwen3-4b-instruct-2507", 262_144),
    window("qwen3-4b-thinking-2507", 262_144),
    window("qwen3-30b-a3b-instruct-2507", 262_144),
    window("qwen3-30b-a3b-thinking-2507", 262_144),
    window("qwen3-235b-a22b-instruct-2507", 262_144),
    window("qwen3-235b-a22b-thinking-2507", 262_144),
    window("qwen3-235b-a22b-2507", 262_144),
    window("qwen3-next-80b-a3b-instruct", 262_144),
    window("qwen3-next-80b-a3b-thinking", 262_144),
    window("qwen3-coder-480b-a35b-instruct", 262_144),
    window("qwen3-coder-30b-a3b-instruct", 262_144),
    window("qwen3-max", 262_144),
    window("qwq-32b", 131_072),
    // Llama.
    window("llama-2-*", 4_096),
    window("meta-llama-3-*", 8_192),
    window("llama-3-*", 8_192),
    window("meta-llama-3.1-*", 131_072),
    window("llama-3.1-*", 131_072),
    window("llama-3.2-*", 131_072),
    window("llama-3.3-*", 131_072),
    // Mistral.
    window("mistral-7b-instruct-v0.2", 32_768),
    window("mistral-7b-instruct-v0.3", 32_768),
    window("mixtral-8x7b-*", 32_768),
    window("mixtral-8x22b-*", 65_536),
    window("open-mixtral-8x7b", 32_768),
    window("open-mixtral-8x22b", 65_536),
    window("mistral-nemo*", 128_000),
    window("open-mistral-nemo*", 128_000),
    window("mistral-large-2407", 128_000),
    window("mistral-large-2411", 128_000),
    window("mistral-small-2503", 128_000),
    window("mistral-small-2506", 128_000),
    window("devstral-small-2505", 128_000),
    window("devstral-small-2507", 128_000),
    window("mistral-medium-2505", 128_000),
    window("mistral-medium-2508", 128_000),
    // Kimi.
    window("moonshot-v1-8k", 8_192),
    window("moonshot-v1-32k", 32_768),
    window("moonshot-v1-128k", 131_072),
    window("kimi-k2-0711-preview", 131_072),
    window("kimi-k2-0905-preview", 262_144),
    window("kimi-k2-0905", 262_144),
    window("kimi-k2-instruct-0905", 262_144),
    window("kimi-k2-thinking", 262_144),
    window("kimi-k2-turbo-preview", 262_144),
    window("kimi-k2.5", 262_144),
    // GLM.
    window("glm-4.5", 128_000),
    window("glm-4.5-air", 128_000),
    window("glm-4.5-x", 128_000),
    window("glm-4.5-airx", 128_000),
    window("glm-4.5-flash", 128_000),
    window("glm-4.6", 200_000),
    window("glm-4.7", 200_000),
    // Grok.
    window("grok-2", 131_072),
    window("grok-3", 131_072),
    window("grok-3-mini", 131_072),
    window("grok-4", 256_000),
    window("grok-4-0709", 256_000),
    window("grok-code-fast-1", 256_000),
];

const fn known(pattern: &'static str, window: usize, encoding: Encoding) -> Known {
    Known { pattern, window: Some(window), encoding: Some(encoding) }
}

const fn window(pattern: &'static str, window: usize) -> Known {
    Known { pattern, window: Some(window), encoding: None }
}

const fn encoding(pattern: &'static str, encoding: Encoding) -> Known {
    Known { pattern, window: None, encoding: Some(encoding) }
}

/// What is known of a model, given its [`bare`] name.
pub(super) fn find(bare: &str) -> Option<&'static Known> {
    TABLE.iter().find(|known| match known.pattern.strip_suffix('*') {
        Some(beginning) => bare.starts_with(beginning),
        None => bare == known.pattern,
    })
}

/// The name without what gateways and releases put around it: in lower case, without the provider before it, the variant
/// behind a colon, the date at its end. `openai/gpt-4o-2024-08-06:extended` is `gpt-4o`.
pub(super) fn bare(name: &str) -> Cow<'_, str> {
    let name = name.strip_prefix("ft:").unwrap_or(name);
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.split([':', '@']).next().unwrap_or(name);
    let name = name.strip_suffix("-latest").unwrap_or(name);
    let name = without_date(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) { name.to_ascii_lowercase().into() } else { name.into() }
}

/// Without `-2024-08-06` or `-20240806` at the end.
fn without_date(name: &str) -> &str {
    let is_date = |end: &str| {
        end.bytes().enumerate().all(|(n, byte)| match (end.len(), n) {
            (_, 0) | (11, 5 | 8) => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    [11, 9]
        .into_iter()
        .filter_map(|length| name.split_at_checked(name.len().checked_sub(length)?))
        .find_map(|(name, end)| is_date(end).then_some(name))
        .unwrap_or(name)
}
