//! A refusal for each form in each dialect that has it.

use serde_json::{Value, json};

use super::{CHAT, Case, GEMINI, MESSAGES, RESPONSES, call, chat, image, marked, result, user};

/// Each form in each dialect that has it. The refusals are those that `upstream/refusal.rs` names with their sources.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn cases() -> Vec<Case> {
    let calls = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
    let broken = chat(&[user("Go."), calls(json!([call("c1", "{\"command\": \"ls")])), result("c1"), user("On.")]);
    let use_of = |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
    let said = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "done"});
    vec![
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: The \"function.arguments\" parameter of the code model must be in JSON format.","type":"invalid_request_error","param":null,"code":"invalid_parameter_error"}}"#,
            body: broken.clone(),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        Case {
            path: CHAT,
            refusal: r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, invalid function arguments json string, tool_call_id: c1 (2013)","http_code":"400"}}"#,
            body: broken,
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        Case {
            path: CHAT,
            refusal: r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, function parameters is empty (2013)","http_code":"400"}}"#,
            body: json!({"model": "MiniMax-M3", "messages": [user("Go.")], "tools": [
                {"type": "function", "function": {"name": "list"}},
                {"type": "web_search"},
                {"type": "function", "function": {"name": "whole", "parameters": {"type": "object", "properties": {"n": {}}}}},
            ]}),
            is_right: |body| {
                let tools = body["tools"].as_array().unwrap();
                tools[0]["function"]["parameters"] == json!({"type": "object", "properties": {}})
                    && tools[1] == json!({"type": "web_search"})
                    && tools[2]["function"]["parameters"]["properties"]["n"].is_object()
            },
        },
        // As long as what takes its place.
        Case {
            path: CHAT,
            refusal: r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, invalid function arguments json string, tool_call_id: c1 (2013)","http_code":"400"}}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "[]")])), result("c1"), user("On.")]),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object instead.","type":"invalid_request_error","param":"messages[1].tool_calls[0].function.arguments","code":"invalid_type"}}"#,
            body: chat(&[
                user("Go."),
                calls(json!([{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {"n": 1}}}])),
                result("c1"),
                user("On."),
            ]),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{\"n\":1}",
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0.tool_use.input: Input should be a valid dictionary"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": "{\"n\":1}"}]},
                {"role": "user", "content": [said("toolu_1")]},
            ]}),
            is_right: |body| body["messages"][1]["content"][0]["input"] == json!({"n": 1}),
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.","type":"invalid_request_error","param":"messages[1].tool_calls","code":"empty_array"}}"#,
            body: chat(&[user("Go."), json!({"role": "assistant", "content": "Yes.", "tool_calls": []}), user("On.")]),
            is_right: |body| body["messages"][1]["tool_calls"].is_null() && body["messages"][1]["content"] == "Yes.",
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [{"type": "text", "text": ""}]},
                {"role": "user", "content": [{"type": "text", "text": "On."}, {"type": "text", "text": ""}]},
            ]}),
            is_right: |body| {
                let text = |message: usize, part: usize| &body["messages"][message]["content"][part]["text"];
                text(1, 0) == "(empty)" && text(2, 0) == "On." && text(2, 1) == "(empty)"
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3.content.0: `tool_use` ids must be unique"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("toolu_1")]},
                {"role": "user", "content": [said("toolu_1")]},
                {"role": "assistant", "content": [use_of("toolu_1")]},
                {"role": "user", "content": [said("toolu_1")]},
            ]}),
            is_right: |body| {
                let message = |n: usize| &body["messages"][n]["content"][0];
                message(1)["id"] == "toolu_1"
                    && message(2)["tool_use_id"] == "toolu_1"
                    && message(3)["id"] == "toolu_1_2"
                    && message(4)["tool_use_id"] == "toolu_1_2"
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.1: `tool_use` ids must be unique"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("toolu_1"), use_of("toolu_1")]},
                {"role": "user", "content": [said("toolu_1")]},
            ]}),
            is_right: |body| {
                let block = |message: usize, n: usize| &body["messages"][message]["content"][n];
                block(1, 1)["id"] == "toolu_1_2" && block(2, 1)["tool_use_id"] == "toolu_1_2"
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid parameter: Duplicate value for 'tool_call_id' of 'c', in messages[2] and messages[3].","type":"invalid_request_error","param":"messages.[3].tool_call_id","code":null}}"#,
            body: chat(&[
                user("Go."),
                calls(json!([call("c", "{}"), call("c", "{}")])),
                result("c"),
                result("c"),
                user("On."),
            ]),
            is_right: |body| {
                body["messages"][1]["tool_calls"][1]["id"] == "c_2" && body["messages"][3]["tool_call_id"] == "c_2"
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"code":400,"message":"Error: Jinja Exception: System message must be at the beginning.","type":"invalid_request_error"}}"#,
            body: chat(&[
                json!({"role": "system", "content": "Be brief."}),
                user("Go."),
                json!({"role": "system", "content": "Stop at three."}),
            ]),
            is_right: |body| body["messages"][0]["role"] == "system" && body["messages"][2]["role"] == "user",
        },
        Case {
            path: CHAT,
            // llama.cpp, of a template of Mistral's (sipeed/picoclaw#207).
            refusal: r#"{"error":{"code":500,"message":"\n------------\nWhile executing CallExpression at line 47, column 32 in source:\n{{- raise_exception('After\nError: Jinja Exception: After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.","type":"server_error"}}"#,
            body: chat(&[user("Go."), user("On.")]),
            is_right: |body| body["messages"][1]["role"] == "assistant",
        },
        Case {
            path: CHAT,
            refusal: r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order","param":null,"code":"3230"}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "{}")])), result("c1"), user("Stop."), user("Now on.")]),
            is_right: |body| {
                let roles: Vec<_> =
                    body["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
                roles == ["user", "assistant", "tool", "assistant", "user", "user"]
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order","param":null,"code":"3230"}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "{}"), call("c2", "{}")])), result("c1"), user("Stop.")]),
            is_right: |body| {
                let roles: Vec<_> =
                    body["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
                roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
            },
        },
        Case {
            path: CHAT,
            refusal: r#"[{"error":{"code":400,"message":"* GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty.\n","status":"INVALID_ARGUMENT"}}]"#,
            body: chat(&[
                user("Go."),
                calls(json!([call("c1", "{}"), call("c2", "{}"), call("c3", "{}")])),
                result("c1"),
                json!({"role": "tool", "name": "", "tool_call_id": "c2", "content": "done"}),
                user("On."),
            ]),
            is_right: |body| {
                let messages = body["messages"].as_array().unwrap();
                messages.len() == 6 && messages[2..5].iter().all(|result| result["name"] == "bash")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"A maximum of 4 blocks with cache_control may be provided. Found 6."}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "system": [marked("s")], "messages": [
                {"role": "user", "content": [marked("Go."), marked("Please.")]},
                {"role": "assistant", "content": [marked("The text \"cache_control\": is none.")]},
                {"role": "user", "content": [marked("On."), marked("Now.")]},
            ]}),
            is_right: |body| {
                let marks = |at: &Value| at.to_string().matches("\"cache_control\":{").count();
                let messages = &body["messages"];
                [marks(&body["system"]), marks(&messages[0]), marks(&messages[1]), marks(&messages[2])] == [1, 0, 1, 2]
                    && messages[0]["content"]
                        == json!([{"type": "text", "text": "Go."}, {"type": "text", "text": "Please."}])
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.content.0.tool_result: all content must be type 'text' if 'is_error' is true"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("a")]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [
                    {"type": "text", "text": "It failed so:"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                ]}]},
            ]}),
            is_right: |body| {
                let content = body["messages"][2]["content"][0]["content"].as_array().unwrap();
                content.len() == 2 && content.iter().all(|part| part["type"] == "text")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: unexpected `tool_use_id` found in `advisor_tool_result` blocks: srvtoolu_1. Each `advisor_tool_result` block must have a corresponding `server_tool_use` block before it."}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [
                    {"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                    {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": []},
                    {"type": "server_tool_use", "id": "srvtoolu_3", "name": "web_search", "input": {}},
                    {"type": "text", "text": "Yes."},
                ]},
                user("On."),
            ]}),
            is_right: |body| {
                let content = body["messages"][1]["content"].as_array().unwrap();
                let types: Vec<_> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
                types == ["text", "server_tool_use", "web_search_tool_result", "text", "text"]
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.0.content.2.image.source.base64: image exceeds 5 MB maximum: 6710888 bytes > 5242880 bytes"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look."}, image(64, 600), image(64, 5_033_166)]},
            ]}),
            is_right: |body| {
                let content = &body["messages"][0]["content"];
                let words = content[2]["text"].as_str().unwrap_or_default();
                content[1] == image(64, 600)
                    && words.starts_with("[Cleared: image/png of 5033166 bytes, larger than the API accepts.")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("a")]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
                    image(8000, 600), image(8001, 600),
                ]}]},
            ]}),
            is_right: |body| {
                let content = &body["messages"][2]["content"][0]["content"];
                content[0] == image(8000, 600) && content[1]["type"] == "text"
            },
        },
        Case {
            path: RESPONSES,
            refusal: r#"{"error":{"message":"Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.","type":"invalid_request_error","param":"input","code":null}}"#,
            body: json!({"model": "gpt-5.5", "input": [
                user("Go."),
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "done"},
                {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAx"},
                {"type": "message", "id": "msg_2", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
                user("On."),
            ]}),
            is_right: |body| body["input"][1].get("id").is_none() && body["input"][4]["id"] == "msg_2",
        },
        Case {
            path: RESPONSES,
            refusal: r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#,
            body: json!({"model": "gpt-5.5", "store": false, "input": [
                user("Go."),
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAx"},
                {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
                user("On."),
            ]}),
            is_right: |body| {
                let items = body["input"].as_array().unwrap();
                items.len() == 3 && items.iter().all(|item| item["type"] != "reasoning" && item.get("id").is_none())
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"code":"Client specified an invalid argument","error":"Invalid request content: Each message must have at least one content element."}"#,
            body: chat(&[
                user("Go."),
                calls(json!([call("c1", "{}")])),
                result("c1"),
                json!({"role": "assistant", "tool_calls": [call("c2", "{}")]}),
                result("c2"),
            ]),
            is_right: |body| [1, 3].iter().all(|n| body["messages"][n]["content"] == "(empty)"),
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"The `reasoning_content` in the thinking mode must be passed back to the API.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
            body: chat(&[
                user("Go."),
                json!({"role": "assistant", "content": "Yes.", "reasoning_content": "Whether to go."}),
                user("On."),
                calls(json!([call("c1", "{}")])),
                result("c1"),
            ]),
            is_right: |body| {
                let reasoning = |n: usize| &body["messages"][n]["reasoning_content"];
                reasoning(1) == "Whether to go." && reasoning(3) == " " && reasoning(2).is_null()
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","messages",1,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted","input":"Whether to go."}]},"type":"invalid_request_error"}"#,
            body: chat(&[
                user("Go."),
                json!({"role": "assistant", "reasoning_content": "Whether to go.", "content": "Yes.", "reasoning": "So."}),
                user("On."),
            ]),
            is_right: |body| body["messages"][1] == json!({"role": "assistant", "content": "Yes."}),
        },
        Case {
            path: GEMINI,
            refusal: r#"{"error":{"code":400,"message":"Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:Bash` , position 2.","status":"INVALID_ARGUMENT"}}"#,
            body: {
                let call = json!({"functionCall": {"name": "Bash", "args": {}}});
                let result = json!({"functionResponse": {"name": "Bash", "response": {"output": "done"}}});
                json!({"contents": [
                    {"role": "user", "parts": [{"text": "Go."}]},
                    {"role": "model", "parts": [call, call]},
                    {"role": "user", "parts": [result, result]},
                ]})
            },
            is_right: |body| {
                let signature = |part: usize| &body["contents"][1]["parts"][part]["thoughtSignature"];
                signature(0) == "skip_thought_signature_validator" && signature(1).is_null()
            },
        },
        Case {
            path: GEMINI,
            refusal: r#"{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}"#,
            body: json!({"contents": [
                {"role": "user", "parts": [{"text": "Go."}]},
                {"role": "model", "parts": [{"text": "I go."}, {"functionCall": {"name": "Bash", "args": {}}, "thoughtSignature": "b3RoZXI="}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "Bash", "response": {"output": "done"}}}]},
            ]}),
            is_right: |body| body["contents"][1]["parts"][1]["thoughtSignature"] == "skip_thought_signature_validator",
        },
    ]
}
