//! What the families' models say is read as what they meant, and what they may say is bound to what was asked for.
//!
//! The templates are llama.cpp's collection (`scripts/templates.py` fetches it); without it these tests say that they are skipped.

use std::path::Path;

use super::*;
use crate::engine::llama::tests::smollm2;
use crate::engine::{ChatTemplate, Model};

const TOOL: &str = r#"{"type":"function","function":{"name":"turn_on","description":"Turns it on","parameters":{"type":"object","properties":{"name":{"type":"string"},"level":{"type":"integer"}},"required":["name"]}}}"#;
const OTHER: &str =
    r#"{"type":"function","function":{"name":"list_areas","parameters":{"type":"object","properties":{}}}}"#;

/// A family, its template, and what its model says to think, to talk and to call `turn_on` for a kitchen at level 3.
struct Family {
    template: &'static str,
    said: &'static str,
    reasoning: &'static str,
    content: &'static str,
}

const HERMES_CALL: &str =
    "<tool_call>\n{\"name\": \"turn_on\", \"arguments\": {\"name\": \"kitchen\", \"level\": 3}}\n</tool_call>";

const FAMILIES: [Family; 10] = [
    Family {
        template: "Qwen-Qwen3-0.6B",
        said: "<think>\nThe light.\n</think>\n\nOn it.\n<tool_call>\n{\"name\": \"turn_on\", \"arguments\": {\"name\": \"kitchen\", \"level\": 3}}\n</tool_call>",
        reasoning: "The light.",
        content: "On it.",
    },
    Family {
        template: "Qwen3.5-4B",
        said: "The light.\n</think>\n\n<tool_call>\n<function=turn_on>\n<parameter=name>\nkitchen\n</parameter>\n<parameter=level>\n3\n</parameter>\n</function>\n</tool_call>",
        reasoning: "The light.",
        content: "",
    },
    Family {
        template: "meta-llama-Llama-3.1-8B-Instruct",
        said: "{\"name\": \"turn_on\", \"parameters\": {\"name\": \"kitchen\", \"level\": 3}}",
        reasoning: "",
        content: "",
    },
    Family {
        template: "mistralai-Mistral-Nemo-Instruct-2407",
        said: "[TOOL_CALLS][{\"name\": \"turn_on\", \"arguments\": {\"name\": \"kitchen\", \"level\": 3}, \"id\": \"123456789\"}]",
        reasoning: "",
        content: "",
    },
    Family {
        template: "google-gemma-4-31B-it",
        said: "<|channel>thought\nThe light.<channel|><|tool_call>call:turn_on{name:<|\"|>kitchen<|\"|>,level:3}<tool_call|>",
        reasoning: "The light.",
        content: "",
    },
    Family {
        template: "openai-gpt-oss-120b",
        said: "<|channel|>analysis<|message|>The light.<|end|><|start|>assistant<|channel|>commentary to=functions.turn_on <|constrain|>json<|message|>{\"name\": \"kitchen\", \"level\": 3}",
        reasoning: "The light.",
        content: "",
    },
    Family { template: "ibm-granite-granite-4.0", said: HERMES_CALL, reasoning: "", content: "" },
    Family {
        template: "LFM2-8B-A1B",
        said: "<|tool_call_start|>[turn_on(name=\"kitchen\", level=3)]<|tool_call_end|>",
        reasoning: "",
        content: "",
    },
    Family { template: "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", said: HERMES_CALL, reasoning: "", content: "" },
    Family { template: "Qwen-Qwen2.5-7B-Instruct", said: HERMES_CALL, reasoning: "", content: "" },
];

/// `None`: the collection is not here.
fn open(name: &str) -> Option<LlamaTemplate> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates").join(format!("{name}.jinja"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: {} is missing, scripts/templates.py fetches it", path.display());
        return None;
    };
    Some(LlamaTemplate::open(&Source { text: &text, bos: "<s>", eos: "</s>", strip_bos: true }, None).unwrap())
}

