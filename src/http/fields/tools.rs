//! Parses what a chat request says about tools: their definitions, and whether one is to be called.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{check_count, check_depth, from_json};
use crate::http::error::ApiError;
use crate::request::ToolChoice;

/// Far beyond what small models tell apart; the rules of an answer are built from all of them.
const TOOLS_MAX: usize = 256;
/// Anthropic's own limit; OpenAI's is 64.
const NAME_LETTERS_MAX: usize = 128;

/// The definitions as they were sent, each with a name of its own: reordered keys would be another prompt.
pub(in crate::http) fn read_all(tools: Vec<Box<RawValue>>) -> Result<Vec<String>, ApiError> {
    check_count("tools", tools.len(), 0, TOOLS_MAX)?;
    let mut names = HashMap::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let place = format!("tools[{index}]");
        let name = read(tool, &place)?;
        if let Some(first) = names.get(&name) {
            let reason = format!("\"{name}\" is the name of tools[{first}], too");
            return Err(ApiError::field(format!("{place}.function.name"), reason));
        }
        names.insert(name, index);
    }
    Ok(tools.into_iter().map(|tool| tool.get().to_owned()).collect())
}

/// The tool's name.
fn read(tool: &RawValue, place: &str) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct Tool {
        r#type: String,
        function: Function,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
    }

    let Tool { r#type, function: Function { name } } = from_json(tool.get(), place)?;
    if r#type != "function" {
        return Err(ApiError::field(format!("{place}.type"), format!("\"{type}\": must be \"function\"")));
    }
    // OpenAI has no dots in names; Home Assistant's custom integrations do.
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME_LETTERS_MAX || !name.chars().all(is_fit) {
        let reason = format!("{name:?}: must be 1 to {NAME_LETTERS_MAX} of a-z, A-Z, 0-9, _, - and .");
        return Err(ApiError::field(format!("{place}.function.name"), reason));
    }
    Ok(name)
}

/// Definitions as OpenAI's responses have them, in the form that chats have: what describes a function stands beside its type.
pub(in crate::http) fn read_flat(tools: Vec<Box<RawValue>>) -> Result<Vec<String>, ApiError> {
    check_count("tools", tools.len(), 0, TOOLS_MAX)?;
    let nested = tools.iter().enumerate().map(|(index, tool)| {
        let place = format!("tools[{index}]");
        let mut function: Map<String, Value> = from_json(tool.get(), &place)?;
        match function.shift_remove("type") {
            Some(Value::String(kind)) if kind == "function" => {}
            Some(Value::String(kind)) => {
                let reason = format!("\"{kind}\": only functions of the client's own are called from here");
                return Err(ApiError::field(format!("{place}.type"), reason));
            }
            _ => return Err(ApiError::field(format!("{place}.type"), "must be \"function\"")),
        }
        // It says how an answer is bound, and arguments always are.
        function.shift_remove("strict");
        let tool = json!({ "type": "function", "function": function }).to_string();
        Ok(RawValue::from_string(tool).expect("what was written as JSON is JSON"))
    });
    let nested = nested.collect::<Result<Vec<_>, ApiError>>()?;
    read_all(nested).map_err(|error| error.renamed(".function.", "."))
}

/// A call's arguments. OpenAI sends them as a string that holds JSON, other clients as the object itself. Either way the text
/// stays as it came, keys in their order: it was part of the prompt's next version, byte for byte.
pub(in crate::http) fn arguments(arguments: Option<&RawValue>, place: &str) -> Result<String, ApiError> {
    let Some(arguments) = arguments.map(RawValue::get) else { return Ok("{}".to_owned()) };
    if arguments.starts_with('{') {
        return Ok(arguments.to_owned());
    }
    if !arguments.starts_with('"') {
        return Err(ApiError::field(place, format!("{arguments}: must be an object, or a string that holds one")));
    }
    written_arguments(from_json(arguments, place)?, place)
}

/// The same, already out of their string.
pub(in crate::http) fn written_arguments(text: String, place: &str) -> Result<String, ApiError> {
    // Some clients send nothing where there are none.
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    // The body's own depth does not count what is inside a string; the chat template parses it all the same.
    check_depth(&text).map_err(|reason| ApiError::field(place, reason))?;
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(json) if json.get().starts_with('{') => Ok(text),
        Ok(_) => Err(ApiError::field(place, "must be a string that holds an object")),
        Err(error) => Err(ApiError::field(place, format!("must be a string that holds an object: {error}"))),
    }
}

/// Whether the tool that is named is there is for the planner to say, who knows the profiles' tools, too. The tools stay in
/// the prompt whatever the choice: without them it would be another prompt, reused by none.
pub(in crate::http) fn choice(choice: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    let fault = |field: &str, reason: String| Err(ApiError::field(field, reason));
    match (choice.as_str(), choice.get("type").and_then(Value::as_str)) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some("function")) => match choice["function"]["name"].as_str() {
            Some(name) if !name.is_empty() => Ok(ToolChoice::Named(name.to_owned())),
            _ => fault("tool_choice.function.name", "is required".to_owned()),
        },
        (None, Some("allowed_tools")) => {
            fault("tool_choice.type", "\"allowed_tools\" is not supported: send those tools alone".to_owned())
        }
        (None, Some(other)) => fault("tool_choice.type", format!("\"{other}\": must be \"function\"")),
        _ => {
            let form = r#"{"type": "function", "function": {"name": …}}"#;
            fault("tool_choice", format!("{choice}: must be \"auto\", \"none\", \"required\" or {form}"))
        }
    }
}
