//! Refusals of real servers, with the place where each was seen.

use super::*;

mod events;
mod forms;

/// A refusal for length: where it was seen, its body, and its window, prompt and answer.
type OverflowCase = (&'static str, &'static str, [Option<usize>; 3]);

const OVERFLOWS: &[OverflowCase] = &[
    (
        "OpenAI; crewAIInc/crewAI-examples#121",
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        [Some(8192), Some(8227), None],
    ),
    (
        "OpenAI with functions; FoundationAgents/OpenManus#62",
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730 in the functions, and 800 in the completion). Please reduce the length of the messages, functions, or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        [Some(8192), Some(7413), Some(800)],
    ),
    (
        "Azure; Azure/azure-sdk-for-net#41892",
        r#"{"error":{"message":"This model's maximum context length is 32768 tokens. However, you requested 35969 tokens (9969 in the messages, 26000 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        [Some(32768), Some(9969), Some(26000)],
    ),
    (
        "Azure, newer; BerriAI/litellm#15968",
        r#"{"error":{"message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        [Some(272_000), Some(509_178), None],
    ),
    (
        "DeepSeek; evalstate/fast-agent#621",
        r#"{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
        [Some(131_072), Some(122_942), Some(8192)],
    ),
    (
        "vLLM to 0.10, fields at the top; ogx-ai/ogx#4534",
        r#"{"object":"error","message":"This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, 6048 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}"#,
        [Some(6048), Some(568), Some(6048)],
    ),
    (
        "vLLM 0.20; vllm-project/vllm#42474",
        r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your prompt contains at least 62466 input tokens, for a total of at least 128001 tokens.","type":"BadRequestError","param":null,"code":400}}"#,
        [Some(128_000), Some(62466), Some(65535)],
    ),
    (
        "vLLM, images counted; Gabesarch/grounded-rl#16",
        r#"{"object":"error","message":"The decoder prompt (length 10127) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.","type":"BadRequestError","param":null,"code":400}"#,
        [Some(8192), None, None],
    ),
    (
        "vLLM 0.4, nothing left for the answer; vllm-project/vllm#4667",
        r#"{"object":"error","message":"max_tokens must be at least 1, got -186.","type":"BadRequestError","param":null,"code":400}"#,
        [None, None, None],
    ),
    (
        "llama.cpp; recorded from llama-server",
        r#"{"error":{"code":400,"message":"request (12024 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":12024,"n_ctx":8192}}"#,
        [Some(8192), Some(12024), None],
    ),
    (
        "llama.cpp, older: no numbers; seen in clients' tests",
        r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"invalid_request_error"}}"#,
        [None, None, None],
    ),
    (
        "OpenRouter; seen in clients' tests",
        r#"{"error":{"message":"This endpoint's maximum context length is 128000 tokens. However, you requested about 175410 tokens (174162 of text input, 1248 of tool input). Please reduce the length of either one.","code":400,"metadata":{"provider_name":null}}}"#,
        [Some(128_000), Some(175_410), None],
    ),
    (
        "OpenRouter, with what its provider says; ai-christianson/RA.Aid#41",
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"object\":\"error\",\"message\":\"This model's maximum context length is 16000 tokens. However, you requested 17165 tokens (13069 in the messages, 4096 in the completion).\",\"code\":400}","provider_name":"DeepInfra"}}}"#,
        [Some(16000), Some(13069), Some(4096)],
    ),
    (
        "Anthropic; seen in clients' tests",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}"#,
        [Some(200_000), Some(213_462), None],
    ),
    (
        "Anthropic, with the answer; continuedev/continue#6080",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try again"}}"#,
        [Some(200_000), Some(199_759), Some(8192)],
    ),
    (
        "Ollama; seen in clients' tests. It says by how much, and not what it takes",
        r#"{"error":{"message":"prompt too long; exceeded max context length by 1200 tokens","type":"api_error","param":null,"code":null}}"#,
        [None, None, None],
    ),
    (
        "Ollama, native; nano-step/nano-brain#208",
        r#"{"error":"the input length exceeds the context length"}"#,
        [None, None, None],
    ),
    (
        "SGLang; QwenLM/Qwen3#1321",
        r#"{"object":"error","message":"The input (61709 tokens) is longer than the model's context length (40960 tokens).","type":"BadRequestError","param":null,"code":400}"#,
        [Some(40960), Some(61709), None],
    ),
    (
        "SGLang, with the answer; anomalyco/opencode#25292",
        r#"{"object":"error","message":"Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a total of 202941 tokens: 170941 tokens from the input messages and 32000 tokens for the completion. Please reduce the number of tokens.","type":"BadRequest","param":null,"code":400}"#,
        [Some(202_752), Some(170_941), Some(32000)],
    ),
    (
        "Gemini's compatible API, in a list; google-gemini/gemini-cli#6678",
        r#"[{"error":{"code":400,"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
        [Some(1_048_576), Some(1_200_293), None],
    ),
    (
        "xAI, error as text; seen in clients' tests",
        r#"{"code":"invalid-argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}"#,
        [Some(131_072), Some(537_812), None],
    ),
    (
        "LiteLLM, with its provider's JSON in its words; seen in clients' tests",
        r#"{"error":{"message":"litellm.BadRequestError: XaiException - {\"code\":\"invalid-argument\",\"error\":\"This model's maximum prompt length is 500000 but the request contains 637815 tokens.\"}","type":null,"param":null,"code":"400"}}"#,
        [Some(500_000), Some(637_815), None],
    ),
    (
        "GitHub Models, 413; eslint/tsc-meetings#593",
        r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens.","details":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#,
        [Some(8000), None, None],
    ),
    (
        "Mistral; seen in clients' tests",
        r#"{"object":"error","message":"Prompt contains 240000 tokens, too large for model with 128000 maximum context length","type":"invalid_request_error"}"#,
        [Some(128_000), None, None],
    ),
    (
        "Moonshot; seen in clients' tests",
        r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)","type":"invalid_request_error"}}"#,
        [Some(262_144), Some(300_000), None],
    ),
    (
        "DashScope; seen in clients' tests",
        r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]","type":"invalid_request_error","param":null,"code":"invalid_parameter_error"}}"#,
        [Some(98304), None, None],
    ),
    (
        "Groq; seen in clients' tests",
        r#"{"error":{"message":"Please reduce the length of the messages or completion."}}"#,
        [None, None, None],
    ),
    (
        "LM Studio; seen in clients' tests",
        r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 9000>= n_ctx: 4096). Try to load the model with a larger context length."}"#,
        [None, None, None],
    ),
    (
        "GLM; mangowhoiscloud/geode#668",
        r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#,
        [None, None, None],
    ),
    (
        "vLLM, newer; seen in clients' tests",
        r#"{"error":{"message":"You passed 99073 input tokens and requested 32000 output tokens. However, the model's context length is only 131072 tokens, resulting in a maximum input length of 99072 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=99073)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        [Some(131_072), Some(99_073), Some(32000)],
    ),
    (
        "Fireworks; fw-ai/cookbook#134",
        r#"{"error":{"object":"error","type":"invalid_request_error","message":"The prompt is too long: 40177, model maximum context length: 32767"}}"#,
        [Some(32767), Some(40177), None],
    ),
    (
        "Cloudflare, 413; seen in clients' tests",
        r#"{"errors":[{"message":"AiError: The estimated number of input and maximum output tokens (35000) exceeded this model context window limit (24000).","code":5021}],"success":false,"result":{},"messages":[]}"#,
        [Some(24000), None, None],
    ),
    (
        "Cerebras; anomalyco/opencode#1551",
        r#"{"message":"Please reduce the length of the messages or completion. Current length is 69553 while limit is 65536","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}"#,
        [Some(65536), Some(69553), None],
    ),
    (
        "DeepInfra; langchain-ai/langchain#25671",
        r#"{"error":{"message":"Requested input length 99009 exceeds maximum input length 8192"}}"#,
        [Some(8192), Some(99009), None],
    ),
    (
        "Volcengine Ark; esengine/DeepSeek-Reasonix#9696",
        r#"{"error":{"code":"InvalidParameter","message":"Input length 1048826 exceeds the maximum length 1048566. Request id: 0217","param":"","type":"BadRequest"}}"#,
        [Some(1_048_566), Some(1_048_826), None],
    ),
    (
        "Volcengine Ark, of images; seen in clients' tests",
        r#"{"error":{"code":"InvalidParameter","message":"Total tokens of image and text exceed max message tokens. Request id: 0217","param":"","type":"BadRequest"}}"#,
        [None, None, None],
    ),
    (
        "SiliconFlow; langgenius/dify#19394",
        r#"{"code":20015,"message":"length of prompt_tokens (57535) must be less than max_seq_len (32768).","data":null}"#,
        [Some(32768), Some(57535), None],
    ),
    (
        "LM Studio, newer; lmstudio-ai/lmstudio-bug-tracker#546",
        r#"{"error":"Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of only 32768 tokens, which is not enough."}"#,
        [Some(32768), Some(111_490), None],
    ),
    ("LM Studio; seen in clients' tests", r#"{"error":"Context size has been exceeded."}"#, [None, None, None]),
    (
        "GLM; anomalyco/opencode#27629",
        r#"{"error":{"code":"1210","message":"tokens in request more than max tokens allowed"}}"#,
        [None, None, None],
    ),
    ("GLM; earendil-works/pi#9805", r#"{"error":{"code":"1261","message":"Prompt too long"}}"#, [None, None, None]),
    ("GLM; seen in clients' tests", r#"{"error":{"code":"1261","message":"Prompt 超长"}}"#, [None, None, None]),
    (
        "mlx-serve; ddalcu/mlx-serve#66",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Prompt exceeds maximum context length"}}"#,
        [None, None, None],
    ),
    (
        "Kimi Code, in bytes; MoonshotAI/kimi-code#1862",
        r#"{"error":{"message":"total message size 2100954 exceeds limit 2097152","type":"invalid_request_error"}}"#,
        [None, None, None],
    ),
    (
        "OpenAI Responses; recorded, crmne/ruby_llm",
        r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
        [None, None, None],
    ),
    (
        "ChatGPT's backend has its own shape",
        r#"{"detail":"Your input exceeds the context window of this model. Please adjust your input and try again."}"#,
        [None, None, None],
    ),
];

/// Refusals for the sequence of messages: where they were seen, and their bodies.
const SEQUENCES: &[(&str, &str)] = &[
    (
        "OpenAI; miurla/morphic#136",
        r#"{"error":{"message":"Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.","type":"invalid_request_error","param":"messages.[3].role","code":null}}"#,
    ),
    (
        "OpenAI and DeepSeek; agno-agi/agno#3105",
        r#"{"error":{"message":"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. (insufficient tool messages following tool_calls message)","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
    ),
    (
        "DashScope; QwenLM/qwen-code#606",
        r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: An assistant message with \"tool_calls\" must be followed by tool messages responding to each \"tool_call_id\". The following tool_call_ids did not have response messages: message[532].role","type":"invalid_request_error","param":null,"code":"invalid_parameter_error"}}"#,
    ),
    (
        "Mistral; mistralai/mistral-common, src/mistral_common/protocol/instruct/validator.py",
        r#"{"object":"error","message":"Not the same number of function calls and responses","type":"invalid_request_error","param":null,"code":"3230"}"#,
    ),
    (
        "Mistral; mistralai/mistral-common, src/mistral_common/protocol/instruct/validator.py",
        r#"{"object":"error","message":"Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant","type":"invalid_request_error","param":null,"code":"3230"}"#,
    ),
    (
        "Anthropic; seen in clients' documents",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_01"}}"#,
    ),
    (
        "GLM; continuedev/continue#13259",
        r#"{"error":{"code":"1214","message":"The messages parameter is illegal. Please check the documentation."}}"#,
    ),
    ("GLM; lobehub/lobehub#11408", r#"{"error":{"code":"1214","message":"messages 参数非法。请检查文档。"}}"#),
    (
        "llama.cpp; recorded from llama-server",
        r#"{"error":{"code":400,"message":"Expected 'messages' to be an array","type":"invalid_request_error"}}"#,
    ),
    (
        "Anthropic, fast mode; Wei-Shaw/claude-relay-service#1003",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Fast mode is currently available in research preview in Claude Code. It is not yet available via API."}}"#,
    ),
    (
        "Anthropic, a subscription; griffinmartin/opencode-claude-auth#145",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Third-party apps now draw from your extra usage, not your plan limits."}}"#,
    ),
    (
        "Anthropic, a subscription; griffinmartin/opencode-claude-auth#147",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"You're out of extra usage. Add more at claude.ai/settings/usage and keep going."}}"#,
    ),
    (
        "Anthropic, a subscription; as clients' documents have it",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"This credential is only authorized for use with Claude Code and cannot be used for other API requests."}}"#,
    ),
];

