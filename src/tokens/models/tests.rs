//! Who is believed about a model, and what the well-known servers say of theirs.

use super::*;

fn models(toml: &str) -> Models {
    #[derive(Deserialize)]
    struct File {
        models: Vec<Settings>,
    }
    Models::new(&toml::from_str::<File>(toml).unwrap().models)
}

fn known(name: &str) -> (Option<usize>, Encoding) {
    said(&Models::new(&[]), name)
}

/// Returns what is known of a model, whoever says so.
fn said(models: &Models, name: &str) -> (Option<usize>, Encoding) {
    let Model { window, encoding, .. } = models.find(name);
    (window.map(|(window, _)| window), encoding)
}

#[test]
fn a_model_that_nobody_knows_has_no_window() {
    for name in [
        "",
        "my-model",
        "gpt-99",
        "gpt-4o-realtime-preview",
        "claude-opus-4-99",
        "claude-sonnet-4-5-plus",
        "gpt-oss:20b",
        "gpt-5.2-proo",
        "deepseek/deepseek-v4-flash:free",
        "Meta-Llama-3.1-8B-Instruct-Q4_K_M",
        "@cf/meta/llama-3.1-8b-instruct",
    ] {
        assert_eq!(known(name), (None, Encoding::O200kBase), "{name}");
    }
    assert_eq!(known("gpt-4-something"), (None, Encoding::Cl100kBase));
}

#[test]
fn an_alias_has_what_its_model_has_and_its_own_table_and_listing_win() {
    let models = models(
        "[[models]]\nmatch = 'our-*'\nalias_of = 'gpt-4'\n[[models]]\nmatch = 'gpt-4'\nencoding = 'o200k_harmony'\n\
         [[models]]\nmatch = 'our-small'\ncontext_window = 4096",
    );
    assert_eq!(said(&models, "our-gpt"), (Some(8192), Encoding::O200kHarmony));
    assert_eq!(said(&models, "azure/our-gpt"), (Some(8192), Encoding::O200kHarmony));
    assert_eq!(said(&models, "our-small").0, Some(4096));
    models.learn("gpt-4", 6000);
    assert_eq!(said(&models, "our-gpt").0, Some(6000));
    models.learn("our-gpt", 5000);
    assert_eq!((said(&models, "our-gpt").0, said(&models, "our-other").0), (Some(5000), Some(6000)));
}

#[test]
fn what_was_looked_up_is_remembered_up_to_a_limit_and_upstreams_are_heard_all_the_same() {
    let models = models("[[models]]\nmatch = 'mine*'\ncontext_window = 7000");
    for name in ["gpt-4o", "mine", "unknown"] {
        let first = models.find(name);
        assert_eq!(first, models.find(name), "{name}");
        models.learn(name, 5000);
        let (learned, is_told) = (models.find(name).window.unwrap(), name == "mine");
        assert_eq!((learned.0, learned.1 == Source::Settings), (if is_told { 7000 } else { 5000 }, is_told));
    }
    assert_eq!(models.found.len(), 3);
    models.find(&"x".repeat(MAX_FOUND_NAME + 1));
    assert_eq!(models.found.len(), 3);
    for n in 0..10 * MAX_FOUND {
        models.find(&format!("model-{n}"));
    }
    assert!((1..=MAX_FOUND).contains(&models.found.len()), "{}", models.found.len());
}

