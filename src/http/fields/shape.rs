//! Parses the form that an answer must have: OpenAI's `response_format`, llama-server's `grammar` and `json_schema`.
//!
//! Whether a schema or a grammar can be obeyed is for the template to say; here it is only found.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::from_json;
use crate::http::error::ApiError;
use crate::request::Shape;

#[derive(Deserialize)]
struct Format {
    r#type: String,
    json_schema: Option<Named>,
    /// llama-server's: the schema of a `json_object`. Anthropic's: of a `json_schema`.
    schema: Option<Box<RawValue>>,
}

/// `strict` makes no difference: an answer always obeys its schema.
#[derive(Deserialize)]
struct Named {
    schema: Option<Box<RawValue>>,
}

pub(in crate::http) fn shape(
    format: Option<&RawValue>,
    grammar: Option<String>,
    json_schema: Option<&RawValue>,
) -> Result<Shape, ApiError> {
    let format = format.map_or(Ok(Shape::Free), |format| read_format(format.get()))?;
    let schema = json_schema.map(|schema| read_schema(schema, "json_schema")).transpose()?;
    let grammar = grammar.filter(|grammar| !grammar.is_empty()).map(Shape::Grammar);
    let given = [("response_format", Some(format).filter(|format| *format != Shape::Free))];
    let mut given = given.into_iter().chain([("json_schema", schema), ("grammar", grammar)]);
    let mut given = given.by_ref().filter_map(|(field, shape)| Some((field, shape?)));
    let Some((first, shape)) = given.next() else { return Ok(Shape::Free) };
    match given.next() {
        None => Ok(shape),
        Some((second, _)) => Err(ApiError::field(second, format!("an answer has one form: {first} is given, too"))),
    }
}

/// Ollama's `format`: "json", a schema, or nothing, which some clients write as an empty text.
pub(in crate::http) fn ollama(format: Option<&RawValue>) -> Result<Shape, ApiError> {
    match format.map_or("null", RawValue::get) {
        "null" | "\"\"" => Ok(Shape::Free),
        "\"json\"" => Ok(Shape::Json),
        text if text.starts_with('{') => Ok(Shape::Schema(text.to_owned())),
        other => Err(ApiError::field("format", format!("{other}: must be \"json\" or a schema"))),
    }
}

/// `text.format` of OpenAI's responses: a schema stands beside its type.
pub(in crate::http) fn responses(format: Option<&RawValue>) -> Result<Shape, ApiError> {
    #[derive(Deserialize)]
    struct Flat {
        r#type: String,
        schema: Option<Box<RawValue>>,
    }
    let Some(format) = format.filter(|format| format.get() != "null") else { return Ok(Shape::Free) };
    let Flat { r#type, schema } = from_json(format.get(), "text.format")?;
    match (r#type.as_str(), schema) {
        ("text", _) => Ok(Shape::Free),
        ("json_object", _) => Ok(Shape::Json),
        ("json_schema", Some(schema)) => read_schema(&schema, "text.format.schema"),
        ("json_schema", None) => Err(ApiError::field("text.format.schema", "is required")),
        (other, _) => {
            let reason = format!("\"{other}\": must be text, json_object or json_schema");
            Err(ApiError::field("text.format.type", reason))
        }
    }
}

fn read_format(format: &str) -> Result<Shape, ApiError> {
    let place = "response_format";
    let Format { r#type, json_schema, schema } = from_json(format, place)?;
    match r#type.as_str() {
        "text" => Ok(Shape::Free),
        "json_object" => match schema {
            None => Ok(Shape::Json),
            Some(schema) => read_schema(&schema, "response_format.schema"),
        },
        "json_schema" => {
            let place = "response_format.json_schema";
            let named = json_schema.ok_or_else(|| ApiError::field(place, "is required"))?;
            let place = "response_format.json_schema.schema";
            read_schema(&named.schema.ok_or_else(|| ApiError::field(place, "is required"))?, place)
        }
        other => {
            let reason = format!("\"{other}\": must be text, json_object or json_schema");
            Err(ApiError::field("response_format.type", reason))
        }
    }
}

/// The schema's own text: the order of its keys is the order of the answer's.
fn read_schema(schema: &RawValue, place: &str) -> Result<Shape, ApiError> {
    match schema.get() {
        text if text.starts_with('{') => Ok(Shape::Schema(text.to_owned())),
        // Anything.
        "true" => Ok(Shape::Schema("{}".to_owned())),
        _ => Err(ApiError::field(place, "must be an object")),
    }
}

/// Anthropic's form, which stands at `place`.
pub(in crate::http) fn anthropic(format: &RawValue, place: &str) -> Result<Shape, ApiError> {
    let Format { r#type, schema, .. } = from_json(format.get(), place)?;
    if r#type != "json_schema" {
        return Err(ApiError::field(format!("{place}.type"), format!("\"{type}\": must be \"json_schema\"")));
    }
    let place = format!("{place}.schema");
    read_schema(&schema.ok_or_else(|| ApiError::field(&place, "is required"))?, &place)
}
