//! What dialects have in common when they read a body: JSON with the place of each fault, and the fields that they share.
//!
//! A *field* is one name in a body with its value. A fault names the field as the client wrote it. Nothing here knows what a
//! request as a whole looks like.

pub(super) mod adapters;
pub(super) mod content;
pub(super) mod parts;
pub(super) mod sampling;
pub(super) mod shape;
pub(super) mod thinking;
pub(super) mod tools;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;

/// Levels of arrays and objects. The deepest of Home Assistant's recorded requests has 10; each level costs stack where JSON
/// is read recursively, as chat templates may do.
const DEPTH_MAX: usize = 64;
/// A page of text here is a mistake.
const CACHE_SALT_BYTES_MAX: usize = 256;
/// Each generated piece of text is compared with each of them.
const STOP_MAX: usize = 16;

/// The body as text, not nested too deep to be read.
pub(super) fn text(body: &[u8]) -> Result<&str, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::body(format!("the body is not UTF-8 from byte {} on", error.valid_up_to())))?;
    check_depth(text).map_err(ApiError::body)?;
    Ok(text)
}

/// A value from JSON text; `place`: where in the body the text stands, with nothing for the body itself.
pub(super) fn from_json<T: DeserializeOwned>(text: &str, place: &str) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        // The root's path is a dot.
        let field = match path.as_str() {
            "." => place.to_owned(),
            _ if place.is_empty() => path,
            _ => format!("{place}.{path}"),
        };
        if !inner.is_data() {
            ApiError::body(format!("the body is not valid JSON: {inner}"))
        } else if field.is_empty() {
            ApiError::body(inner.to_string())
        } else {
            ApiError::field(field, inner)
        }
    })?;
    deserializer.end().map_err(|error| ApiError::body(format!("the body is not valid JSON: {error}")))?;
    Ok(value)
}

/// A body of one of hob's own routes, or a small one.
pub(super) fn body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    from_json(text(body)?, "")
}

/// Refuses JSON text nested deeper than the limit; cheap enough to come before parsing.
pub(super) fn check_depth(json: &str) -> Result<(), String> {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > DEPTH_MAX {
        return Err(format!("the JSON is nested {deepest} levels deep: at most {DEPTH_MAX} are allowed"));
    }
    Ok(())
}

/// What parts the prompts of one client; it is only hashed.
pub(super) fn salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    match salt {
        Some(salt) if salt.len() > CACHE_SALT_BYTES_MAX => {
            let reason = format!("has {} bytes: at most {CACHE_SALT_BYTES_MAX} are allowed", salt.len());
            Err(ApiError::field("cache_salt", reason))
        }
        salt => Ok(salt),
    }
}

/// Texts that end an answer; `field`: where they stand.
pub(super) fn stop(field: &str, stop: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match stop {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts,
        Some(text) => vec![text],
    };
    check_count(field, texts.len(), 0, STOP_MAX)?;
    texts
        .into_iter()
        .enumerate()
        .map(|(index, text)| match text {
            Value::String(text) if !text.is_empty() => Ok(text),
            other => Err(ApiError::field(
                format!("{field}[{index}]"),
                format!("{other}: must be a text of at least one character"),
            )),
        })
        .collect()
}

pub(super) fn number(field: &str, value: Option<f64>, min: f64, max: f64, default: f32) -> Result<f32, ApiError> {
    match value {
        None => Ok(default),
        Some(value) if (min..=max).contains(&value) => Ok(value as f32),
        Some(value) => Err(ApiError::field(field, format!("{value}: must be {min} to {max}"))),
    }
}

pub(super) fn integer(field: &str, value: Option<i64>, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
    match value {
        Some(value) if value < min => Err(ApiError::field(field, format!("{value}: must be at least {min}"))),
        Some(value) if value > max => Err(ApiError::field(field, format!("{value}: must be at most {max}"))),
        value => Ok(value),
    }
}

pub(super) fn check_count(field: &str, count: usize, min: usize, max: usize) -> Result<(), ApiError> {
    if (min..=max).contains(&count) {
        return Ok(());
    }
    Err(ApiError::field(field, format!("has {count} entries: must have {min} to {max}")))
}
