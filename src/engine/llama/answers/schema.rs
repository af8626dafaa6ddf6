//! Which JSON schemas llama.cpp turns into a grammar whole.
//!
//! It ignores keywords that it does not know, and patterns that are not anchored: the answer would be free where its client
//! relies on it (common/json-schema-to-grammar.cpp). Such a schema is refused, with the place.

use serde_json::{Map, Value};

/// Keywords that bind, and are bound.
const BINDING: [&str; 22] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "definitions",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "oneOf",
    "pattern",
    "prefixItems",
    "properties",
    "required",
];

/// Keywords that say something to people, or that a grammar need not know.
const TELLING: [&str; 14] = [
    "$anchor",
    "$comment",
    "$id",
    "$schema",
    "default",
    "deprecated",
    "description",
    "examples",
    "format",
    "readOnly",
    "title",
    "type",
    "writeOnly",
    "nullable",
];

/// What of `schema` would not bind: where, and why.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    check_at(schema, "#")
}

fn check_at(schema: &Value, place: &str) -> Result<(), String> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    for (keyword, value) in keywords {
        match keyword.as_str() {
            "pattern" => {
                let pattern = value.as_str().unwrap_or_default();
                if !pattern.starts_with('^') || !pattern.ends_with('$') {
                    return Err(format!("{place}: the pattern {value} must begin with ^ and end with $"));
                }
            }
            "properties" | "$defs" | "definitions" => {
                let named = value.as_object().into_iter().flat_map(Map::iter);
                for (name, schema) in named {
                    check_at(schema, &format!("{place}/{keyword}/{name}"))?;
                }
            }
            "items" | "additionalProperties" if value.is_object() => check_at(value, &format!("{place}/{keyword}"))?,
            "items" | "prefixItems" | "anyOf" | "oneOf" | "allOf" => {
                for (index, schema) in value.as_array().into_iter().flatten().enumerate() {
                    check_at(schema, &format!("{place}/{keyword}/{index}"))?;
                }
            }
            known if BINDING.contains(&known) || TELLING.contains(&known) => {}
            unknown => return Err(format!("{place}: the keyword {unknown:?} cannot be kept here")),
        }
    }
    Ok(())
}
