//! Parses what a chat request says about tools: their definitions, and whether one is to be called.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{check_count, from_json};
use crate::http::error::ApiError;
use crate::request::ToolChoice;

/// Far beyond what small models tell apart; the rules of an answer are built from all of them.
const TOOLS_MAX: usize = 256;
/// OpenAI's own limit.
const NAME_LETTERS_MAX: usize = 64;

/// The definitions as they were sent, each with a name of its own: reordered keys would be another prompt.
pub(in crate::http) fn read_all(tools: Vec<Box<RawValue>>) -> Result<Vec<String>, ApiError> {
    let names = tools.iter().enumerate().map(|(index, tool)| read(tool, &format!("tools[{index}]")));
    check_names(&names.collect::<Result<Vec<_>, _>>()?, "function.name", NAME_LETTERS_MAX)?;
    Ok(tools.into_iter().map(|tool| tool.get().to_owned()).collect())
}

/// Refuses too many tools, names that no model should have to write, and one name for two. `field`: where in a tool its name
/// stands.
pub(in crate::http) fn check_names(names: &[String], field: &str, n_letters_max: usize) -> Result<(), ApiError> {
    check_count("tools", names.len(), 0, TOOLS_MAX)?;
    // OpenAI and Anthropic have no dots in names; Home Assistant's custom integrations do.
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    let mut known = HashMap::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let place = || format!("tools[{index}].{field}");
        if name.is_empty() || name.len() > n_letters_max || !name.chars().all(is_fit) {
            let reason = format!("{name:?}: must be 1 to {n_letters_max} of a-z, A-Z, 0-9, _, - and .");
            return Err(ApiError::field(place(), reason));
        }
        if let Some(first) = known.insert(name, index) {
            return Err(ApiError::field(place(), format!("\"{name}\" is the name of tools[{first}], too")));
        }
    }
    Ok(())
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
    Ok(name)
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