#[test]
fn well_known_models_are_known_under_all_their_names() {
    for (names, window) in [
        (
            &[
                "gpt-4o",
                "gpt-4o-2024-08-06",
                "openai/gpt-4o",
                "openai/gpt-4o:extended",
                "ft:gpt-4o-mini-2024-07-18:org::id",
            ][..],
            128_000,
        ),
        (&["gpt-4", "gpt-4-0613"], 8_192),
        (&["gpt-4-32k-0613"], 32_768),
        (&["gpt-4-turbo-2024-04-09", "gpt-4-1106-preview"], 128_000),
        (&["gpt-4.1-nano-2025-04-14"], 1_047_576),
        (&["gpt-5", "gpt-5-2025-08-07", "gpt-5.1"], 400_000),
        (&["gpt-5-chat-latest"], 128_000),
        (&["gpt-oss-120b", "openai/gpt-oss-20b"], 131_072),
        (
            &[
                "claude-sonnet-4-5-20250929",
                "claude-sonnet-4-5@20250929",
                "anthropic/claude-sonnet-4.5",
                "claude-3-5-sonnet-latest",
            ],
            200_000,
        ),
        (
            &[
                "claude-opus-4-6",
                "anthropic/claude-opus-4.7",
                "claude-opus-4-7-20260101",
                "us.anthropic.claude-opus-4-8-20260528-v1:0",
                "global.anthropic.claude-opus-4-6-v1",
                "vertex_ai/claude-sonnet-5@default",
                "claude-haiku-5-5",
                "claude-fable-5",
            ],
            1_000_000,
        ),
        (&["eu.anthropic.claude-3-7-sonnet-20250219-v1:0"], 200_000),
        (&["gpt-5.5", "openai/gpt-5.5-pro", "gpt-5.6-sol", "openrouter/openai/gpt-5.6-luna:nitro"], 1_050_000),
        (&["openai.gpt-5.6-luna"], 1_000_000),
        (&["openai.gpt-5.5", "us.openai.gpt-5.4"], 272_000),
        (&["openai.gpt-oss-120b-1:0"], 131_072),
        (&["Qwen/Qwen3.5-397B-A17B-FP8", "qwen3-5-9b"], 262_144),
        (&["accounts/fireworks/models/glm-4p7", "zai-org/glm-5-maas"], 200_000),
        (&["google/gemini-2.5-pro", "gemini-2.5-flash"], 1_048_576),
        (&["meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-8b-instant"], 131_072),
        (&["Qwen/Qwen3-Coder-480B-A35B-Instruct"], 262_144),
        (&["moonshotai/kimi-k2-thinking"], 262_144),
        (&["z-ai/glm-4.6"], 200_000),
    ] {
        for name in names {
            assert_eq!(known(name).0, Some(window), "{name}");
        }
    }
}

#[test]
fn the_settings_win_and_the_first_that_fits_counts() {
    let models = models(
        r#"
        [[models]]
        match = "gpt-4o-mini"
        context_window = 1000
        [[models]]
        match = "GPT-4o*"
        context_window = 2000
        encoding = "cl100k_base"
        [[models]]
        match = "your-model-??"
        context_window = 3000
        [[models]]
        match = "vendor/*"
        encoding = "o200k_harmony"
        "#,
    );
    models.learn("gpt-4o-mini", 5);
    let find = |name: &str| said(&models, name);
    // The second fills in what the first omits.
    assert_eq!(find("gpt-4o-mini"), (Some(1000), Encoding::Cl100kBase));
    assert_eq!(find("openai/gpt-4o-mini-2024-07-18"), (Some(1000), Encoding::Cl100kBase));
    assert_eq!(find("gpt-4o-audio"), (Some(2000), Encoding::Cl100kBase));
    assert_eq!(find("your-model-7b"), (Some(3000), Encoding::O200kBase));
    assert_eq!(find("vendor/gpt-4"), (Some(8192), Encoding::O200kHarmony));
    assert_eq!(find("gpt-4"), (Some(8192), Encoding::Cl100kBase));
}

#[test]
fn what_an_upstream_says_wins_over_the_table() {
    let models = Models::new(&[]);
    models.learn("gpt-4o", 64_000);
    models.learn("local", 4096);
    models.learn("local", 8192);
    models.learn("nothing", 0);
    let window = |name| said(&models, name).0;
    assert_eq!(window("gpt-4o"), Some(64_000));
    assert_eq!(window("local"), Some(8192));
    assert_eq!(window("nothing"), None);
    assert_eq!(window("gpt-4o-2024-08-06"), Some(128_000));
    // A variant that only routes is in no listing; a different model is.
    assert_eq!(window("local:nitro"), Some(8192));
    assert_eq!(window("local:free"), None);
}

