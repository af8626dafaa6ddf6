//! Adapters in a body, as llama-server's clients name them: `[{"id": 0, "scale": 0.5}]`, or by name in place of `id`.
//!
//! What a list does not name takes no part, and an empty list names none. Which adapters there are is not known here.

use serde::Deserialize;
use serde_json::Value;

use super::check_count;
use crate::http::error::ApiError;
use crate::request::{AdapterWish, N_ADAPTERS_MAX, Scale, WhichAdapter};

#[derive(Deserialize)]
struct Wire {
    id: Option<Value>,
    name: Option<String>,
    scale: Option<f64>,
}

/// `field`: where `list` stands.
pub(in crate::http) fn adapters(field: &str, list: Option<&[Value]>) -> Result<Option<Vec<AdapterWish>>, ApiError> {
    let Some(list) = list else { return Ok(None) };
    check_count(field, list.len(), 0, N_ADAPTERS_MAX)?;
    let numbered = list.iter().enumerate();
    numbered.map(|(index, value)| adapter(&format!("{field}[{index}]"), value)).collect::<Result<_, _>>().map(Some)
}

fn adapter(field: &str, value: &Value) -> Result<AdapterWish, ApiError> {
    let accepted = r#"must look like {"id": 0, "scale": 1.0}, or have "name" in place of "id""#;
    let wire: Wire = match value {
        Value::Object(_) => Wire::deserialize(value).map_err(|error| ApiError::field(field, error))?,
        other => return Err(ApiError::field(field, format!("{other}: {accepted}"))),
    };
    let which = match (wire.id, wire.name) {
        (Some(id), None) => match id.as_u64() {
            Some(number) => WhichAdapter::Number(number),
            None => return Err(ApiError::field(format!("{field}.id"), format!("{id}: must be an adapter's number"))),
        },
        (None, Some(name)) => WhichAdapter::Named(name),
        _ => return Err(ApiError::field(field, accepted)),
    };
    let most = Scale::MAX;
    let scale = |scale: f64| {
        let refused = || ApiError::field(format!("{field}.scale"), format!("{scale}: must be -{most} to {most}"));
        Scale::new(scale as f32).ok_or_else(refused)
    };
    Ok(AdapterWish { which, scale: wire.scale.map(scale).transpose()? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(list: Value) -> Result<Option<Vec<AdapterWish>>, String> {
        let Value::Array(list) = list else { unreachable!("tests write lists") };
        adapters("lora", Some(&list)).map_err(|error| error.to_string())
    }

    #[test]
    fn adapters_are_named_by_number_or_name() {
        let half = Scale::new(0.5);
        let named = [
            AdapterWish { which: WhichAdapter::Number(1), scale: half },
            AdapterWish { which: WhichAdapter::Named("butler".into()), scale: None },
        ];
        let list = json!([{"id": 1, "scale": 0.5}, {"name": "butler"}]);
        assert_eq!(read(list).unwrap().unwrap(), named);
        assert_eq!(read(json!([])).unwrap().unwrap(), [], "an empty list names none");
        assert_eq!(adapters("lora", None).unwrap(), None);
    }

    #[test]
    fn each_fault_is_told_with_its_place() {
        let refused = |list: Value| read(list).unwrap_err();
        let accepted = r#"must look like {"id": 0, "scale": 1.0}, or have "name" in place of "id""#;
        assert_eq!(refused(json!([0])), format!("lora[0]: 0: {accepted}"));
        assert_eq!(refused(json!([{"scale": 1}])), format!("lora[0]: {accepted}"));
        assert_eq!(refused(json!([{"id": 0, "name": "butler"}])), format!("lora[0]: {accepted}"));
        assert_eq!(refused(json!([{"id": -1}])), "lora[0].id: -1: must be an adapter's number");
        assert_eq!(refused(json!([{"id": 0.5}])), "lora[0].id: 0.5: must be an adapter's number");
        assert_eq!(refused(json!([{"id": 0}, {"id": 1, "scale": 1000.5}])), "lora[1].scale: 1000.5: must be -10 to 10");
        assert_eq!(refused(json!([{"id": 0, "scale": -11}])), "lora[0].scale: -11: must be -10 to 10");
        assert!(refused(json!([{"id": 0, "scale": "strong"}])).starts_with("lora[0]: "));
        assert_eq!(refused(json!(vec![json!({"id": 0}); 9])), "lora: has 9 entries: must have 0 to 8");
    }
}
