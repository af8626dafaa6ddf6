//! What the parser takes, and where it says that it does not.

mod wanted;

use serde_json::json;

use super::request::{ChatRequest, Form, parse};
use crate::request::{Dry, Message, Mirostat, Penalties, Role, Sampling, Token, ToolCall, Wanted, Xtc};

/// A request with `fields` beside the required ones; those given win.
fn body(fields: &str) -> String {
    let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
    let messages = if fields.contains("\"messages\"") { "" } else { messages };
    let pieces = ["\"model\":\"house\"", messages, fields];
    format!("{{{}}}", pieces.into_iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join(","))
}

fn parsed(fields: &str) -> ChatRequest {
    parse(body(fields).as_bytes(), "10.0.0.7").unwrap_or_else(|error| panic!("{fields}: {error}"))
}

/// The refusal of `fields`: its message; the param is the text before the colon.
fn check_refused(fields: &str, expected: &str) {
    let error = parse(body(fields).as_bytes(), "10.0.0.7").err().unwrap_or_else(|| panic!("{fields} was taken"));
    let message = error.to_string();
    assert!(message.starts_with(expected), "{fields}: {message}");
    let field = error.to_openai()["error"]["param"].as_str().unwrap().to_owned();
    assert!(message.starts_with(&format!("{field}: ")), "{field} is not what {message} names");
}

fn message(fields: &str) -> Message {
    parsed(&format!("\"messages\":[{{{fields}}}]")).request.messages.remove(0)
}