#[test]
fn a_window_says_who_says_so() {
    let models = models("[[models]]\nmatch = \"mine*\"\ncontext_window = 5000\n");
    models.learn("theirs", 7000);
    models.learn("mine-1", 9000);
    let known = known("gpt-4o").0.unwrap();
    let window = |models: &Models, name| models.find(name).window.map(|(window, source)| (window, source.into()));
    for (name, expected) in [
        ("mine-1", Some((5000, "settings"))),
        ("openai/mine-2", Some((5000, "settings"))),
        ("theirs", Some((7000, "upstream"))),
        ("gpt-4o", Some((known, "built in"))),
        ("nobody-knows", None),
    ] {
        assert_eq!(window(&models, name), expected, "{name}");
    }
    // The settings of another model are not the source of this one.
    let models = self::models("[[models]]\nmatch = \"mine*\"\ncontext_window = 7000\n");
    models.learn("theirs", 7000);
    assert_eq!(window(&models, "theirs"), Some((7000, "upstream")));
}

#[test]
fn letter_case_does_not_matter_and_a_name_with_a_maker_fits_a_star() {
    for (pattern, name) in
        [("GPT-4o*", "gpt-4O-mini"), ("*", "openai/gpt-4o"), ("openai/*", "OpenAI/x/y"), ("O?-mini", "o3-mini")]
    {
        assert!(Pattern::new(pattern).fits(name), "{pattern} {name}");
    }
    assert!(!Pattern::new("gpt-4").fits("gpt-4o"));
}

#[test]
fn a_pattern_reads_as_it_was_written() {
    let settings: Settings = toml::from_str("match = \"My-Model-?*\"").unwrap();
    assert_eq!(settings.pattern.to_string(), "My-Model-?*");
}

#[test]
fn what_is_learned_is_bounded() {
    let models = Models::new(&[]);
    models.learned.store(Arc::new((0..MAX_LEARNED).map(|n| (n.to_string().into(), 1)).collect()));
    models.learn("one more", 7);
    models.learn("5", 7);
    assert_eq!(models.learned.load().len(), MAX_LEARNED);
    assert_eq!((said(&models, "one more").0, said(&models, "5").0), (None, Some(7)));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (text, wrong) in [
        ("match = \"a\"\ncontext_window = 0", "0 is out of range; allowed: 1 or more"),
        ("context_window = 5", "missing field `match`"),
        ("match = \"a\"\nencoding = \"o300k\"", "unknown variant `o300k`"),
        ("match = \"a\"\nwindow = 5", "unknown field `window`"),
    ] {
        let error = toml::from_str::<Settings>(text).unwrap_err().to_string();
        assert!(error.contains(wrong), "{text}: {error}");
    }
}

#[test]
fn every_line_of_the_table_can_be_reached() {
    assert!(TABLES.models.len() > 200);
    for (n, line) in TABLES.models.iter().enumerate() {
        let name = line.name.trim_end_matches('*');
        let found = known::find(name).unwrap();
        assert!(std::ptr::eq(found, line), "line {n}, {name}, is behind {}", found.name);
        assert_eq!(names::canonical(&names::bare(name)), name, "line {n} is no canonical name");
    }
}

// === listings ===

#[test]
fn windows_of_vllm() {
    let answer = br#"{"object":"list","data":[{"id":"Qwen/Qwen2.5-7B-Instruct","object":"model","created":1732000000,"owned_by":"vllm","root":"Qwen/Qwen2.5-7B-Instruct","parent":null,"max_model_len":32768,"permission":[{"id":"modelperm-1","object":"model_permission","allow_sampling":true}]},{"id":"adapter","object":"model","owned_by":"vllm","parent":"Qwen/Qwen2.5-7B-Instruct","max_model_len":null}]}"#;
    assert_eq!(windows_in(answer), [("Qwen/Qwen2.5-7B-Instruct".to_owned(), 32768)]);
}