/// Refusals for the sequence of items in OpenAI Responses. Their parameter is `input`.
const ITEM_SEQUENCES: &[&str] = &[
    "No tool output found for function call call_1.",
    "No tool output found for custom tool call call_1.",
    "No tool output found for apply patch call call_1.",
    "No tool call found for function call output with call_id call_1.",
];

/// Refusals for thinking, as Anthropic's documentation and reports of its clients have them.
const REASONING: &[&str] = &[
    "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.",
    "messages.1.content.0: The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`. When `thinking` is enabled, a final `assistant` message must start with a thinking block",
    "The encrypted content gAAA could not be verified. Reason: Encrypted content could not be decrypted or parsed.",
];

#[test]
fn refusals_for_reasoning_are_recognised() {
    for message in REASONING {
        let error =
            serde_json::json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
        assert_eq!(classify(error.to_string().as_bytes()), Some(Refusal::Reasoning), "{message}");
    }
}

/// Refusals for tools, or for the choice of one.
const TOOLS: &[(&str, &str)] = &[
    (
        "Ollama; seen in clients' tests",
        r#"{"error":{"message":"registry.ollama.ai/library/gemma:2b does not support tools","type":"api_error","param":null,"code":null}}"#,
    ),
    (
        "vLLM; seen in clients' tests",
        r#"{"object":"error","message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}"#,
    ),
    (
        "OpenAI, of one tool",
        r#"{"error":{"message":"Invalid schema for function 'read': a tool call needs an object","type":"invalid_request_error","param":"tools[0].function.parameters","code":"invalid_function_parameters"}}"#,
    ),
    ("a field alone", r#"{"error":{"message":"not supported","param":"tool_choice"}}"#),
];

/// Refusals that no other form of the request would avoid.
const OTHERS: &[(&str, &str)] = &[
    (
        "llama.cpp, not JSON; recorded from llama-server",
        r#"{"error":{"code":400,"message":"[json.exception.parse_error.101] parse error at line 1, column 40: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal","type":"invalid_request_error"}}"#,
    ),
    (
        "Groq, 413: tokens a minute; seen in clients' tests",
        r#"{"error":{"message":"Request too large for model `llama-3.3-70b-versatile` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}"#,
    ),
    (
        "OpenAI: the answer is too long, not the conversation; diffbot/code-gpt-docs#284",
        r#"{"error":{"message":"max_tokens is too large: 6000. This model supports at most 4096 completion tokens, whereas you provided 6000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}"#,
    ),
    (
        "Anthropic: the same; ChatGPTNextWeb/NextChat#4964",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for claude-3-5-sonnet-20240620"}}"#,
    ),
    (
        "Azure: content filter",
        r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400}}"#,
    ),
    (
        "what the client sent, in a field of its own",
        r#"{"error":{"message":"Unsupported value: temperature","type":"invalid_request_error","param":"temperature","input":"This model's maximum context length is 10 tokens; tool_calls must alternate"}}"#,
    ),
    (
        "what the client sent, quoted",
        r#"{"error":{"message":"1 validation error: temperature: 'This model's maximum context length is 100 tokens' is not a number","type":"BadRequestError","param":"temperature"}}"#,
    ),
    (
        "what the client sent, in a list",
        r#"{"detail":[{"loc":["body","n"],"msg":"not a number","input":"prompt is too long: 9 tokens > 5 maximum"}]}"#,
    ),
    (
        "OpenAI Responses: an answer that is gone",
        r#"{"error":{"message":"Previous response with id 'resp_1' not found.","type":"invalid_request_error","param":"previous_response_id","code":"previous_response_not_found"}}"#,
    ),
    (
        "OpenAI Responses: a value of an item",
        r#"{"error":{"message":"Invalid 'input[3].content[0].image_url'. Expected a valid URL, but got a value with an invalid format.","type":"invalid_request_error","param":"input[3].content[0].image_url","code":"invalid_value"}}"#,
    ),
    ("a page of a proxy in between", "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    ("nothing", ""),
    ("no object", "[1,2]"),
];

