//! The names that gateways and releases give a model, and which of them are the model of its maker.

use std::borrow::Cow;

/// What follows a colon where the maker's model is meant. Some choose how a request is routed; of the others none is known to
/// have a shorter window than the model without it. `:free` may have one, and so may the tags of Ollama.
const SAME_MODEL: [&str; 8] = ["nitro", "floor", "exacto", "online", "extended", "thinking", "batch", "beta"];

/// The variants of [`SAME_MODEL`] that no listing has, since they only choose how a request is routed.
const ROUTED: [&str; 4] = [":nitro", ":floor", ":exacto", ":online"];

/// What hosts append to the name of a model whose weights they serve: the format of the weights, or the kind of service.
const HOSTED: [&str; 4] = ["-fp8", "-bf16", "-nvfp4", "-maas"];

/// The name without what gateways and releases put around it: in lower case, without the provider before it, the variant
/// after a colon, the date at its end. `openai/gpt-4o-2024-08-06:extended` is `gpt-4o`.
pub(super) fn bare(name: &str) -> Cow<'_, str> {
    let name = name.strip_prefix("ft:").unwrap_or(name);
    let name = last_segment(name);
    let name = name.split([':', '@']).next().unwrap_or(name);
    let name = name.strip_suffix("-latest").unwrap_or(name);
    let name = without_date(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) { name.to_ascii_lowercase().into() } else { name.into() }
}

/// A [`bare`] name as its maker writes it, after the names of a region and of a vendor, if there are any: without what hosts
/// append, and with dots in versions. `us.anthropic.claude-opus-4-5-20251101-v1` is `us.anthropic.claude-opus-4.5`.
pub(super) fn canonical(bare: &str) -> String {
    let name = HOSTED.iter().find_map(|end| bare.strip_suffix(end)).unwrap_or(bare);
    let name = if without_vendor(name).is_some() { without_date(without_revision(name)) } else { name };
    with_dots(name)
}

/// The name without its first part before a dot, if that names a region or a vendor: it has no digits, and a model has.
pub(super) fn without_vendor(name: &str) -> Option<&str> {
    let (vendor, rest) = name.split_once('.')?;
    let is_word = !vendor.is_empty() && vendor.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    is_word.then_some(rest)
}

/// The name without a variant that only routes requests. `openai/gpt-5.5:nitro` is `openai/gpt-5.5`.
pub(super) fn without_routing(name: &str) -> &str {
    ROUTED.iter().find_map(|variant| name.strip_suffix(variant)).unwrap_or(name)
}

/// Whether who serves the model under this name has chosen the window: a variant of a gateway, a tag of Ollama, weights that
/// were quantised to be served at home, Cloudflare's models.
pub(super) fn is_of_its_host(name: &str) -> bool {
    let is_tuned = name.starts_with("ft:");
    let last = last_segment(name);
    let variant = last.split_once(':').map(|(_, variant)| variant);
    // Amazon's `:0` is a revision.
    let is_same = |variant: &str| SAME_MODEL.contains(&variant) || variant.len() == 1 && is_digits(variant);
    name.starts_with("@cf/") || is_quantised(last) || !is_tuned && variant.is_some_and(|variant| !is_same(variant))
}

/// Whether the name ends as those of GGUF files do: `-GGUF`, `.gguf`, `-Q4_K_M`, `-IQ3_XS`.
fn is_quantised(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let end = name.rsplit(['-', '.']).next().unwrap_or_default();
    let bits = end.strip_prefix('i').unwrap_or(end).strip_prefix('q').and_then(|bits| bits.split('_').next());
    end == "gguf" || bits.is_some_and(|bits| bits.len() == 1 && is_digits(bits))
}