#[test]
fn marks_for_the_clients_own_cache_reach_to_the_end_of_what_they_are_on() {
    let marked = |content: &str| message(&format!(r#""role":"system","content":{content}"#)).n_marked_bytes;
    let mark = r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;
    assert_eq!(marked(r#""all""#), 0);
    assert_eq!(marked(&format!(r#""all"{mark}"#)), 3);
    assert_eq!(marked(r#""all","cache_control":null"#), 0);
    let part = |text: &str, mark: &str| format!(r#"{{"type":"text","text":"{text}"{mark}}}"#);
    let parts = [part("first", ""), part("zweiß", mark), part("last", "")].join(",");
    assert_eq!(marked(&format!("[{parts}]")), "first\nzweiß".len());
    assert_eq!(marked(&format!("[{}]", part("first", ""))), 0);

    let refused = |content: &str, expected: &str| {
        check_refused(&format!(r#""messages":[{{"role":"user","content":{content}}}]"#), expected);
    };
    let other = r#","cache_control":{"type":"for ever"}"#;
    let expected = "cache_control.type: \"for ever\": must be \"ephemeral\"";
    refused(&format!(r#""all"{other}"#), &format!("messages[0].{expected}"));
    refused(&format!("[{}]", part("all", other)), &format!("messages[0].content[0].{expected}"));
    refused(r#""all","cache_control":"ephemeral""#, "messages[0].cache_control: ");
}

#[test]
fn a_bare_request_has_the_defaults() {
    let ChatRequest { request, n_choices, form } = parsed("");
    assert_eq!(request.model, "house");
    assert_eq!(request.messages, [Message::text(Role::User, "hi")]);
    assert_eq!(request.sampling, Sampling::default());
    assert_eq!((request.max_tokens, request.client.name.as_str()), (None, "10.0.0.7"));
    assert_eq!((&request.wanted, request.n_logprobs, n_choices), (&Wanted::default(), None, 1));
    assert_eq!(form, Form::Whole);
}

#[test]
fn null_is_as_good_as_nothing() {
    let fields = "tools tool_choice parallel_tool_calls response_format grammar json_schema reasoning_effort enable_thinking \
                  think chat_template_kwargs reasoning_budget thinking_budget_tokens n logprobs top_logprobs temperature top_p top_k min_p seed repeat_penalty \
                  frequency_penalty presence_penalty logit_bias max_tokens max_completion_tokens stop stream \
                  stream_options cache_salt typical_p top_n_sigma xtc_probability xtc_threshold dynatemp_range dynatemp_exponent \
                  mirostat mirostat_tau mirostat_eta min_keep repeat_last_n dry_multiplier dry_base dry_allowed_length \
                  dry_penalty_last_n dry_sequence_breakers ignore_eos";
    let fields: Vec<_> = fields.split_whitespace().map(|field| format!("\"{field}\":null")).collect();
    let ChatRequest { request, n_choices, .. } = parsed(&fields.join(","));
    assert_eq!(request.sampling, Sampling::default());
    assert_eq!((request.wanted, request.n_logprobs, n_choices), (Wanted::default(), None, 1));
}

#[test]
fn sampling_is_taken_over() {
    let sampling = parsed(
        r#""temperature":0,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":7,"repeat_penalty":1.1,
           "frequency_penalty":-2,"presence_penalty":2,"logit_bias":{"50":-100,"7":1.5},
           "repeat_last_n":-1,"dry_multiplier":0.8,"dry_base":1.5,"dry_allowed_length":3,"dry_penalty_last_n":100,
           "dry_sequence_breakers":["\n"],"top_n_sigma":1.5,"typical_p":0.7,"xtc_probability":0.5,"xtc_threshold":0.2,
           "dynatemp_range":0.5,"dynatemp_exponent":2,"mirostat":2,"mirostat_tau":4,"mirostat_eta":0.2,"min_keep":2,
           "ignore_eos":true"#,
    )
    .request
    .sampling;
    let expected = Sampling {
        temperature: 0.0,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        seed: Some(7),
        penalties: Penalties { last_n: None, repeat: 1.1, frequency: -2.0, presence: 2.0 },
        dry: Dry { multiplier: 0.8, base: 1.5, allowed_length: 3, last_n: Some(100), breakers: vec!["\n".into()] },
        top_n_sigma: 1.5,
        typical_p: 0.7,
        xtc: Xtc { probability: 0.5, threshold: 0.2 },
        dynatemp_range: 0.5,
        dynatemp_exponent: 2.0,
        mirostat: Some(Mirostat { is_first: false, tau: 4.0, eta: 0.2 }),
        min_keep: 2,
        logit_bias: vec![(Token(50), -100.0), (Token(7), 1.5)],
        ignores_end: true,
    };
    assert_eq!(sampling, expected);
}

#[test]
fn a_seed_of_minus_one_is_none_and_a_wide_one_counts_whole() {
    let seed = |fields: &str| parsed(fields).request.sampling.seed;
    assert_eq!(seed(r#""seed":-1"#), None);
    assert_ne!(seed(r#""seed":4294967297"#), seed(r#""seed":8589934593"#));
}

#[test]
fn numbers_out_of_range_are_refused() {
    check_refused(r#""temperature":2.1"#, "temperature: 2.1: must be 0 to 2");
    check_refused(r#""temperature":-0.1"#, "temperature: -0.1: must be 0 to 2");
    check_refused(r#""temperature":"hot""#, "temperature: invalid type: string \"hot\"");
    check_refused(r#""top_p":0"#, "top_p: 0: must be above 0");
    check_refused(r#""top_p":1.5"#, "top_p: 1.5: must be 0 to 1");
    check_refused(r#""top_k":-1"#, "top_k: -1: must be at least 0");
    check_refused(r#""top_k":99999999999"#, "top_k: 99999999999: must be at most 2147483647");
    check_refused(r#""min_p":2"#, "min_p: 2: must be 0 to 1");
    check_refused(r#""repeat_penalty":0"#, "repeat_penalty: 0: must be 0.1 to 10");
    check_refused(r#""lora":[{"id":0,"scale":11}]"#, "lora[0].scale: 11: must be -10 to 10");
    check_refused(r#""mirostat":3"#, "mirostat: 3: must be at most 2");
    check_refused(r#""dry_sequence_breakers":[""]"#, "dry_sequence_breakers[0]: \"\": must be a text");
    check_refused(r#""repeat_last_n":-2"#, "repeat_last_n: -2: must be at least -1");
    check_refused(r#""xtc_probability":1.5"#, "xtc_probability: 1.5: must be 0 to 1");
    check_refused(r#""frequency_penalty":3"#, "frequency_penalty: 3: must be -2 to 2");
    check_refused(r#""presence_penalty":-3"#, "presence_penalty: -3: must be -2 to 2");
    check_refused(r#""max_tokens":0"#, "max_tokens: 0: must be at least 1");
    check_refused(r#""max_completion_tokens":-1"#, "max_completion_tokens: -1: must be at least 1");
    check_refused(r#""max_tokens":1.5"#, "max_tokens: invalid type: floating point");
    check_refused(r#""n":0"#, "n: 0: must be at least 1");
    check_refused(r#""n":9"#, "n: 9: must be at most 8");
    check_refused(r#""logit_bias":{"7":101}"#, "logit_bias.7: 101: must be -100 to 100");
    check_refused(r#""logit_bias":{"oven":1}"#, "logit_bias.oven: the key must be a token's id");
    check_refused(r#""logit_bias":{"-4":1}"#, "logit_bias.-4: the key must be a token's id");
}

#[test]
fn no_number_is_infinite() {
    for number in ["1e999", "-1e999", "NaN", "Infinity"] {
        assert!(parse(body(&format!("\"temperature\":{number}")).as_bytes(), "").is_err(), "{number}");
    }
}

#[test]
fn the_newer_name_of_max_tokens_wins() {
    assert_eq!(parsed(r#""max_tokens":5"#).request.max_tokens, Some(5));
    assert_eq!(parsed(r#""max_completion_tokens":6,"max_tokens":5"#).request.max_tokens, Some(6));
}

#[test]
fn stop_is_one_text_or_up_to_sixteen() {
    assert_eq!(parsed(r#""stop":"a""#).request.stop, ["a"]);
    assert_eq!(parsed(r#""stop":["a","b"]"#).request.stop, ["a", "b"]);
    assert_eq!(parsed(&format!("\"stop\":{}", json!(vec!["x"; 16]))).request.stop.len(), 16);
    check_refused(&format!("\"stop\":{}", json!(vec!["x"; 17])), "stop: has 17 entries: must have 0 to 16");
    check_refused(r#""stop":["a",""]"#, "stop[1]: \"\": must be a text");
    check_refused(r#""stop":[5]"#, "stop[0]: 5: must be a text");
    check_refused(r#""stop":{}"#, "stop[0]: {}: must be a text");
}

#[test]
fn counts_over_their_limits_are_refused_with_both_numbers() {
    let messages = |n: usize| format!("\"messages\":{}", json!(vec![json!({"role":"user","content":""}); n]));
    assert_eq!(parsed(&messages(2_000)).request.messages.len(), 2_000);
    check_refused(&messages(2_001), "messages: has 2001 entries: must have 1 to 2000");
    check_refused(&messages(0), "messages: has 0 entries: must have 1 to 2000");
    let tool = |index: usize| json!({"type":"function","function":{"name":format!("a{index}")}});
    let tools = |n: usize| format!("\"tools\":{}", json!((0..n).map(tool).collect::<Vec<_>>()));
    assert_eq!(parsed(&tools(256)).request.tools.len(), 256);
    check_refused(&tools(257), "tools: has 257 entries: must have 0 to 256");
    let biases = |n: usize| {
        let biases: serde_json::Map<_, _> = (0..n).map(|token| (token.to_string(), json!(1))).collect();
        format!("\"logit_bias\":{}", json!(biases))
    };
    assert_eq!(parsed(&biases(300)).request.sampling.logit_bias.len(), 300);
    check_refused(&biases(301), "logit_bias: has 301 entries: must have 0 to 300");
    let salt = |n: usize| format!("\"cache_salt\":\"{}\"", "s".repeat(n));
    assert_eq!(parsed(&salt(256)).request.client.salt.unwrap().len(), 256);
    check_refused(&salt(257), "cache_salt: has 257 bytes: at most 256");
}

#[test]
fn depth_counts_brackets_but_not_those_in_texts() {
    let nested = |n: usize| format!("\"metadata\":{}{}", "[".repeat(n), "]".repeat(n));
    parsed(&nested(63));
    let error = parse(body(&nested(64)).as_bytes(), "").unwrap_err().to_string();
    assert_eq!(error, "the JSON is nested 65 levels deep: at most 64 are allowed");
    parsed(&format!(r#""metadata":"\"{}""#, "[".repeat(100)));
}

#[test]
fn what_changes_nothing_is_taken() {
    parsed(
        r#""response_format":{"type":"text"},"n":1,"logprobs":false,"user":"anna","slot_id":1,"timings_per_token":true,"cache_prompt":true,"id_slot":3,"store":false,"metadata":{"a":"b"},"x_unknown":[1,2]"#,
    );
}

#[test]
fn no_tools_are_taken_away_by_the_choice_none() {
    let tools = r#""tool_choice":"none","tools":[{"type":"function","function":{"name":"light"}}]"#;
    assert_eq!(parsed(tools).request.tools.len(), 1);
}

#[test]
fn a_tool_stays_the_text_that_was_sent() {
    let tool = "{ \"type\" : \"function\",\n \"function\":{\"name\":\"light\",\"z\":1.0,\"a\":\"\\u00e9\"} }";
    assert_eq!(parsed(&format!("\"tools\":[{tool}]")).request.tools, [tool]);
}

#[test]
fn a_bad_tool_names_its_place() {
    let good = r#"{"type":"function","function":{"name":"light"}}"#;
    let refused = |tool: &str, expected: &str| check_refused(&format!("\"tools\":[{good},{tool}]"), expected);
    refused(r#"{"type":"web_search"}"#, "tools[1]: missing field `function`");
    refused(r#"{"type":"custom","function":{"name":"a"}}"#, "tools[1].type: \"custom\": must be \"function\"");
    for name in ["", "türe", "open door", "a/b", &"a".repeat(129)] {
        let expected = format!("tools[1].function.name: {name:?}: must be 1 to 128 of a-z, A-Z, 0-9, _, - and .");
        refused(&format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#), &expected);
    }
    refused(good, "tools[1].function.name: \"light\" is the name of tools[0], too");
    refused(r#"{"type":"function","function":{"name":7}}"#, "tools[1].function.name: invalid type: integer `7`");
    refused("5", "tools[1]: invalid type: integer `5`");
    check_refused("\"tools\":{}", "tools: invalid type: map");
}

#[test]
fn content_is_a_text_parts_or_nothing() {
    assert_eq!(message(r#""role":"user","content":"a""#).content, "a");
    assert_eq!(message(r#""role":"assistant","content":null"#).content, "");
    assert_eq!(message(r#""role":"assistant""#).content, "");
    let parts = r#""role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]"#;
    assert_eq!(message(parts).content, "a\nb");
}

#[test]
fn content_that_is_not_text_names_its_place() {
    let refused = |content: &str, expected: &str| {
        let good = r#"{"role":"system","content":"a"}"#;
        check_refused(&format!(r#""messages":[{good},{{"role":"user","content":{content}}}]"#), expected);
    };
    refused("5", "messages[1].content: invalid type: integer `5`, expected a string or a list of parts");
    refused("{}", "messages[1].content: invalid type: map, expected a string or a list of parts");
    refused("[5]", "messages[1].content[0]: invalid type: integer `5`");
    refused(r#"[{"type":"text","text":7}]"#, "messages[1].content[0].text: invalid type: integer `7`");
    refused(r#"[{"type":"text"}]"#, "messages[1].content[0].text: is required");
    let image = r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]"#;
    refused(image, "messages[1].content[1].type: images are not supported yet");
    refused(r#"[{"type":"input_audio"}]"#, "messages[1].content[0].type: audio is not supported yet");
    refused(r#"[{"type":"file"}]"#, "messages[1].content[0].type: \"file\" is not supported");
}

#[test]
fn roles_are_openais() {
    for (name, role) in [
        ("system", Role::System),
        ("developer", Role::Developer),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
    ] {
        assert_eq!(message(&format!(r#""role":"{name}","content":"a""#)).role, role);
    }
    check_refused(
        r#""messages":[{"role":"function","content":"a"}]"#,
        "messages[0].role: \"function\": must be system",
    );
    check_refused(r#""messages":[{"content":"a"}]"#, "messages[0]: missing field `role`");
}

#[test]
fn a_tool_loop_comes_through() {
    let assistant = message(
        r#""role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
           {"id":"c1","type":"function","function":{"name":"light","arguments":"{\"z\": 1, \"a\":2}"}},
           {"function":{"name":"door","arguments":{"z": 1, "a":[2]}}},
           {"function":{"name":"time"}},
           {"function":{"name":"date","arguments":" "}}]"#,
    );
    let call = |id: Option<&str>, name: &str, arguments: &str| ToolCall {
        id: id.map(str::to_owned),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let expected = [
        call(Some("c1"), "light", r#"{"z": 1, "a":2}"#),
        call(None, "door", r#"{"z": 1, "a":[2]}"#),
        call(None, "time", "{}"),
        call(None, "date", "{}"),
    ];
    assert_eq!(assistant.tool_calls, expected);
    assert_eq!(assistant.reasoning.as_deref(), Some("hm"));
    let tool = message(r#""role":"tool","tool_call_id":"c1","name":"light","content":"on""#);
    assert_eq!((tool.tool_call_id.as_deref(), tool.name.as_deref()), (Some("c1"), Some("light")));
}

#[test]
fn a_bad_tool_call_names_its_place() {
    let refused = |role: &str, call: &str, expected: &str| {
        check_refused(&format!(r#""messages":[{{"role":"{role}","tool_calls":[{call}]}}]"#), expected);
    };
    let good = r#"{"function":{"name":"a","arguments":"{}"}}"#;
    refused("user", good, "messages[0].tool_calls: only an assistant's");
    let place = "messages[0].tool_calls[0]";
    refused("assistant", r#"{"function":{"name":""}}"#, &format!("{place}.function.name: must not be empty"));
    refused("assistant", r#"{"type":"custom","function":{"name":"a"}}"#, &format!("{place}.type: \"custom\""));
    let arguments = |arguments: &str| format!(r#"{{"function":{{"name":"a","arguments":{arguments}}}}}"#);
    refused("assistant", &arguments("5"), &format!("{place}.function.arguments: 5: must be an object"));
    for text in ["\"{\\\"a\\\":1\"", "\"on\"", "\"[1]\"", "\"{} {}\""] {
        let expected = format!("{place}.function.arguments: must be a string that holds an object");
        refused("assistant", &arguments(text), &expected);
    }
    let bomb = format!("\"{}\"", "[".repeat(65));
    refused("assistant", &arguments(&bomb), &format!("{place}.function.arguments: the JSON is nested 65"));
}

#[test]
fn a_stream_may_ask_for_usage() {
    assert_eq!(parsed(r#""stream":true"#).form, Form::Stream { include_usage: false });
    let usage = r#""stream":true,"stream_options":{"include_usage":true}"#;
    assert_eq!(parsed(usage).form, Form::Stream { include_usage: true });
    check_refused(r#""stream":"yes""#, "stream: invalid type: string");
    check_refused(
        r#""stream":true,"stream_options":{"include_usage":1}"#,
        "stream_options.include_usage: invalid type",
    );
}

#[test]
fn the_model_is_required() {
    for body in [r#"{"messages":[{"role":"user"}]}"#, r#"{"model":"","messages":[{"role":"user"}]}"#] {
        assert_eq!(parse(body.as_bytes(), "").unwrap_err().to_string(), "model: is required");
    }
}
