//! Parses the definitions of tools, and whether one is to be called.
//!
//! Templates know OpenAI's form of a definition: each is written anew in that form, always with the same keys in the same order,
//! around the client's own bytes of its description and its schema.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::fields::content::{Mark, is_marked};
use crate::http::fields::{from_json, tools};
use crate::request::ToolChoice;

/// `defer_loading` makes no difference: all tools stand in the prompt, where the next request finds them again.
#[derive(Deserialize)]
struct Tool {
    r#type: Option<String>,
    name: String,
    description: Option<Box<RawValue>>,
    input_schema: Option<Box<RawValue>>,
    cache_control: Option<Mark>,
}

#[derive(Deserialize)]
pub(super) struct WireChoice {
    r#type: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

pub(super) fn read_all(definitions: Vec<Box<RawValue>>) -> Result<Vec<String>, ApiError> {
    let written = definitions.iter().enumerate().map(|(index, tool)| write(tool, &format!("tools[{index}]")));
    tools::read_all(written.collect::<Result<_, _>>()?).map_err(|error| error.renamed(".function.", "."))
}

/// The definition in OpenAI's form.
fn write(tool: &RawValue, place: &str) -> Result<Box<RawValue>, ApiError> {
    let Tool { r#type, name, description, input_schema, cache_control } = from_json(tool.get(), place)?;
    if let Some(kind) = r#type.filter(|kind| kind != "custom") {
        let reason = format!("\"{kind}\" is not here: only tools that bring an input_schema of their own are");
        return Err(ApiError::field(format!("{place}.type"), reason));
    }
    // There is no place in the prompt for a mark between tools; they stay as they are in any case.
    is_marked(cache_control.as_ref(), place)?;
    let schema = input_schema.ok_or_else(|| ApiError::field(format!("{place}.input_schema"), "is required"))?;
    if !schema.get().starts_with('{') {
        return Err(ApiError::field(format!("{place}.input_schema"), "must be an object"));
    }
    let description = match description.as_deref().map(RawValue::get) {
        None => String::new(),
        Some(text) if text.starts_with('"') => format!("\"description\":{text},"),
        Some(other) => return Err(ApiError::field(format!("{place}.description"), format!("{other}: must be a text"))),
    };
    let (name, schema) = (Value::from(name), schema.get());
    let function = format!("{{\"name\":{name},{description}\"parameters\":{schema}}}");
    let tool = format!("{{\"type\":\"function\",\"function\":{function}}}");
    Ok(RawValue::from_string(tool).expect("JSON put together is JSON"))
}

/// The choice, and whether it is of one call at most, if that is said.
pub(super) fn choice(choice: Option<WireChoice>) -> Result<(ToolChoice, Option<bool>), ApiError> {
    let Some(WireChoice { r#type, name, disable_parallel_tool_use }) = choice else {
        return Ok((ToolChoice::Auto, None));
    };
    let choice = match r#type.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => {
            let name = name.filter(|name| !name.is_empty());
            ToolChoice::Named(name.ok_or_else(|| ApiError::field("tool_choice.name", "is required"))?)
        }
        other => {
            let reason = format!("\"{other}\": must be auto, any, tool or none");
            return Err(ApiError::field("tool_choice.type", reason));
        }
    };
    Ok((choice, disable_parallel_tool_use))
}