fn last_segment(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Without `-v1` at the end.
fn without_revision(name: &str) -> &str {
    name.rsplit_once("-v").filter(|(_, revision)| is_digits(revision)).map_or(name, |(name, _)| name)
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

/// With a dot between two digits that are alone: `opus-4-7` and `v4p1` are `opus-4.7` and `v4.1`; `grok-4-0709` stays.
fn with_dots(name: &str) -> String {
    let at = |index: Option<usize>| index.and_then(|index| name.as_bytes().get(index)).copied();
    let is_digit = |index| at(index).is_some_and(|byte| byte.is_ascii_digit());
    let dotted = name.char_indices().map(|(n, c)| {
        let (before, after) = (n.checked_sub(1), Some(n + 1));
        let alone = !is_digit(n.checked_sub(2)) && matches!(at(Some(n + 2)), None | Some(b'-'));
        if matches!(c, '-' | 'p') && is_digit(before) && is_digit(after) && alone { '.' } else { c }
    });
    dotted.collect()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gateways_become_those_of_makers() {
        for (name, expected) in [
            ("anthropic/claude-opus-4.7", "claude-opus-4.7"),
            ("claude-opus-4-7", "claude-opus-4.7"),
            ("claude-opus-4-7-20260416", "claude-opus-4.7"),
            ("claude-sonnet-4-5@20250929", "claude-sonnet-4.5"),
            ("claude-3-7-sonnet-20250219", "claude-3.7-sonnet"),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.anthropic.claude-sonnet-4.5"),
            ("bedrock/us-gov.anthropic.claude-opus-4-6-v1", "us-gov.anthropic.claude-opus-4.6"),
            ("openai.gpt-oss-120b-1:0", "openai.gpt-oss-120b-1"),
            ("accounts/fireworks/models/glm-4p7", "glm-4.7"),
            ("accounts/fireworks/models/deepseek-v4p1-flash", "deepseek-v4.1-flash"),
            ("openrouter/x-ai/grok-4.7:nitro", "grok-4.7"),
            ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5-397b-a17b"),
            ("qwen3-5-9b", "qwen3.5-9b"),
            ("zai-org/glm-5-maas", "glm-5"),
            // These digits are not a version, or the version has one digit.
            ("grok-4-0709", "grok-4-0709"),
            ("gpt-4-1106-preview", "gpt-4-1106-preview"),
            ("qwen3-4b-instruct-2507", "qwen3-4b-instruct-2507"),
            ("qwen3-30b-a3b", "qwen3-30b-a3b"),
            ("mistral-7b-instruct-v0.2", "mistral-7b-instruct-v0.2"),
            ("deepseek-v3", "deepseek-v3"),
            ("日-4-5", "日-4.5"),
            ("", ""),
        ] {
            assert_eq!(canonical(&bare(name)), expected, "{name}");
        }
    }

    #[test]
    fn regions_and_vendors_come_off_one_by_one() {
        let mut name = "us.anthropic.claude-opus-4.7";
        let mut seen = Vec::new();
        while let Some(rest) = without_vendor(name) {
            seen.push(rest);
            name = rest;
        }
        assert_eq!(seen, ["anthropic.claude-opus-4.7", "claude-opus-4.7"]);
        assert_eq!(without_vendor("gpt-4.1"), None);
        assert_eq!(without_vendor("kimi-k2.5"), None);
        assert_eq!(without_vendor(".x"), None);
    }

    #[test]
    fn a_host_has_a_window_of_its_own() {
        for name in [
            "deepseek/deepseek-v4-flash:free",
            "glm-4.7-flash:q8_0",
            "kimi-k2.5:cloud",
            "anthropic.claude-3-sonnet-20240229-v1:0:28k",
            "Llama-3.1-8B-Instruct-Q4_K_M",
            "unsloth/MiniMax-M3-GGUF",
            "models/llama-3.1-8b-instruct.IQ3_XS.gguf",
            "@cf/meta/llama-3.1-8b-instruct",
        ] {
            assert!(is_of_its_host(name), "{name}");
        }
        for name in [
            "openai/gpt-4o:extended",
            "openai/gpt-5.5:nitro",
            "anthropic.claude-sonnet-4-5-20250929-v1:0",
            "ft:gpt-4o-mini-2024-07-18:org::id",
            "claude-sonnet-4-5@20250929",
            "qwq-32b",
            "qwen/qwen3-max",
            "",
        ] {
            assert!(!is_of_its_host(name), "{name}");
        }
    }
}
