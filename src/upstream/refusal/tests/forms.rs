//! Refusals that ask for a form, with the place where each was seen.

use super::*;

const FORMS: &[(&str, &str, Form)] = &[
    (
        "vLLM; vllm-project/vllm#43995",
        r#"{"error":{"message":"Expecting ',' delimiter: line 1 column 54 (char 53)","type":"BadRequestError","param":null,"code":400}}"#,
        Form::Arguments,
    ),
    (
        "Groq; karthink/gptel#774",
        r#"{"error":{"message":"'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning' is unsupported)]","type":"invalid_request_error"}}"#,
        Form::NoReasoningFields,
    ),
    (
        "Moonshot; AstrBotDevs/AstrBot#7200",
        r#"{"error":{"message":"Invalid request: the message at position 8 with role 'assistant' must not be empty","type":"invalid_request_error"}}"#,
        Form::Filled,
    ),
    (
        "Bedrock, through a gateway; cline/cline#9213",
        r#"{"error":{"message":"undefined: The content field in the Message object at messages.45 is empty. Add a ContentBlock object to the content field and try again.","type":"AI_APICallError"}}"#,
        Form::Filled,
    ),
    (
        "Gemini; egoist/chatwise-releases#250",
        r#"{"error":{"code":400,"message":"* GenerateContentRequest.contents[1].parts: contents.parts must not be empty.\n","status":"INVALID_ARGUMENT"}}"#,
        Form::Filled,
    ),
    (
        "Vertex AI; Portkey-AI/gateway#462",
        r#"{"error":{"message":"vertex-ai error: Unable to submit request because it has an empty text parameter. Add a value to the parameter and try again.","type":"INVALID_ARGUMENT","param":null,"code":"400"}}"#,
        Form::Filled,
    ),
    (
        "Gemini; 54xzh/FLIT#69",
        r#"{"error":{"message":"* ***.contents[2].parts[1].data: required oneof field 'data' must have one initialized field\n","type":"upstream_error","param":"","code":400}}"#,
        Form::Filled,
    ),
    (
        "Hunyuan; MarkPDFdown/markpdfdown#14",
        r#"{"error":{"message":"messages 中 content 不能为空","type":"invalid_request_error","code":"1001"}}"#,
        Form::Filled,
    ),
    (
        "xAI; AstrBotDevs/AstrBot#6447",
        r#"{"code":"Client specified an invalid argument","error":"Invalid request content: Each message must have at least one content element."}"#,
        Form::TextsBesideCalls,
    ),
    (
        "xAI, older; langbot-app/LangBot#1205",
        r#"{"code":"Client specified an invalid argument","error":"An empty message was provided. Every message needs at least one non-empty content element."}"#,
        Form::TextsBesideCalls,
    ),
    (
        "DashScope; agentscope-ai/agentscope-java#1270",
        r#"{"error":{"message":"Input error. Field required: input.messages.2.content","type":"invalid_request_error"}}"#,
        Form::TextsBesideCalls,
    ),
    (
        "GLM; songquanpeng/one-api#1153",
        r#"{"error":{"code":"1214","message":"messages[2]:content和tool_calls 字段不能同时为空"}}"#,
        Form::TextsBesideCalls,
    ),
    (
        "DeepSeek; earendil-works/pi#3636",
        r#"{"error":{"message":"The `reasoning_content` in the thinking mode must be passed back to the API.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
        Form::ReasoningContent,
    ),
    (
        "DeepSeek, older; abhigyanpatwari/GitNexus#43",
        r#"{"error":{"message":"Missing `reasoning_content` field in the assistant message at message index 2. For more information, please refer to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls","type":"invalid_request_error"}}"#,
        Form::ReasoningContent,
    ),
    (
        "Moonshot; continuedev/continue#11600",
        r#"{"error":{"message":"thinking is enabled but reasoning_content is missing in assistant tool call message at index 2","type":"invalid_request_error"}}"#,
        Form::ReasoningContent,
    ),
    (
        "Groq; NousResearch/hermes-agent#11089",
        r#"{"error":{"message":"'messages.4' : for 'role:assistant' the following must be satisfied[('messages.4' : property 'reasoning_content' is unsupported)]","type":"invalid_request_error"}}"#,
        Form::NoReasoningFields,
    ),
    (
        "Cerebras; Kilo-Org/kilocode#10375",
        r#"{"message":"messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is unsupported","type":"invalid_request_error","param":"validation_error","code":"wrong_api_format"}"#,
        Form::NoReasoningFields,
    ),
    (
        "Mistral; charmbracelet/crush#1590",
        r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","messages",31,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted","input":"\n"}]},"type":"invalid_request_error"}"#,
        Form::NoReasoningFields,
    ),
    (
        "Mistral, with the list alone; zeroclaw-labs/zeroclaw#2693",
        r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",6,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted","input":null}]}"#,
        Form::NoReasoningFields,
    ),
    (
        "Gemini; vercel/ai#15550",
        r#"{"error":{"code":400,"message":"Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:Bash` , position 2.","status":"INVALID_ARGUMENT"}}"#,
        Form::SignedCalls,
    ),
    (
        "MiniMax; BigPizzaV3/CodexPlusPlus#267",
        r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, chat content has invalid message role: system (2013)","http_code":"400"}}"#,
        Form::LeadingSystem,
    ),
    (
        "MiniMax; QwenLM/qwen-code#11834",
        r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, function parameters is empty (2013)","http_code":"400"}}"#,
        Form::ToolParameters,
    ),
    (
        "Ollama; seen in a client's notes on it",
        r#"{"error":{"message":"invalid tool call arguments","type":"invalid_request_error","param":null,"code":null}}"#,
        Form::Arguments,
    ),
];

#[test]
fn forms_that_are_asked_for_are_classified() {
    for (seen, body, form) in FORMS {
        let classified = classify(body.as_bytes());
        assert!(matches!(classified, Some(Refusal::Form(of, _)) if of == *form), "{seen}: {classified:?}");
    }
}
