//! What an answer is wanted to be: calls, form, thinking, probabilities.

use super::*;
use crate::request::{Shape, Thinking, ToolChoice};

fn wanted(fields: &str) -> Wanted {
    parsed(fields).request.wanted
}

#[test]
fn the_choice_of_tools_has_four_forms() {
    let choice = |choice: &str| wanted(&format!("\"tool_choice\":{choice}")).tool_choice;
    assert_eq!(choice("\"auto\""), ToolChoice::Auto);
    assert_eq!(choice("\"none\""), ToolChoice::None);
    assert_eq!(choice("\"required\""), ToolChoice::Required);
    let named = choice(r#"{"type":"function","function":{"name":"light.on"}}"#);
    assert_eq!(named, ToolChoice::Named("light.on".into()));

    let refused = |choice: &str, expected: &str| check_refused(&format!("\"tool_choice\":{choice}"), expected);
    refused("\"always\"", "tool_choice: \"always\": must be \"auto\", \"none\", \"required\" or {");
    refused("5", "tool_choice: 5: must be");
    refused("{}", "tool_choice: {}: must be");
    refused(r#"{"type":"function"}"#, "tool_choice.function.name: is required");
    refused(r#"{"type":"function","function":{"name":""}}"#, "tool_choice.function.name: is required");
    refused(r#"{"type":"custom"}"#, "tool_choice.type: \"custom\": must be \"function\"");
    let allowed = r#"{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}"#;
    refused(allowed, "tool_choice.type: \"allowed_tools\" is not supported: send those tools alone");
}

#[test]
fn calls_come_one_at_a_time_if_asked_for() {
    assert!(wanted(r#""parallel_tool_calls":false"#).one_call);
    assert!(!wanted(r#""parallel_tool_calls":true"#).one_call);
}

#[test]
fn a_schema_stays_the_text_that_was_sent() {
    let shape = |fields: &str| wanted(fields).shape;
    assert_eq!(shape(r#""response_format":{"type":"json_object"}"#), Shape::Json);
    let schema = "{\"z\" : 1.0,\n \"a\":\"\\u00e9\"}";
    let expected = Shape::Schema(schema.into());
    for strict in ["", r#""strict":true,"#, r#""strict":false,"#, r#""strict":null,"#] {
        let named = format!(r#"{{"name":"x",{strict}"schema":{schema}}}"#);
        let format = format!(r#""response_format":{{"type":"json_schema","json_schema":{named}}}"#);
        assert_eq!(shape(&format), expected);
    }
    assert_eq!(shape(&format!(r#""response_format":{{"type":"json_object","schema":{schema}}}"#)), expected);
    assert_eq!(shape(&format!(r#""json_schema":{schema}"#)), expected);
    assert_eq!(shape(r#""json_schema":true"#), Shape::Schema("{}".into()));
    assert_eq!(shape(r#""grammar":"root ::= \"a\"""#), Shape::Grammar("root ::= \"a\"".into()));
    assert_eq!(shape(r#""grammar":"""#), Shape::Free);
    assert_eq!(shape(&format!(r#""response_format":{{"type":"text"}},"json_schema":{schema}"#)), expected);
}

#[test]
fn a_bad_form_names_its_place() {
    let refused = |format: &str, expected: &str| check_refused(&format!("\"response_format\":{format}"), expected);
    refused("\"text\"", "response_format: invalid type: string");
    refused("{}", "response_format: missing field `type`");
    refused(r#"{"type":"xml"}"#, "response_format.type: \"xml\": must be text, json_object or json_schema");
    refused(r#"{"type":"json_schema"}"#, "response_format.json_schema: is required");
    let place = "response_format.json_schema.schema";
    refused(r#"{"type":"json_schema","json_schema":{"name":"a"}}"#, &format!("{place}: is required"));
    let listed = r#"{"type":"json_schema","json_schema":{"name":"a","schema":[]}}"#;
    refused(listed, &format!("{place}: must be an object"));
    check_refused(r#""json_schema":7"#, "json_schema: must be an object");
    check_refused(r#""grammar":7"#, "grammar: invalid type: integer");
    let both = r#""grammar":"root ::= \"a\"","response_format":{"type":"json_object"}"#;
    check_refused(both, "grammar: an answer has one form: response_format is given, too");
}

#[test]
fn thinking_has_many_names() {
    let check = |fields: &str, is_on, effort: Option<&str>, budget| {
        let expected = Thinking { is_on, effort: effort.map(str::to_owned), budget };
        assert_eq!(wanted(fields).thinking, expected, "{fields}");
    };
    check(r#""reasoning_effort":"none""#, Some(false), None, None);
    check(r#""reasoning_effort":"minimal""#, Some(true), Some("low"), None);
    check(r#""reasoning_effort":"medium""#, Some(true), Some("medium"), None);
    check(r#""reasoning_effort":"xhigh""#, Some(true), Some("high"), None);
    check(r#""think":false"#, Some(false), None, None);
    check(r#""think":"high""#, Some(true), Some("high"), None);
    check(r#""enable_thinking":true"#, Some(true), None, None);
    check(r#""chat_template_kwargs":{"enable_thinking":false}"#, Some(false), None, None);
    check(r#""chat_template_kwargs":{"reasoning_effort":"low"}"#, Some(true), Some("low"), None);
    check(r#""reasoning_budget":-1"#, None, None, None);
    check(r#""reasoning_budget":0"#, Some(false), None, Some(0));
    check(r#""reasoning_budget":5,"thinking_budget_tokens":256"#, None, None, Some(256));
    // What is said to the template itself counts most.
    let contrary =
        r#""chat_template_kwargs":{"enable_thinking":false},"enable_thinking":true,"reasoning_effort":"high""#;
    check(contrary, Some(false), Some("high"), None);

    check_refused(r#""reasoning_effort":"utmost""#, "reasoning_effort: \"utmost\": must be none, minimal");
    check_refused(r#""think":3"#, "think: 3: must be true, false or none");
    check_refused(
        r#""chat_template_kwargs":{"enable_thinking":1}"#,
        "chat_template_kwargs.enable_thinking: 1: must be",
    );
    check_refused(r#""thinking_budget_tokens":-2"#, "thinking_budget_tokens: -2: must be at least -1");
}

#[test]
fn the_template_is_told_what_is_its_own() {
    let args = wanted(r#""chat_template_kwargs":{"enable_thinking":true,"persona":"a \"cat\"","depth":{"b":1.0}}"#);
    let expected = [("persona", r#""a \"cat\"""#), ("depth", r#"{"b":1.0}"#)];
    assert_eq!(args.template_args, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    check_refused(r#""chat_template_kwargs":{"messages":[]}"#, "chat_template_kwargs.messages: hob itself");
    let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("a{n}"), json!(1))).collect();
    check_refused(
        &format!("\"chat_template_kwargs\":{}", json!(many)),
        "chat_template_kwargs: has 33 names: at most 32",
    );
}

#[test]
fn probabilities_are_told_with_as_many_others_as_are_asked_for() {
    let n = |fields: &str| parsed(fields).request.n_logprobs;
    assert_eq!(n(r#""logprobs":true"#), Some(0));
    assert_eq!(n(r#""logprobs":true,"top_logprobs":20"#), Some(20));
    assert_eq!(n(r#""logprobs":false,"top_logprobs":0"#), None);
    check_refused(r#""logprobs":true,"top_logprobs":21"#, "top_logprobs: 21: must be at most 20");
    check_refused(r#""top_logprobs":2"#, "top_logprobs: logprobs must be true for it");
}

#[test]
fn several_choices_may_be_asked_for() {
    assert_eq!(parsed(r#""n":8"#).n_choices, 8);
}

#[test]
fn dots_may_stand_in_the_names_of_tools() {
    let tool = r#""tools":[{"type":"function","function":{"name":"light.turn_on-2"}}]"#;
    assert_eq!(parsed(tool).request.tools.len(), 1);
}