#[test]
fn overflows_are_classified_with_their_sizes() {
    for (seen, body, [window, prompt, answer]) in OVERFLOWS {
        let expected = Refusal::Overflow(TokenCounts { window: *window, prompt: *prompt, answer: *answer });
        assert_eq!(classify(body.as_bytes()), Some(expected), "{seen}: {body}");
    }
}

#[test]
fn refused_sequences_are_classified() {
    for (seen, body) in SEQUENCES {
        assert_eq!(classify(body.as_bytes()), Some(Refusal::Sequence), "{seen}: {body}");
    }
}

#[test]
fn refused_sequences_of_items_are_classified() {
    let alone = "Item 'rs_1' of type 'reasoning' was provided without its required following item.";
    let without = "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.";
    let classified = |message: &str| {
        let message = serde_json::to_string(message).unwrap();
        let error = format!(r#"{{"message":{message},"type":"invalid_request_error","param":"input","code":null}}"#);
        classify(format!(r#"{{"error":{error}}}"#).as_bytes())
    };
    for message in ITEM_SEQUENCES {
        assert_eq!(classified(message), Some(Refusal::Sequence), "{message}");
    }
    assert_eq!(classified(alone), Some(Refusal::Reasoning));
    assert!(
        matches!(classified(without), Some(Refusal::Form(Form::NoItemIds, [words])) if words == "without its required 'reasoning' item")
    );
}

/// Of anthropics/claude-code#11181, #4778, #16173 and #19822.
#[test]
fn images_that_are_too_large_or_too_many_ask_for_a_form() {
    let classified = |what: &str| {
        let message = format!("messages.44.content.1.image.source.base64.data: {what}");
        classify(
            format!(r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"{message}"}}}}"#)
                .as_bytes(),
        )
    };
    for what in [
        "image exceeds 5 MB maximum: 11641928 bytes > 5242880 bytes",
        "At least one of the image dimensions exceed max allowed size: 8000 pixels",
    ] {
        assert!(matches!(classified(what), Some(Refusal::Form(Form::SmallImages, _))), "{what}");
    }
    for what in [
        "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
        "Too much media: 0 document pages + 102 images > 100",
    ] {
        assert!(matches!(classified(what), Some(Refusal::Form(Form::FewImages, _))), "{what}");
    }
}

