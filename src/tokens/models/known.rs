//! Well-known models, as public documents described them on 2026-11-22.
//!
//! Sources: the makers' own pages, which are platform.claude.com (models overview), developers.openai.com (models),
//! ai.google.dev and docs.cloud.google.com (Gemini), docs.x.ai, api-docs.deepseek.com, platform.kimi.ai, docs.z.ai; the model
//! files of models.dev, which cite them; Vercel's AI Gateway and OpenRouter to compare with. Where two of them differ, the
//! smaller window is here: `MiniMax` M2 and M3, GLM 5, Grok 4.20, Qwen 3.7 Max. Where a maker writes "128K" and not which
//! thousand that is, it is the smaller one.
//!
//! A server may offer less, and then mostly says so in its listing, which wins over this table. Not here: names that move
//! from model to model (`deepseek-chat`, `qwen-plus`), models whose hosts differ widely (Llama 4, the dense Qwen 3, Qwen 3.8,
//! DeepSeek R1), windows that a header has to ask for, and whatever is not known for sure.

use std::iter;

use super::names;
use crate::tokens::factor::Factor;
use crate::tokens::tiktoken::Encoding::{self, Cl100kBase, O200kBase, O200kHarmony, P50kBase, R50kBase};

/// A line of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Known {
    /// A canonical name, or the beginning of one and `*`.
    pub(super) pattern: &'static str,
    pub(super) window: Option<usize>,
    pub(super) encoding: Option<Encoding>,
}