#[test]
fn windows_of_openrouter() {
    let answer = br#"{"data":[{"id":"openai/gpt-4o","canonical_slug":"openai/gpt-4o","name":"OpenAI: GPT-4o","created":1715558400,"description":"\"o\" for omni","context_length":128000,"architecture":{"modality":"text+image->text","tokenizer":"GPT"},"pricing":{"prompt":"0.0000025"},"top_provider":{"context_length":128000,"max_completion_tokens":16384,"is_moderated":true},"per_request_limits":null},{"id":"z-ai/glm-4.6","context_length":202752,"top_provider":{"context_length":202752}}]}"#;
    assert_eq!(windows_in(answer), [("openai/gpt-4o".to_owned(), 128_000), ("z-ai/glm-4.6".to_owned(), 202_752)]);
}

#[test]
fn windows_of_llama_cpp_are_what_it_serves() {
    let answer = |meta: &str| {
        format!(
            r#"{{"models":[{{"name":"m.gguf","model":"m.gguf","type":"model","capabilities":["completion"]}}],"object":"list","data":[{{"id":"m.gguf","object":"model","created":1732000000,"owned_by":"llamacpp","meta":{meta}}}]}}"#
        )
    };
    let windows = |meta: &str| windows_in(answer(meta).as_bytes());
    assert_eq!(
        windows(r#"{"vocab_type":2,"n_vocab":128256,"n_ctx_train":131072,"n_embd":4096,"n_ctx":8192}"#),
        [("m.gguf".to_owned(), 8192)]
    );
    assert_eq!(windows(r#"{"vocab_type":2,"n_ctx_train":131072}"#), [], "it may be loaded with less");
    assert_eq!(windows("null"), []);
}

#[test]
fn models_whose_weights_are_published_may_be_served_locally() {
    for model in
        ["qwen3-coder-30b-a3b-instruct", "openai/gpt-oss-120b", "meta-llama/Llama-3.1-8B-Instruct", "gemma-3-4b-it"]
    {
        assert!(may_be_served_locally(model), "{model}");
    }
    for model in ["gpt-4o", "openai/gpt-5.1", "o3-mini", "claude-opus-5", "gemini-2.5-pro"] {
        assert!(!may_be_served_locally(model), "{model}");
    }
}

#[test]
fn local_servers_name_the_context_that_they_have_loaded() {
    let listing = |owner: &str| {
        format!(r#"{{"object":"list","data":[{{"id":"m","object":"model","owned_by":"{owner}"}},{{"id":"n"}}]}}"#)
    };
    let server = |owner: &str| LocalServer::of_listing(listing(owner).as_bytes());
    for (owner, path, answer, expected) in [
        (
            "library",
            "/api/ps",
            r#"{"models":[{"name":"m:latest","model":"m:latest","size":1,"context_length":8192},{"name":"old:7b"}]}"#,
            &[("m:latest", 8192), ("m", 8192)][..],
        ),
        (
            "llamacpp",
            "/props",
            r#"{"default_generation_settings":{"id":0,"n_ctx":16384,"params":{}},"total_slots":1}"#,
            &[("m", 16_384), ("n", 16_384)],
        ),
        (
            "organization_owner",
            "/api/v0/models",
            r#"{"object":"list","data":[{"id":"m","state":"loaded","max_context_length":131072,"loaded_context_length":4096},{"id":"n","state":"not-loaded","max_context_length":32768}]}"#,
            &[("m", 4096)],
        ),
    ] {
        let server = server(owner).unwrap();
        let expected: Vec<_> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        assert_eq!((server.path(), server.windows_in(answer.as_bytes())), (path, expected), "{owner}");
        for other in [&b"{}"[..], b"[]", b"\xff", br#"{"error":"Unexpected endpoint"}"#, br#"{"models":[7],"data":{}}"#]
        {
            assert_eq!(server.windows_in(other), []);
        }
        assert_eq!(server.path_of_one().is_some(), owner == "library");
        assert!(!server.serves_any_name(), "it lists two");
    }
    assert_eq!(server("vllm").or(server("openai")), None);
    let one = LocalServer::of_listing(br#"{"data":[{"id":"m.gguf","owned_by":"llamacpp"}]}"#).unwrap();
    assert!(one.serves_any_name());
    let show = br#"{"parameters":"temperature 0.7\nnum_ctx                        2048\n","model_info":{"llama.context_length":131072}}"#;
    assert_eq!(num_ctx(show), Some(2048));
    assert_eq!(num_ctx(br#"{"parameters":"temperature 1"}"#).or(num_ctx(b"{}")), None);
}

#[test]
fn windows_of_groq_mistral_together_and_anthropic() {
    let groq = br#"{"object":"list","data":[{"id":"llama-3.1-8b-instant","object":"model","owned_by":"Meta","active":true,"context_window":131072,"public_apps":null,"max_completion_tokens":131072}]}"#;
    assert_eq!(windows_in(groq), [("llama-3.1-8b-instant".to_owned(), 131_072)]);
    let mistral = br#"{"object":"list","data":[{"id":"mistral-small-2503","capabilities":{"completion_chat":true},"max_context_length":131072}]}"#;
    assert_eq!(windows_in(mistral), [("mistral-small-2503".to_owned(), 131_072)]);
    let together = br#"[{"id":"meta-llama/Llama-3-8b-chat-hf","type":"chat","context_length":8192},{"id":"black-forest-labs/FLUX","type":"image","context_length":0}]"#;
    assert_eq!(windows_in(together), [("meta-llama/Llama-3-8b-chat-hf".to_owned(), 8192)]);
    let anthropic = br#"{"data":[{"type":"model","id":"claude-opus-5","display_name":"Claude Opus 5","max_input_tokens":1000000,"max_output_tokens":128000}],"has_more":false}"#;
    assert_eq!(windows_in(anthropic), [("claude-opus-5".to_owned(), 1_000_000)]);
    let chatgpt = br#"{"models":[{"slug":"gpt-5.5","display_name":"GPT-5.5","context_window":272000,"max_context_window":272000,"visibility":"list"}]}"#;
    assert_eq!(windows_in(chatgpt), [("gpt-5.5".to_owned(), 272_000)]);
    // zed-industries/zed#20362.
    let copilot = br#"{"data":[{"capabilities":{"family":"gpt-3.5-turbo","limits":{"max_context_window_tokens":16384,"max_output_tokens":4096,"max_prompt_tokens":12288},"object":"model_capabilities"},"id":"gpt-3.5-turbo"}]}"#;
    assert_eq!(windows_in(copilot), [("gpt-3.5-turbo".to_owned(), 12288)]);
}

#[test]
fn answers_without_windows_say_nothing() {
    for answer in [
        &br#"{"object":"list","data":[{"id":"gpt-4o","object":"model","created":1715367049,"owned_by":"system"}]}"#[..],
        br#"{"error":{"message":"no such path"}}"#,
        br#"{"data":[{"id":7,"max_model_len":5},{"max_model_len":5},"x",null,{"id":"a","max_model_len":-1},{"id":"a","max_model_len":1.5}]}"#,
        b"<html>404</html>",
        b"\xff",
        b"",
    ] {
        assert_eq!(windows_in(answer), [], "{}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn the_file_has_no_keys_that_nobody_reads() {
    let file: BTreeMap<String, Vec<BTreeMap<String, toml::Value>>> = toml::from_str(TABLES_FILE).unwrap();
    let tables: Vec<_> = file.keys().collect();
    assert_eq!(tables, ["billed", "dollars", "hosts", "models", "prices", "reasoning"]);
    // Of the other tables, a line with another key is refused.
    let keys = file["reasoning"].iter().flat_map(BTreeMap::keys);
    assert!(
        keys.clone().all(|key| ["name", "sealed", "ended_turns"].contains(&&**key)),
        "{:?}",
        keys.collect::<Vec<_>>()
    );
}
