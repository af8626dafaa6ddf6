//! What the parser makes of the bodies that Anthropic's clients send, Claude Code's among them.

use serde_json::{Value, json};

use super::request::{Question, Terms, parse, parse_counted};
use crate::request::{Message, Request, Role, Shape, Thinking, ToolCall, ToolChoice};

/// A question with `fields` beside it; those given win.
fn with(fields: Value) -> Value {
    let mut body = json!({ "model": "house", "max_tokens": 100, "messages": [{ "role": "user", "content": "hi" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn question(fields: Value) -> Question {
    let body = with(fields).to_string();
    parse(body.as_bytes(), "agent").unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn request(fields: Value) -> Request {
    question(fields).request
}

fn messages(messages: Value) -> Vec<Message> {
    request(json!({ "messages": messages })).messages
}

fn refusal(fields: Value) -> String {
    let body = with(fields).to_string();
    parse(body.as_bytes(), "agent").err().unwrap_or_else(|| panic!("{body} was taken")).to_string()
}

#[test]
fn a_question_is_read_with_all_that_it_says() {
    let Question { request, is_streamed, terms } = question(json!({
        "system": "Be brief.", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["END", "\n\n"],
        "stream": true, "metadata": { "user_id": "session_7" }, "service_tier": "auto", "container": null,
    }));
    assert_eq!(request.messages, [Message::text(Role::System, "Be brief."), Message::text(Role::User, "hi")]);
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.9, 40));
    assert_eq!((request.stop, request.max_tokens), (vec!["END".to_owned(), "\n\n".to_owned()], Some(100)));
    assert_eq!((request.conversation.as_deref(), request.client.name.as_str()), (Some("session_7"), "agent"));
    assert_eq!((is_streamed, terms), (true, Terms { max_tokens: 100, shows_thinking: true }));
    assert!(!question(json!({})).is_streamed);
}

#[test]
fn a_tool_is_written_in_openais_form_around_the_clients_own_bytes() {
    let schema = r#"{ "type":"object", "properties": {"zebra":{"type":"string"},"apple":{"const":1.0}} }"#;
    let body = format!(
        r#"{{"model":"house","max_tokens":9,"messages":[{{"role":"user","content":"hi"}}],"tools":[
            {{"input_schema":{schema},"cache_control":{{"type":"ephemeral"}},"description":"Say \u00e9 \"now\"","name":"live_look"}},
            {{"type":"custom","name":"mcp__home__{}","input_schema":{{}}}}]}}"#,
        "x".repeat(117)
    );
    let tools = parse(body.as_bytes(), "agent").unwrap().request.tools;
    let expected = format!(
        r#"{{"type":"function","function":{{"name":"live_look","description":"Say \u00e9 \"now\"","parameters":{schema}}}}}"#
    );
    assert_eq!(tools[0], expected);
    assert!(tools[1].ends_with(r#"x","parameters":{}}}"#), "{}", tools[1]);
}

#[test]
fn tools_that_are_not_the_clients_own_are_refused_with_their_place() {
    let own = json!({ "name": "light", "input_schema": { "type": "object" } });
    for (tool, place) in [
        (
            json!({ "type": "web_search_20250305", "name": "web_search" }),
            "tools[1].type: \"web_search_20250305\" is not",
        ),
        (json!({ "type": "bash_20250124", "name": "bash" }), "tools[1].type: "),
        (json!({ "name": "door" }), "tools[1].input_schema: is required"),
        (json!({ "name": "door", "input_schema": [] }), "tools[1].input_schema: "),
        (json!({ "name": "door", "input_schema": {}, "description": 7 }), "tools[1].description: 7"),
        (json!({ "name": "a door", "input_schema": {} }), "tools[1].name: "),
        (json!({ "name": "d".repeat(129), "input_schema": {} }), "tools[1].name: "),
        (json!({ "name": "light", "input_schema": {} }), "tools[1].name: \"light\" is the name of tools[0], too"),
        (json!({ "input_schema": {} }), "tools[1]: "),
    ] {
        let refused = refusal(json!({ "tools": [own, tool] }));
        assert!(refused.starts_with(place), "{tool}: {refused}");
    }
    assert!(refusal(json!({ "mcp_servers": [{ "url": "https://a" }] })).starts_with("mcp_servers: "));
    assert_eq!(request(json!({ "mcp_servers": [] })).tools.len(), 0);
}

#[test]
fn a_choice_of_tools_is_one_of_four() {
    let wanted = |choice: Value| {
        let wanted = request(json!({ "tool_choice": choice })).wanted;
        (wanted.tool_choice, wanted.one_call)
    };
    assert_eq!(wanted(Value::Null), (ToolChoice::Auto, false));
    assert_eq!(wanted(json!({ "type": "auto" })), (ToolChoice::Auto, false));
    assert_eq!(wanted(json!({ "type": "auto", "disable_parallel_tool_use": true })), (ToolChoice::Auto, true));
    assert_eq!(wanted(json!({ "type": "any" })), (ToolChoice::Required, true));
    assert_eq!(wanted(json!({ "type": "any", "disable_parallel_tool_use": false })), (ToolChoice::Required, false));
    assert_eq!(wanted(json!({ "type": "tool", "name": "light" })), (ToolChoice::Named("light".into()), true));
    assert_eq!(wanted(json!({ "type": "none" })), (ToolChoice::None, false));
    for (choice, place) in [
        (json!({ "type": "tool" }), "tool_choice.name: is required"),
        (json!({ "type": "required" }), "tool_choice.type: \"required\": must be auto, any, tool or none"),
        (json!("auto"), "tool_choice: "),
    ] {
        assert!(refusal(json!({ "tool_choice": choice })).starts_with(place), "{choice}");
    }
}

/// A tool loop as the official client sends it: thoughts echoed, two calls, both results and a word in one message.
fn tool_loop() -> Value {
    json!([
        { "role": "user", "content": [{ "type": "text", "text": "Lights on," }, { "type": "text", "text": "and is it warm?" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "two calls", "signature": "hob" },
            { "type": "redacted_thinking", "data": "x" },
            { "type": "text", "text": "On it." },
            { "type": "tool_use", "id": "c1", "name": "turn_on", "input": { "room": "attic", "any": {} } },
            { "type": "tool_use", "id": "c2", "name": "live", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "text", "text": "Well?" },
            { "type": "tool_result", "tool_use_id": "c2", "content": [{ "type": "text", "text": "21" }, { "type": "text", "text": "degrees" }] },
            { "type": "tool_result", "tool_use_id": "c1", "content": "no such room", "is_error": true },
            { "type": "tool_result", "tool_use_id": "gone" },
        ] },
    ])
}

#[test]
fn results_come_first_and_know_their_tools() {
    let messages = messages(tool_loop());
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: Some(id.into()),
        name: name.into(),
        arguments: arguments.into(),
    };
    let result = |id: &str, name: Option<&str>, text: &str| Message {
        name: name.map(str::to_owned),
        tool_call_id: Some(id.into()),
        ..Message::text(Role::Tool, text)
    };
    let expected = [
        Message::text(Role::User, "Lights on,\nand is it warm?"),
        Message {
            reasoning: Some("two calls".into()),
            tool_calls: vec![call("c1", "turn_on", r#"{"room":"attic","any":{}}"#), call("c2", "live", "{}")],
            ..Message::text(Role::Assistant, "On it.")
        },
        result("c2", Some("live"), "21\ndegrees"),
        result("c1", Some("turn_on"), "error: no such room"),
        result("gone", None, ""),
        Message::text(Role::User, "Well?"),
    ];
    assert_eq!(messages, expected);
}

#[test]
fn the_input_of_a_call_keeps_its_bytes() {
    let body = r#"{"model":"house","max_tokens":9,"messages":[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"tool_use","id":"c","name":"live","input":{ "b":1.0,"a":"\u00e9" }}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"on"}]}]}"#;
    let messages = parse(body.as_bytes(), "agent").unwrap().request.messages;
    assert_eq!(messages[1].tool_calls[0].arguments, r#"{ "b":1.0,"a":"\u00e9" }"#);
    assert_eq!(messages.len(), 3, "a result alone is no word of the user's");
}

#[test]
fn turns_of_one_speaker_in_a_row_are_one() {
    let text = |role: &str, text: &str| json!({ "role": role, "content": text });
    let thought = |thought: &str, text: &str| json!({ "role": "assistant", "content": [{ "type": "thinking", "thinking": thought, "signature": "" }, { "type": "text", "text": text }] });
    let read = messages(json!([
        text("user", "A"),
        text("user", "B"),
        thought("t1", "C"),
        thought("t2", "D"),
        text("user", "E"),
    ]));
    let expected = [
        Message::text(Role::User, "A\nB"),
        Message { reasoning: Some("t1\nt2".into()), ..Message::text(Role::Assistant, "C\nD") },
        Message::text(Role::User, "E"),
    ];
    assert_eq!(read, expected);
    // Results and the next turn's question are no row.
    let results =
        |id: &str| json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": id }] });
    let roles: Vec<Role> = messages(json!([text("user", "A"), results("1"), results("2"), text("user", "B")]))
        .iter()
        .map(|message| message.role)
        .collect();
    assert_eq!(roles, [Role::User, Role::Tool, Role::Tool, Role::User]);
}

/// Claude Code says there which agents and skills there are, behind the first question.
#[test]
fn what_the_system_says_later_belongs_to_the_users_turn() {
    let text = |role: &str, text: &str| json!({ "role": role, "content": text });
    let read = messages(json!([
        text("system", "S"),
        text("user", "A"),
        text("system", "T"),
        text("assistant", "B"),
        text("system", "U"),
        text("user", "C"),
    ]));
    let expected = [
        Message::text(Role::System, "S"),
        Message::text(Role::User, "A\n<system>\nT\n</system>"),
        Message::text(Role::Assistant, "B"),
        Message::text(Role::User, "<system>\nU\n</system>\nC"),
    ];
    assert_eq!(read, expected);
    let marked = json!([{ "type": "text", "text": "T", "cache_control": { "type": "ephemeral" } }]);
    let read = messages(json!([text("user", "A"), { "role": "system", "content": marked }]));
    assert_eq!(&read[0].content[..read[0].n_marked_bytes], "A\n<system>\nT");
}

#[test]
fn marks_say_how_much_of_a_message_stays() {
    let mark = json!({ "type": "ephemeral", "ttl": "1h" });
    let text = |text: &str, mark: Value| json!({ "type": "text", "text": text, "cache_control": mark });
    let read = request(json!({
        "system": [text("abc", Value::Null), text("de", mark.clone()), text("f", Value::Null)],
        "messages": [
            { "role": "user", "content": [text("gh", json!({ "type": "ephemeral" })), text("i", Value::Null)] },
            { "role": "user", "content": [text("jk", mark.clone()), text("l", Value::Null)] },
        ],
    }));
    let marked = |messages: &[Message]| -> Vec<(String, usize)> {
        messages.iter().map(|message| (message.content.clone(), message.n_marked_bytes)).collect()
    };
    assert_eq!(marked(&read.messages), [("abc\nde\nf".to_owned(), 6), ("gh\ni\njk\nl".to_owned(), 7)]);
    let all = request(json!({ "cache_control": mark, "system": "abc" }));
    assert_eq!(marked(&all.messages), [("abc".to_owned(), 0), ("hi".to_owned(), 2)]);
    let result =
        json!({ "type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": true, "cache_control": mark });
    let results = messages(json!([{ "role": "user", "content": [result] }]));
    assert_eq!(marked(&results), [("error: no".to_owned(), 9)]);
    for (mark, reason) in [
        (json!({ "type": "ephemeral", "ttl": "2h" }), "ttl: \"2h\": must be \"5m\" or \"1h\""),
        (json!({ "type": "forever" }), "type: \"forever\": must be \"ephemeral\""),
    ] {
        let tool = json!({ "name": "light", "input_schema": {}, "cache_control": mark });
        for (fields, place) in [
            (json!({ "cache_control": mark }), "cache_control"),
            (json!({ "system": [text("a", mark.clone())] }), "system[0].cache_control"),
            (
                json!({ "messages": [{ "role": "user", "content": [text("a", mark.clone())] }] }),
                "messages[0].content[0].cache_control",
            ),
            (json!({ "tools": [tool] }), "tools[0].cache_control"),
        ] {
            assert_eq!(refusal(fields), format!("{place}.{reason}"));
        }
    }
}

#[test]
fn thinking_is_on_off_or_the_models_own_matter() {
    let thinking = |thinking: Value| request(json!({ "thinking": thinking })).wanted.thinking;
    let enabled = thinking(json!({ "type": "enabled", "budget_tokens": 2048 }));
    assert_eq!(enabled, Thinking { is_on: Some(true), effort: None, budget: Some(2048) });
    assert_eq!(thinking(json!({ "type": "disabled" })).is_on, Some(false));
    assert_eq!(thinking(json!({ "type": "adaptive" })), Thinking::default());
    let effort = |word: &str| request(json!({ "output_config": { "effort": word } })).wanted.thinking;
    assert_eq!((effort("max").effort.as_deref(), effort("low").effort.as_deref()), (Some("high"), Some("low")));
    assert_eq!(effort("max").is_on, None);
    let omitted = question(json!({ "thinking": { "type": "adaptive", "display": "omitted" } }));
    assert!(!omitted.terms.shows_thinking);
    for (fields, place) in [
        (json!({ "thinking": { "type": "hard" } }), "thinking.type: "),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 0 } }), "thinking.budget_tokens: "),
        (json!({ "thinking": { "type": "adaptive", "display": "all" } }), "thinking.display: "),
        (json!({ "output_config": { "effort": "huge" } }), "output_config.effort: "),
    ] {
        let refused = refusal(fields);
        assert!(refused.starts_with(place), "{refused}");
    }
}

#[test]
fn a_form_is_a_schema_under_both_its_names() {
    let schema = json!({ "type": "object", "properties": { "on": { "type": "boolean" } } });
    let format = json!({ "type": "json_schema", "schema": schema });
    let shape = |fields: Value| request(fields).wanted.shape;
    assert_eq!(shape(json!({ "output_config": { "format": format } })), Shape::Schema(schema.to_string()));
    assert_eq!(shape(json!({ "output_format": format })), Shape::Schema(schema.to_string()));
    assert_eq!(shape(json!({ "output_config": { "format": null } })), Shape::Free);
    for (fields, place) in [
        (json!({ "output_config": { "format": format }, "output_format": format }), "output_format: "),
        (json!({ "output_config": { "format": { "type": "text" } } }), "output_config.format.type: "),
        (json!({ "output_format": { "type": "json_schema" } }), "output_format.schema: is required"),
    ] {
        let refused = refusal(fields);
        assert!(refused.starts_with(place), "{refused}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let block = |role: &str, block: Value| json!({ "messages": [{ "role": role, "content": [block] }] });
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "aa" } });
    for (fields, place) in [
        (json!({ "max_tokens": null }), "max_tokens: is required"),
        (json!({ "max_tokens": 0 }), "max_tokens: 0: must be at least 1"),
        (json!({ "model": "" }), "model: is required"),
        (json!({ "messages": [] }), "messages: "),
        (json!({ "messages": null }), "messages: is required"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role: "),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0]: "),
        (json!({ "messages": [{ "role": "user", "content": 7 }] }), "messages[0].content: "),
        (json!({ "system": [image] }), "system[0].type: images are not supported yet"),
        (block("user", image.clone()), "messages[0].content[0].type: images are not supported yet"),
        (block("user", json!({ "type": "text" })), "messages[0].content[0].text: is required"),
        (block("user", json!({ "type": "document", "source": {} })), "messages[0].content[0].type: "),
        (block("user", json!({ "type": "tool_use", "id": "1", "name": "a" })), "messages[0].content[0].type: "),
        (block("assistant", json!({ "type": "tool_result", "tool_use_id": "1" })), "messages[0].content[0].type: "),
        (block("assistant", json!({ "type": "tool_use", "id": "1" })), "messages[0].content[0].name: "),
        (
            block("assistant", json!({ "type": "tool_use", "name": "a", "input": "{}" })),
            "messages[0].content[0].input: ",
        ),
        (block("user", json!({ "type": "tool_result", "content": "x" })), "messages[0].content[0].tool_use_id: "),
        (
            block("user", json!({ "type": "tool_result", "tool_use_id": "1", "content": [image] })),
            "messages[0].content[0].content[0].type: images",
        ),
        (json!({ "stop_sequences": [""] }), "stop_sequences[0]: "),
        (json!({ "temperature": 3 }), "temperature: "),
        (
            json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "{" }] }),
            "messages: the last one",
        ),
    ] {
        let refused = refusal(fields.clone());
        assert!(refused.starts_with(place), "{fields}: {refused}");
    }
}

#[test]
fn what_is_only_counted_needs_no_limit_and_may_end_with_an_answer() {
    let body = json!({
        "model": "house",
        "messages": [{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "Hello." }],
    });
    let request = parse_counted(body.to_string().as_bytes(), "agent").unwrap();
    assert_eq!((request.messages.len(), request.max_tokens), (2, None));
}
