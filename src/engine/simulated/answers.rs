//! How the simulated model calls, thinks and is bound: a plain stand-in for what llama.cpp knows of real families.
//!
//! It thinks within `<think>` and calls as Hermes models do. Its grammar's notation is the answer itself: bound, it says the
//! grammar's text and ends. What it must say fits the schema as little as a schema can be fitted.

use serde_json::{Map, Value, json};

use crate::engine::{Answer, AnswerParts, AnswerReader, AnswerRules, EngineError, Grammar, GrammarOrigin, PlainReader};
use crate::request::{Shape, ToolCall, ToolChoice, Wanted};

use std::sync::Arc;

const THINKING: (&str, &str) = ("<think>", "</think>");
const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");

/// See `ChatTemplate::answer`.
pub(super) fn answer(tools: &[String], wanted: &Wanted) -> Result<Answer, EngineError> {
    let is_calling = !tools.is_empty() && wanted.tool_choice != ToolChoice::None;
    let bound = match (&wanted.tool_choice, &wanted.shape) {
        (ToolChoice::Required | ToolChoice::Named(_), _) if is_calling => {
            Some((call(tools, &wanted.tool_choice)?, GrammarOrigin::Tools))
        }
        (_, Shape::Free) => None,
        (_, Shape::Json) => Some(("{}".to_owned(), GrammarOrigin::Schema)),
        (_, Shape::Schema(text)) => Some((least(&read(text)?).to_string(), GrammarOrigin::Schema)),
        (_, Shape::Grammar(text)) => Some((text.clone(), GrammarOrigin::Client)),
    };
    let grammar = bound.map(|(text, origin)| Grammar::whole(text, origin));
    let reader: Arc<dyn AnswerReader> = if is_calling { Arc::new(Reader) } else { Arc::new(PlainReader) };
    Ok(Answer { rules: Arc::new(AnswerRules { grammar, ..AnswerRules::default() }), reader, opening: String::new() })
}

#[derive(Debug)]
struct Reader;

impl AnswerReader for Reader {
    fn read(&self, text: &str, is_whole: bool) -> Result<AnswerParts, EngineError> {
        let mut parts = AnswerParts::default();
        let mut rest = text;
        if let Some(thinking) = rest.strip_prefix(THINKING.0) {
            let (thought, behind) =
                thinking.split_once(THINKING.1).unwrap_or((settled(thinking, THINKING.1, is_whole), ""));
            parts.reasoning = thought.to_owned();
            rest = behind;
        } else if !is_whole && THINKING.0.starts_with(rest) {
            return Ok(parts);
        }
        let Some((content, mut calls)) = rest.split_once(CALL.0) else {
            parts.content = settled(rest, CALL.0, is_whole).to_owned();
            return Ok(parts);
        };
        parts.content = content.to_owned();
        loop {
            let (written, behind) = calls.split_once(CALL.1).unwrap_or((settled(calls, CALL.1, is_whole), ""));
            parts.calls.extend(read_call(written));
            match behind.split_once(CALL.0) {
                Some((_, next)) => calls = next,
                None => return Ok(parts),
            }
        }
    }
}

/// `text` without an end that may be the beginning of `mark`.
fn settled<'a>(text: &'a str, mark: &str, is_whole: bool) -> &'a str {
    let n_open = (1..mark.len()).rev().find(|&n| text.ends_with(&mark[..n])).unwrap_or(0);
    if is_whole { text } else { &text[..text.len() - n_open] }
}

/// `{"name":"…","arguments":…}`, or how it begins. The last brace is the call's own.
fn read_call(written: &str) -> Option<ToolCall> {
    let (_, named) = written.split_once("\"name\":")?;
    let (name, behind) = named.trim_start().strip_prefix('"')?.split_once('"')?;
    let (_, arguments) = behind.split_once("\"arguments\":")?;
    let arguments = arguments.trim();
    let is_whole = serde_json::from_str::<Value>(written).is_ok();
    let arguments =
        if is_whole { arguments.strip_suffix('}').unwrap_or(arguments) } else { arguments.trim_end_matches('}') };
    Some(ToolCall { id: None, name: name.to_owned(), arguments: arguments.trim_end().to_owned() })
}

fn call(tools: &[String], choice: &ToolChoice) -> Result<String, EngineError> {
    let tools = tools.iter().map(|tool| read(tool)).collect::<Result<Vec<_>, _>>()?;
    let is_it = |tool: &&Value| match choice {
        ToolChoice::Named(name) => tool["function"]["name"].as_str() == Some(name),
        _ => true,
    };
    let function = &tools.iter().find(is_it).ok_or_else(|| EngineError::Template("no such tool".into()))?["function"];
    let call = json!({ "name": function["name"], "arguments": least(&function["parameters"]) });
    Ok(format!("{}{call}{}", CALL.0, CALL.1))
}

/// The least value that `schema` allows, for the schemas of tests.
fn least(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(""),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(0)),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let properties = required.map(|name| (name.to_owned(), least(&schema["properties"][name])));
            Value::Object(properties.collect::<Map<_, _>>())
        }
    }
}

fn read(json: &str) -> Result<Value, EngineError> {
    serde_json::from_str(json).map_err(|error| EngineError::Template(format!("no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_and_in_every_split() {
        let said = "<think>Hm.</think>On it. <tool_call>{\"name\":\"a\",\"arguments\":{\"x\":{\"y\":1}}}</tool_call>\n\
                    <tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>";
        let whole = Reader.read(said, true).unwrap();
        let call = |name: &str, arguments: &str| ToolCall { id: None, name: name.into(), arguments: arguments.into() };
        let calls = vec![call("a", "{\"x\":{\"y\":1}}"), call("b", "{}")];
        assert_eq!(whole, AnswerParts { reasoning: "Hm.".into(), content: "On it. ".into(), calls });
        let mut last = AnswerParts::default();
        for (at, _) in said.char_indices() {
            let parts = Reader.read(&said[..at], false).unwrap();
            assert!(parts.reasoning.starts_with(&last.reasoning) && whole.reasoning.starts_with(&parts.reasoning));
            assert!(parts.content.starts_with(&last.content) && whole.content.starts_with(&parts.content));
            for (call, of_whole) in parts.calls.iter().zip(&whole.calls) {
                assert!(of_whole.arguments.starts_with(&call.arguments), "{call:?}");
            }
            for (before, after) in last.calls.iter().zip(&parts.calls) {
                assert!(after.arguments.starts_with(&before.arguments), "{before:?} {after:?}");
            }
            last = parts;
        }
    }

    #[test]
    fn what_it_must_say_fits_the_schema() {
        let tool = r#"{"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{
            "room":{"enum":["attic","cellar"]},"level":{"type":"integer"},"note":{"type":"string"}},"required":["room","level"]}}}"#;
        let wanted = Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() };
        let answer = answer(&[tool.to_owned()], &wanted).unwrap();
        let text = &answer.rules.grammar.as_ref().unwrap().text;
        let parts = answer.reader.read(text, true).unwrap();
        assert_eq!(parts.calls[0].arguments, r#"{"room":"attic","level":0}"#);
    }
}
