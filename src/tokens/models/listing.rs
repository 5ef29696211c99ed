//! What a server says of its models, in answer to `GET /models`, and where a local server says it.

use crate::raw::{Fields, elements};

/// A local server, whose listing says too little: the context that it has loaded a model with is at another path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LocalServer {
    kind: ServerKind,
    /// The models of the listing.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ServerKind {
    Ollama,
    LlamaCpp,
    LmStudio,
}

/// The windows that a listing names, by model: `max_model_len` of vLLM, `context_length` of OpenRouter, `meta.n_ctx` of
/// llama.cpp, `context_window` of Groq and `ChatGPT`, `max_context_length` of Mistral, `max_input_tokens` of Anthropic,
/// `capabilities.limits.max_prompt_tokens` of Copilot. Nothing if the answer is not a listing, and nothing for a model
/// without a window.
pub fn windows_in(models_json: &[u8]) -> Vec<(String, usize)> {
    let json = str::from_utf8(models_json).unwrap_or_default();
    let data = Fields::of(json).and_then(|listing| listing.get("data").or(listing.get("models")));
    let name = |model: &Fields<'_>| Some(model.string("id").or(model.string("slug"))?.into());
    models(data.unwrap_or(json)).filter_map(|model| Some((name(&model)?, window(&model)?))).collect()
}

/// The `num_ctx` in Ollama's answer about one model (`POST /api/show`), if its Modelfile sets that.
pub fn num_ctx(show_json: &[u8]) -> Option<usize> {
    let parameters = Fields::of(str::from_utf8(show_json).ok()?)?.string("parameters")?.into_owned();
    parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok()).filter(|&n| n > 0)
}

// === impl LocalServer ===

impl LocalServer {
    /// The server that has written a listing. Each writes another owner of its models.
    pub fn of_listing(models_json: &[u8]) -> Option<Self> {
        let listing = Fields::of(str::from_utf8(models_json).ok()?)?;
        let models: Vec<_> = models(listing.get("data")?).collect();
        let kind = models.iter().find_map(|model| match &*model.string("owned_by")? {
            "library" => Some(ServerKind::Ollama),
            "llamacpp" => Some(ServerKind::LlamaCpp),
            "organization_owner" => Some(ServerKind::LmStudio),
            _ => None,
        })?;
        let names = models.iter().filter_map(|model| Some(model.string("id")?.into_owned())).collect();
        Some(Self { kind, names })
    }

    /// The path below the server's root where it names the contexts.
    pub fn path(&self) -> &'static str {
        match self.kind {
            ServerKind::Ollama => "/api/ps",
            ServerKind::LlamaCpp => "/props",
            ServerKind::LmStudio => "/api/v0/models",
        }
    }

    /// The path where it describes one model that is not loaded.
    pub fn path_of_one(&self) -> Option<&'static str> {
        (self.kind == ServerKind::Ollama).then_some("/api/show")
    }

    /// Whether it serves its only model under any name.
    pub fn serves_any_name(&self) -> bool {
        self.kind == ServerKind::LlamaCpp && self.names.len() == 1
    }

    /// The windows in the answer at that path, by model: Ollama's `context_length` of loaded models, llama.cpp's
    /// `default_generation_settings.n_ctx`, LM Studio's `loaded_context_length`.
    pub fn windows_in(&self, json: &[u8]) -> Vec<(String, usize)> {
        let Some(answer) = str::from_utf8(json).ok().and_then(Fields::of) else { return Vec::new() };
        let each = |list: &str, name: &'static str, window: fn(&Fields<'_>) -> Option<usize>| -> Vec<_> {
            let models = answer.get(list).into_iter().flat_map(models);
            models.filter_map(|model| Some((model.string(name)?.into_owned(), window(&model)?))).collect()
        };
        match self.kind {
            ServerKind::LlamaCpp => {
                let settings = answer.object("default_generation_settings");
                let window = settings.and_then(|settings| number(&settings, "n_ctx"));
                window.into_iter().flat_map(|n| self.names.iter().map(move |name| (name.clone(), n))).collect()
            }
            ServerKind::Ollama => {
                let loaded = each("models", "name", |model| number(model, "context_length"));
                let short = |(name, n): &(String, usize)| Some((name.strip_suffix(":latest")?.to_owned(), *n));
                let also: Vec<_> = loaded.iter().filter_map(short).collect();
                [loaded, also].concat()
            }
            ServerKind::LmStudio => each("data", "id", |model| number(model, "loaded_context_length")),
        }
    }
}

/// The models of a list.
fn models(list: &str) -> impl Iterator<Item = Fields<'_>> {
    elements(list).unwrap_or_default().into_iter().filter_map(Fields::of)
}

fn window(model: &Fields<'_>) -> Option<usize> {
    ["max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens"]
        .into_iter()
        .find_map(|key| number(model, key))
        .or_else(|| number(&model.object("meta")?, "n_ctx"))
        .or_else(|| number(&model.object("capabilities")?.object("limits")?, "max_prompt_tokens"))
}

fn number(fields: &Fields<'_>, key: &str) -> Option<usize> {
    fields.get(key)?.parse().ok().filter(|&n| n > 0)
}