/// The first line that fits is the one that counts.
pub(super) static TABLE: &[Known] = &[
    // OpenAI on Amazon Bedrock, with less.
    known("openai.gpt-5.4*", 272_000, O200kBase),
    known("openai.gpt-5.5*", 272_000, O200kBase),
    known("openai.gpt-5.6*", 1_000_000, O200kBase),
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
    known("o3-deep-research", 200_000, O200kBase),
    known("o4-mini", 200_000, O200kBase),
    known("o4-mini-deep-research", 200_000, O200kBase),
    known("codex-mini", 200_000, O200kBase),
    known("gpt-5-chat", 128_000, O200kBase),
    known("gpt-5.1-chat", 128_000, O200kBase),
    known("gpt-5.2-chat", 128_000, O200kBase),
    known("gpt-5.3-chat", 128_000, O200kBase),
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
    known("gpt-5.3-codex", 400_000, O200kBase),
    known("gpt-5.3-codex-spark", 128_000, O200kBase),
    known("gpt-5.4-mini", 400_000, O200kBase),
    known("gpt-5.4-nano", 400_000, O200kBase),
    known("gpt-5.4", 1_050_000, O200kBase),
    known("gpt-5.4-pro", 1_050_000, O200kBase),
    known("gpt-5.5", 1_050_000, O200kBase),
    known("gpt-5.5-pro", 1_050_000, O200kBase),
    known("gpt-5.5-instant", 400_000, O200kBase),
    known("gpt-5.6", 1_050_000, O200kBase),
    known("gpt-5.6-sol", 1_050_000, O200kBase),
    known("gpt-5.6-terra", 1_050_000, O200kBase),
    known("gpt-5.6-luna", 1_050_000, O200kBase),
    known("gpt-5.6-cyber", 400_000, O200kBase),
    window("gpt-6-astra", 1_050_000),
    window("gpt-6-sol", 1_050_000),
    window("gpt-6-luna", 1_050_000),
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
    // Anthropic. Sonnet 4 and 4.5 took more only from those who asked for it with a header; the later ones need none.
    window("claude-2.0", 100_000),
    window("claude-instant*", 100_000),
    window("claude-2.1", 200_000),
    window("claude-3-*", 200_000),
    window("claude-3.5-*", 200_000),
    window("claude-3.7-*", 200_000),
    window("claude-opus-4", 200_000),
    window("claude-opus-4.0", 200_000),
    window("claude-opus-4.1", 200_000),
    window("claude-opus-4.5", 200_000),
    window("claude-opus-4.6", 1_000_000),
    window("claude-opus-4.7", 1_000_000),
    window("claude-opus-4.8", 1_000_000),
    window("claude-opus-5", 1_000_000),
    window("claude-opus-5.5", 1_000_000),
    window("claude-sonnet-4", 200_000),
    window("claude-sonnet-4.0", 200_000),
    window("claude-sonnet-4.5", 200_000),
    window("claude-sonnet-4.6", 1_000_000),
    window("claude-sonnet-5", 1_000_000),
    window("claude-sonnet-5.5", 1_000_000),
    window("claude-haiku-4.5", 200_000),
    window("claude-haiku-5.5", 1_000_000),
    window("claude-fable-5", 1_000_000),
    window("claude-fable-5.1", 1_000_000),
    window("claude-fable-5.2", 1_000_000),
    window("claude-mythos-5", 1_000_000),
    window("claude-mythos-5.1", 1_000_000),
    // Google.
    window("gemini-1.5-pro*", 2_097_152),
    window("gemini-1.5-flash*", 1_048_576),
    window("gemini-2.0-flash", 1_048_576),
    window("gemini-2.0-flash-001", 1_048_576),
    window("gemini-2.0-flash-lite", 1_048_576),
    window("gemini-2.0-flash-lite-001", 1_048_576),
    window("gemini-2.5-pro", 1_048_576),
    window("gemini-2.5-pro-preview-05-06", 1_048_576),
    window("gemini-2.5-pro-preview-06-05", 1_048_576),
    window("gemini-2.5-flash", 1_048_576),
    window("gemini-2.5-flash-lite", 1_048_576),
    window("gemini-3-pro-preview", 1_048_576),
    window("gemini-3-flash-preview", 1_048_576),
    window("gemini-3.1-pro-preview", 1_048_576),
    window("gemini-3.1-flash-lite", 1_048_576),
    window("gemini-3.5-flash", 1_048_576),
    window("gemini-3.8-flash", 1_048_576),
    window("gemini-4-argon", 1_048_576),
    window("gemma-2-*", 8_192),
    window("gemma2", 8_192),
    window("gemma-3-4b-it", 131_072),
    window("gemma-3-12b-it", 131_072),
    window("gemma-3-27b-it", 131_072),
    window("gemma-4-31b-it", 262_144),
    // DeepSeek.
    window("deepseek-v4-pro", 1_000_000),
    window("deepseek-v4-flash", 1_000_000),
    window("deepseek-v4.1-flash", 1_000_000),
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
    window("qwen3-coder-next", 262_144),
    window("qwen3-coder-plus", 1_000_000),
    window("qwen3-max", 262_144),
    window("qwen3.5-9b", 262_144),
    window("qwen3.5-397b-a17b", 262_144),
    window("qwen3.5-plus", 1_000_000),
    window("qwen3.6-27b", 262_144),
    window("qwen3.6-35b-a3b", 262_144),
    window("qwen3.6-plus", 1_000_000),
    window("qwen3.7-plus", 1_000_000),
    window("qwen3.7-max", 991_000),
    window("qwq-32b", 131_072),
    // Llama.
    window("llama-2-*", 4_096),
    window("meta-llama-3-*", 8_192),
    window("llama-3-*", 8_192),
    window("llama3-8b-8192", 8_192),
    window("llama3-70b-8192", 8_192),
    window("meta-llama-3.1-*", 131_072),
    window("llama-3.1-*", 131_072),
    window("llama-3.2-*", 131_072),
    window("llama-3.3-*", 131_072),
    window("muse-spark-1.3", 1_048_576),
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
    window("mistral-large-2512", 256_000),
    window("mistral-small-2503", 128_000),
    window("mistral-small-2506", 128_000),
    window("mistral-small-2603", 256_000),
    window("mistral-small-3.2-24b-instruct", 128_000),
    window("mistral-small-3.2-24b-instruct-2506", 128_000),
    window("mistral-medium-2505", 128_000),
    window("mistral-medium-2508", 128_000),
    window("mistral-medium-2604", 256_000),
    window("mistral-medium-3.5", 256_000),
    window("magistral-medium-2509", 128_000),
    window("ministral-14b-2512", 256_000),
    window("codestral-2508", 256_000),
    window("devstral-small-2505", 128_000),
    window("devstral-small-2507", 128_000),
    window("devstral-medium-2507", 128_000),
    window("devstral-2512", 256_000),
    window("devstral-small-2512", 256_000),
    // Kimi.
    window("moonshot-v1-8k", 8_192),
    window("moonshot-v1-32k", 32_768),
    window("moonshot-v1-128k", 131_072),
    window("kimi-k2-0711-preview", 131_072),
    window("kimi-k2-0905-preview", 262_144),
    window("kimi-k2-0905", 262_144),
    window("kimi-k2-instruct-0905", 262_144),
    window("kimi-k2-thinking", 262_144),
    window("kimi-k2-thinking-turbo", 262_144),
    window("kimi-k2-turbo-preview", 262_144),
    window("kimi-k2.5", 262_144),
    window("kimi-k2.6", 262_144),
    window("kimi-k2.7-code", 262_144),
    window("kimi-k3", 1_048_576),
    // GLM.
    window("glm-4.5", 128_000),
    window("glm-4.5-air", 128_000),
    window("glm-4.5-x", 128_000),
    window("glm-4.5-airx", 128_000),
    window("glm-4.5-flash", 128_000),
    window("glm-4.6", 200_000),
    window("glm-4.7", 200_000),
    window("glm-4.7-flash", 200_000),
    window("glm-5", 200_000),
    window("glm-5-turbo", 200_000),
    window("glm-5.1", 200_000),
    window("glm-5.2", 1_000_000),
    window("glm-5.3", 1_000_000),
    window("glm-5.3-flash", 1_000_000),
    // MiniMax.
    window("minimax-m2", 196_608),
    window("minimax-m2.1", 196_608),
    window("minimax-m2.5", 196_608),
    window("minimax-m2.7", 196_608),
    window("minimax-m3", 500_000),
    // Grok.
    window("grok-2", 131_072),
    window("grok-3", 131_072),
    window("grok-3-mini", 131_072),
    window("grok-4", 256_000),
    window("grok-4-0709", 256_000),
    window("grok-4.20", 1_000_000),
    window("grok-4.20-0309-reasoning", 1_000_000),
    window("grok-4.20-0309-non-reasoning", 1_000_000),
    window("grok-4.3", 1_000_000),
    window("grok-4.5", 500_000),
    window("grok-4.6", 500_000),
    window("grok-4.7", 500_000),
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

/// How many tokens are billed for 100 that are counted, where that is known to be another number: these models split
/// text with an encoding that nobody has published.
///
/// Anthropic's page on token counting says that Claude 4.7 and later have about 30 % more tokens than the models before. In
/// recorded sessions of Claude Code, billed call by call (2026-11), one token had 3.6 bytes with Opus 4.6, which is what the
/// default encoding counts, and 2.3 to 2.4 with Opus 4.7, Opus 5 and Sonnet 5.
static PER_HUNDRED: &[(&str, u16)] = &[
    ("claude-opus-4.7*", 155),
    ("claude-opus-4.8*", 155),
    ("claude-opus-5*", 155),
    ("claude-sonnet-5*", 155),
    ("claude-haiku-5*", 155),
    ("claude-fable-*", 155),
    ("claude-mythos-*", 155),
];

/// What the tokens of a model are billed as, given its bare name.
pub(super) fn factor(bare: &str) -> Factor {
    let name = names::canonical(bare);
    let of = |name: &str| PER_HUNDRED.iter().find(|(pattern, _)| fits(pattern, name));
    let found = iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).find_map(of);
    found.map_or(Factor::ONE, |(_, tokens)| Factor::known(*tokens))
}

/// What is known of a model, given its bare name. A line about the model at one vendor wins over one about the model.
pub(super) fn find(bare: &str) -> Option<&'static Known> {
    let name = names::canonical(bare);
    iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).find_map(line)
}

/// Whether a model belongs to a family, given its bare name.
pub(super) fn is_family(bare: &str, family: &str) -> bool {
    let name = names::canonical(bare);
    iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).any(|name| fits(family, name))
}

fn line(name: &str) -> Option<&'static Known> {
    TABLE.iter().find(|known| fits(known.pattern, name))
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}