#[test]
fn refused_tools_are_classified() {
    for (seen, body) in TOOLS {
        assert_eq!(classify(body.as_bytes()), Some(Refusal::Tools), "{seen}: {body}");
    }
}

#[test]
fn other_refusals_are_not_classified() {
    for (seen, body) in OTHERS {
        assert_eq!(classify(body.as_bytes()), None, "{seen}: {body}");
    }
}

#[test]
fn numbers_are_extracted_and_quotes_removed() {
    assert_eq!(numbered("a1,048,576 (12), 7."), ("a# (#), #.".to_owned(), vec![1_048_576, 12, 7]));
    assert_eq!(unquoted("model's \"a 'b' c\" is 'd' isn't"), "model's  is  isn't");
    assert_eq!(unquoted("an 'open one"), "an 'open one");
}

#[test]
fn an_implausible_window_is_ignored() {
    for n in ["0", "3", "99999999999999999999999"] {
        let body = format!(r#"{{"error":{{"message":"maximum context length is {n} tokens"}}}}"#);
        assert_eq!(classify(body.as_bytes()), Some(Refusal::Overflow(TokenCounts::default())), "{n}");
    }
}

#[test]
fn hostile_refusals_are_read_in_bounded_time() {
    let deep = format!("{}1{}", r#"{"error":"#.repeat(5000), "}".repeat(5000));
    let quotes = format!(r#"{{"error":"{}"}}"#, " '".repeat(16000));
    let open = format!(r#"{{"error":"{}"}}"#, " 'a".repeat(16000));
    let numbers = format!(r#"{{"error":"{}"}}"#, "1 ".repeat(32000));
    let nested = format!(r#"{{"error":"{}"}}"#, r#"{\""#.repeat(16000));
    for body in [deep, quotes, open, numbers, nested] {
        assert_eq!(classify(body.as_bytes()), None);
    }
}