fn wanting(tool_choice: ToolChoice) -> Wanted {
    Wanted { tool_choice, ..Wanted::default() }
}

fn tools() -> Vec<String> {
    vec![OTHER.to_owned(), TOOL.to_owned()]
}

fn arguments(parts: &AnswerParts) -> Vec<(String, Value)> {
    let call = |call: &ToolCall| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap_or(Value::Null));
    parts.calls.iter().map(call).collect()
}

/// Each beginning of `said` is read as a beginning of what all of it is read as.
fn read_in_pieces(reader: &dyn AnswerReader, said: &str, name: &str) -> AnswerParts {
    let whole = reader.read(said, true).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut last = AnswerParts::default();
    for (at, _) in said.char_indices() {
        let parts =
            reader.read(&said[..at], false).unwrap_or_else(|error| panic!("{name} at {:?}: {error}", &said[..at]));
        let grows = |before: &str, after: &str| after.starts_with(before);
        let context = || format!("{name} at {:?}: {last:?} then {parts:?} of {whole:?}", &said[..at]);
        for next in [&parts, &whole] {
            assert!(grows(&last.reasoning, &next.reasoning), "{}", context());
            assert!(grows(&last.content, &next.content), "{}", context());
            assert!(last.calls.len() <= next.calls.len(), "{}", context());
            for (before, after) in last.calls.iter().zip(&next.calls) {
                assert!(before.name == after.name && grows(&before.arguments, &after.arguments), "{}", context());
            }
        }
        last = parts;
    }
    whole
}

#[test]
fn each_familys_calls_are_read_whole_and_in_every_split() {
    for Family { template: name, said, reasoning, content } in FAMILIES {
        let Some(template) = open(name) else { return };
        let answer = template.answer(&tools(), &Wanted::default(), false).unwrap();
        let parts = read_in_pieces(answer.reader.as_ref(), said, name);
        assert_eq!(arguments(&parts), [("turn_on".to_owned(), json!({ "name": "kitchen", "level": 3 }))], "{name}");
        assert_eq!((parts.reasoning.trim(), parts.content.trim()), (reasoning, content), "{name}");
    }
}

#[test]
fn several_calls_are_read_one_by_one() {
    let Some(template) = open("Qwen-Qwen3-0.6B") else { return };
    let answer = template.answer(&tools(), &Wanted::default(), false).unwrap();
    let said =
        format!("Both.\n{HERMES_CALL}\n<tool_call>\n{{\"name\": \"list_areas\", \"arguments\": {{}}}}\n</tool_call>");
    let parts = read_in_pieces(answer.reader.as_ref(), &said, "Qwen 3");
    let names: Vec<&str> = parts.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["turn_on", "list_areas"]);
    assert_eq!(parts.content.trim(), "Both.");
}

#[test]
fn without_tools_or_a_choice_of_none_calls_are_text() {
    let Some(template) = open("Qwen-Qwen3-0.6B") else { return };
    for (tools, choice) in [(tools(), ToolChoice::None), (Vec::new(), ToolChoice::Auto)] {
        let answer = template.answer(&tools, &wanting(choice), false).unwrap();
        assert_eq!(answer.rules.grammar, None);
        let parts = answer.reader.read(HERMES_CALL, true).unwrap();
        assert_eq!((parts.calls.len(), parts.content.as_str()), (0, HERMES_CALL));
    }
}

