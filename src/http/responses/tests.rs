//! What the parser makes of the bodies that clients send to `/v1/responses`.

use serde_json::{Value, json};

use super::request::parse;
use crate::request::{Message, Request, Role, Shape, ToolChoice};

fn request(fields: Value) -> Request {
    let body = with(fields);
    parse(body.as_bytes(), "ha").unwrap_or_else(|error| panic!("{body}: {error}")).request
}

fn refusal(fields: Value) -> String {
    let body = with(fields);
    parse(body.as_bytes(), "ha").err().unwrap_or_else(|| panic!("{body} was taken")).to_string()
}

/// A question with `fields` beside it; those given win.
fn with(fields: Value) -> String {
    let mut body = json!({ "model": "house", "input": "hi" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

fn items(items: Value) -> Vec<Message> {
    request(json!({ "input": items })).messages
}

#[test]
fn instructions_stand_in_front_of_a_question() {
    let messages = request(json!({ "instructions": "Be brief." })).messages;
    assert_eq!(messages, [Message::text(Role::System, "Be brief."), Message::text(Role::User, "hi")]);
    assert_eq!(request(json!({ "instructions": null })).messages, [Message::text(Role::User, "hi")]);
}

/// As Home Assistant and the official client send a conversation back.
#[test]
fn what_the_assistant_thought_said_and_called_in_one_turn_is_one_message() {
    let messages = items(json!([
        { "role": "developer", "content": "Be brief." },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "on, please" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
          "content": [{ "type": "output_text", "text": "On it.", "annotations": [] }] },
        { "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "turn_on", "arguments": "{\"b\":1,\"a\":2}" },
        { "type": "function_call", "call_id": "call_2", "name": "live", "arguments": "" },
        { "type": "function_call_output", "call_id": "call_2", "output": "21 degrees" },
        { "type": "function_call_output", "call_id": "call_1", "output": [{ "type": "input_text", "text": "on" }] },
        { "role": "assistant", "content": "Done." },
        { "role": "user", "content": "thanks" },
    ]));
    let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
    use Role::{Assistant, Developer, Tool, User};
    assert_eq!(roles, [Developer, User, Assistant, Tool, Tool, Assistant, User]);
    let turn = &messages[2];
    assert_eq!((turn.content.as_str(), turn.reasoning.as_deref()), ("On it.", Some("hm")));
    let calls: Vec<_> = turn.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(calls, [("turn_on", "{\"b\":1,\"a\":2}"), ("live", "{}")]);
    let result = |at: usize| {
        let Message { content, name, tool_call_id, .. } = &messages[at];
        (content.as_str(), name.as_deref(), tool_call_id.as_deref())
    };
    assert_eq!(result(3), ("21 degrees", Some("live"), Some("call_2")));
    assert_eq!(result(4), ("on", Some("turn_on"), Some("call_1")));
    // Each answer after a result is a turn of its own, and so is one that follows another.
    assert_eq!(
        items(json!([{ "role": "assistant", "content": "a" }, { "role": "assistant", "content": "b" }])).len(),
        2
    );
}

#[test]
fn a_history_may_begin_with_a_result_whose_call_is_gone() {
    let messages = items(
        json!([{ "type": "function_call_output", "call_id": "gone", "output": "on" }, { "role": "user", "content": "?" }]),
    );
    assert_eq!((messages[0].role, messages[0].name.as_deref()), (Role::Tool, None));
}

#[test]
fn tools_are_those_of_a_chat() {
    let parameters = json!({ "type": "object", "properties": { "b": {}, "a": {} } });
    let flat =
        json!([{ "type": "function", "name": "live", "description": "d", "parameters": parameters, "strict": true }]);
    let nested =
        json!({ "type": "function", "function": { "name": "live", "description": "d", "parameters": parameters } });
    assert_eq!(request(json!({ "tools": flat })).tools, [nested.to_string()]);
    let refused = |tool: Value| refusal(json!({ "tools": [tool] }));
    assert!(refused(json!({ "type": "web_search" })).starts_with("tools[0].type: "));
    assert!(refused(json!({ "type": "function", "name": "no spaces" })).starts_with("tools[0].name: "));
}

#[test]
fn a_named_tool_stands_beside_its_type() {
    let choice = |choice: Value| request(json!({ "tool_choice": choice })).wanted.tool_choice;
    assert_eq!(choice(json!({ "type": "function", "name": "live" })), ToolChoice::Named("live".into()));
    assert_eq!([choice(json!("required")), choice(json!("none"))], [ToolChoice::Required, ToolChoice::None]);
    assert!(refusal(json!({ "tool_choice": { "type": "function", "name": "" } })).starts_with("tool_choice.name: "));
}

#[test]
fn a_format_has_its_schema_beside_its_type() {
    let shape = |format: Value| request(json!({ "text": { "format": format } })).wanted.shape;
    let schema = json!({ "type": "object", "properties": { "on": { "type": "boolean" } } });
    let format = json!({ "type": "json_schema", "name": "light", "strict": true, "schema": schema });
    assert_eq!(shape(format), Shape::Schema(schema.to_string()));
    assert_eq!([shape(json!({ "type": "json_object" })), shape(json!({ "type": "text" }))], [Shape::Json, Shape::Free]);
    let refused = refusal(json!({ "text": { "format": { "type": "json_schema", "name": "light" } } }));
    assert!(refused.starts_with("text.format.schema: "), "{refused}");
}

#[test]
fn limits_effort_and_probabilities_have_names_of_their_own() {
    let request = request(json!({
        "max_output_tokens": 30, "reasoning": { "effort": "low", "summary": "auto" }, "top_logprobs": 2, "user": "alice",
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "parallel_tool_calls": false,
        "prompt_cache_key": "house", "truncation": "auto", "service_tier": "flex", "stream_options": {},
    }));
    assert_eq!((request.max_tokens, request.n_logprobs), (Some(30), Some(2)));
    assert_eq!((request.wanted.thinking.effort.as_deref(), request.wanted.one_call), (Some("low"), true));
    assert_eq!(request.conversation.as_deref(), Some("alice"));
    assert!(refusal(json!({ "max_output_tokens": 0 })).starts_with("max_output_tokens: "));
}

#[test]
fn what_stands_before_a_breakpoint_is_marked() {
    let parts = json!([
        { "type": "input_text", "text": "long", "prompt_cache_breakpoint": { "mode": "explicit", "ttl": "30m" } },
        { "type": "input_text", "text": "question" },
    ]);
    let messages = items(json!([{ "role": "system", "content": parts }, { "role": "user", "content": "?" }]));
    assert_eq!((messages[0].content.as_str(), messages[0].n_marked_bytes), ("long\nquestion", 4));
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let refused = |input: Value, place: &str| {
        let refused = refusal(json!({ "input": input }));
        assert!(refused.starts_with(place), "{refused}");
    };
    refused(json!(5), "input: ");
    refused(json!([]), "input: ");
    refused(json!([{ "role": "robot", "content": "" }]), "input[0].role: ");
    refused(json!([{ "role": "user" }]), "input[0].content: ");
    refused(json!([{ "type": "computer_call" }]), "input[0].type: ");
    refused(json!([{ "role": "user", "content": [{ "type": "input_image" }] }]), "input[0].content[0].type: ");
    refused(json!([{ "type": "function_call", "call_id": "c", "arguments": "{}" }]), "input[0].name: ");
    refused(json!([{ "type": "function_call", "name": "a", "arguments": "[]" }]), "input[0].arguments: ");
    refused(json!([{ "type": "function_call_output", "call_id": "c" }]), "input[0].output: ");
}
