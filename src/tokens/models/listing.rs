//! What a server says of its models, in answer to `GET /models`.

use crate::raw::{Fields, elements};

/// The windows that a listing names, by model: `max_model_len` of vLLM, `context_length` of OpenRouter, `meta` of
/// llama.cpp, where what it serves wins over what the model was trained for, `context_window` of Groq,
/// `max_context_length` of Mistral, `max_input_tokens` of Anthropic. Nothing if the answer is no listing, and nothing for a model without a window.
pub fn windows_in(models_json: &[u8]) -> Vec<(String, usize)> {
    let json = str::from_utf8(models_json).unwrap_or_default();
    let data = Fields::of(json).and_then(|listing| listing.get("data"));
    let models = elements(data.unwrap_or(json)).unwrap_or_default();
    models
        .into_iter()
        .filter_map(Fields::of)
        .filter_map(|model| Some((model.string("id")?.into(), window(&model)?)))
        .collect()
}

/// The name behind which the next page of a listing begins, where this page is not the last one: Anthropic's `last_id`.
/// None if it could not stand in a query as it is.
pub fn next_page_after(models_json: &[u8]) -> Option<String> {
    let listing = Fields::of(str::from_utf8(models_json).ok()?)?;
    let last = listing.string("last_id").filter(|_| listing.get("has_more") == Some("true"))?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/@".contains(&byte);
    (!last.is_empty() && last.bytes().all(is_plain)).then(|| last.into_owned())
}

fn window(model: &Fields<'_>) -> Option<usize> {
    let meta = model.object("meta");
    let of_meta = |key| meta.as_ref().and_then(|meta| number(meta, key));
    ["max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens"]
        .into_iter()
        .find_map(|key| number(model, key))
        .or_else(|| of_meta("n_ctx"))
        .or_else(|| of_meta("n_ctx_train"))
}

fn number(fields: &Fields<'_>, key: &str) -> Option<usize> {
    fields.get(key)?.parse().ok().filter(|&n| n > 0)
}