/// A bare grammar for a call allows any talk before it.
#[test]
fn a_demanded_call_begins_at_once_and_its_grammar_names_the_tools() {
    for Family { template: name, .. } in FAMILIES {
        let Some(template) = open(name) else { return };
        for (choice, has_other) in [(ToolChoice::Required, true), (ToolChoice::Named("turn_on".into()), false)] {
            let answer = template.answer(&tools(), &wanting(choice), false).unwrap();
            let grammar = answer.rules.grammar.as_ref().unwrap_or_else(|| panic!("{name} is not bound"));
            assert!(!grammar.is_lazy, "{name}");
            let root = grammar.text.lines().find_map(|line| line.strip_prefix("root ::= ")).unwrap();
            let outside = |root: &str| {
                let mut depth = 0;
                root.chars()
                    .filter(|&letter| {
                        depth += i32::from(letter == '(') - i32::from(letter == ')');
                        depth == 0
                    })
                    .collect::<String>()
            };
            assert!(!outside(root).contains("until-"), "{name}: {root}");
            assert!(grammar.text.contains("turn_on"), "{name}");
            assert_eq!(grammar.text.contains("list_areas"), has_other, "{name}");
        }
        assert!(template.answer(&tools(), &wanting(ToolChoice::Named("fly".into())), false).is_err(), "{name}");
    }
}

#[test]
fn a_templates_switch_for_thinking_is_found_and_used() {
    let Some(template) = open("Qwen-Qwen3-0.6B") else { return };
    assert!(template.switches_thinking());
    assert!(!open("meta-llama-Llama-3.1-8B-Instruct").unwrap().switches_thinking());
    let render = |is_on| {
        let wanted = Wanted { thinking: crate::request::Thinking { is_on, ..Default::default() }, ..Wanted::default() };
        let prepared = template.prepare(&[]).unwrap();
        prepared.render_at(&[Message::text(Role::User, "Hello")], true, 0, &wanted).unwrap()
    };
    assert!(render(Some(false)).ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(render(Some(true)), render(None));
    // What was opened for the model is no part of what it thinks.
    let wanted =
        Wanted { thinking: crate::request::Thinking { is_on: Some(false), ..Default::default() }, ..Wanted::default() };
    let answer = template.answer(&[], &wanted, false).unwrap();
    assert!(render(Some(false)).ends_with(&answer.opening), "{}", answer.opening);
    let parts = answer.reader.read("The oven is off.", true).unwrap();
    assert_eq!((parts.reasoning.as_str(), parts.content.as_str()), ("", "The oven is off."));
}

#[test]
fn names_that_a_template_gets_from_hob_are_no_clients() {
    let Some(template) = open("Qwen-Qwen3-0.6B") else { return };
    let with = |name: &str, json: &str| {
        let wanted = Wanted { template_args: vec![(name.into(), json.into())], ..Wanted::default() };
        template.answer(&[], &wanted, false).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(with("enable_thinking", "false"), Ok(()));
    assert_eq!(with("messages", "[]"), Err("chat_template_kwargs.messages: is not a client's to set".into()));
    assert_eq!(with("x", "{"), Err("chat_template_kwargs.x: is no JSON".into()));
    assert!(with("x", &"[".repeat(1_000)).is_err());
}

/// In a template that has no place for tools, the fallback's format binds and is read.
#[test]
fn the_fallbacks_calls_are_bound_and_read() {
    let model = smollm2();
    let template = model.template();
    assert!(!template.takes_tools());
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let answer = template.answer(&tools(), &wanting(choice.clone()), false).unwrap();
        assert_eq!(answer.rules.grammar.as_ref().unwrap().is_lazy, choice == ToolChoice::Auto);
        let parts = read_in_pieces(answer.reader.as_ref(), HERMES_CALL, "the fallback");
        assert_eq!(arguments(&parts), [("turn_on".to_owned(), json!({ "name": "kitchen", "level": 3 }))]);
    }
}

#[test]
fn a_schema_binds_the_whole_answer() {
    let template = smollm2().template();
    let schema = r#"{"type":"object","properties":{"room":{"type":"string"}},"required":["room"]}"#;
    for shape in [Shape::Json, Shape::Schema(schema.into())] {
        let answer = template.answer(&[], &Wanted { shape, ..Wanted::default() }, false).unwrap();
        let grammar = answer.rules.grammar.as_ref().unwrap();
        assert!(!grammar.is_lazy && grammar.origin == GrammarOrigin::Schema);
        let parts = answer.reader.read("{\"room\": \"attic\"}", true).unwrap();
        assert_eq!(parts.content, "{\"room\": \"attic\"}");
    }
    let own = |text: &str| {
        let wanted = Wanted { shape: Shape::Grammar(text.into()), ..Wanted::default() };
        template.answer(&[], &wanted, false).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(own("root ::= \"yes\" | \"no\""), Ok(()));
    assert!(own("root ::= missing").unwrap_err().starts_with("grammar: "));
    let both = Wanted { shape: Shape::Grammar("root ::= \"a\"".into()), ..Wanted::default() };
    assert!(
        template
            .answer(&tools(), &both, false)
            .unwrap_err()
            .to_string()
            .contains("cannot bind an answer that may call tools")
    );
}

/// Each is refused with its place, none takes long, none ends the process.
#[test]
fn schemas_that_cannot_bind_are_refused() {
    let template = smollm2().template();
    let nested = format!("{}{{}}{}", r#"{"type":"array","items":"#.repeat(200), "}".repeat(200));
    let shape = |schema: &str| {
        let wanted = Wanted { shape: Shape::Schema(schema.into()), ..Wanted::default() };
        template.answer(&[], &wanted, false).map(drop).map_err(|error| error.to_string())
    };
    for schema in [
        "{",
        "3",
        r#"{"type":"spaceship"}"#,
        r##"{"$ref":"#/$defs/missing"}"##,
        r#"{"type":"string","minLength":5,"maxLength":2}"#,
        r#"{"type":"array","items":{},"minItems":5,"maxItems":2}"#,
        r#"{"type":"string","minLength":2000000000}"#,
        r#"{"type":"object","properties":{"x":{"type":"number","multipleOf":3}}}"#,
        r#"{"anyOf":[{"type":"string"},{"not":{"type":"string"}}]}"#,
        r#"{"type":"object","propertys":{}}"#,
        r#"{"type":"string","pattern":"(a"}"#,
        r#"{"$ref":"https://example.com/schema.json"}"#,
        nested.as_str(),
    ] {
        let refused = shape(schema).expect_err(schema);
        assert!(refused.starts_with("response_format.json_schema.schema: "), "{schema}: {refused}");
    }
    // What refers to itself is fine: the grammar does, too.
    let tree =
        r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"next":{"$ref":"#/$defs/node"}}}}}"##;
    assert_eq!(shape(tree), Ok(()));
    let large =
        r#"{"type":"array","items":{"type":"array","items":{"type":"string"},"minItems":1000},"minItems":1000}"#;
    assert_eq!(shape(large), Ok(()));
    let tool = |parameters: &str| {
        let tool = format!(r#"{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}"#);
        let tools = [OTHER.to_owned(), tool];
        template.answer(&tools, &wanting(ToolChoice::Required), false).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(tool(r#"{"type":"object","properties":{"x":{}}}"#), Ok(()));
    for parameters in [r#"{"type":"object","properties":{"x":{"type":"spaceship"}}}"#, r##"{"$ref":"#/missing"}"##] {
        let refused = tool(parameters).expect_err(parameters);
        assert!(refused.starts_with("tools[1].function.parameters: "), "{refused}");
    }
}

#[test]
fn one_call_at_most_is_one() {
    for Family { template: name, .. } in FAMILIES {
        let Some(template) = open(name) else { return };
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            let wanted = Wanted { one_call: true, ..wanting(choice) };
            let answer = template.answer(&tools(), &wanted, false).unwrap();
            let Some(grammar) = &answer.rules.grammar else { continue };
            let mut calls =
                grammar.text.lines().filter(|line| line.starts_with("tool-call") || line.starts_with("root"));
            assert!(calls.all(|line| !line.ends_with(")+") && !line.ends_with(")*")), "{name}: {}", grammar.text);
        }
    }
}
