//! Checks the `[[model.adapter]]`s, and which of them a profile names.
//!
//! An *adapter* is a LoRA file that is loaded with the model. Its number, by which clients may name it, is its place in the file.

use toml::Value;

use super::Adapter;
use super::checked::Checker;
use super::raw::{Field, RawAdapter};
use crate::request::{AdapterSet, N_ADAPTERS_MAX, Scale};

impl Checker<'_> {
    pub(super) fn adapters(&mut self, key: &str, field: Option<Field<Vec<Value>>>) -> Vec<Adapter> {
        let values = match field {
            None => Vec::new(),
            Some(Field::Given(values)) => values,
            Some(Field::Other(value)) => {
                self.faults.value(key, value, format!("must be a list: write its head as [[{key}]]"));
                Vec::new()
            }
        };
        if values.len() > N_ADAPTERS_MAX {
            self.faults.key(key, format!("has {} entries; must have at most {N_ADAPTERS_MAX}", values.len()));
        }
        let mut adapters: Vec<Adapter> = Vec::new();
        for (index, value) in values.into_iter().take(N_ADAPTERS_MAX).enumerate() {
            let of = |name: &str| format!("{key}[{index}].{name}");
            let RawAdapter { name, path, scale, default } =
                RawAdapter::read(&format!("{key}[{index}]"), value, self.faults);
            let name = self.name(&of("name"), name);
            if let Some(name) = name.as_ref().filter(|name| adapters.iter().any(|other| other.name == **name)) {
                self.faults.value(of("name"), name.as_str(), "is the name of another adapter, too");
            }
            let path = self.path(&of("path"), path);
            let is_told = self.faults.mentions(&format!("{key}[{index}]"));
            for (missing, is_missing) in [("name", name.is_none()), ("path", path.is_none())] {
                if is_missing && !is_told && !self.faults.mentions(&of(missing)) {
                    self.faults.key(of(missing), "is missing: an adapter has a name and a GGUF file");
                }
            }
            // One with faults keeps its number, so that those of the others are right.
            adapters.push(Adapter {
                name: name.unwrap_or_default(),
                path: path.unwrap_or_default(),
                scale: self.scale(&of("scale"), scale),
                is_default: self.flag(&of("default"), default, false),
            });
        }
        adapters
    }

    /// The set of the adapters that a profile names, each with its own scale; `None`: it does not say.
    pub(super) fn adapter_set(
        &mut self,
        key: &str,
        field: Option<Field<Vec<String>>>,
        adapters: &[Adapter],
    ) -> Option<AdapterSet> {
        let names = self.texts(key, field)?;
        let mut set = AdapterSet::NONE;
        for name in names {
            match adapters.iter().position(|adapter| adapter.name == name) {
                Some(index) => set = set.with(index, adapters[index].scale),
                None => self.faults.value(key, name, "is the name of no [[model.adapter]]"),
            }
        }
        Some(set)
    }

    fn scale(&mut self, key: &str, field: Option<Field<f64>>) -> Scale {
        let (scale, value) = match field {
            None => return Scale::ONE,
            Some(Field::Given(scale)) => (Scale::new(scale as f32), Value::Float(scale)),
            Some(Field::Other(Value::Integer(whole))) => (Scale::new(whole as f32), Value::Integer(whole)),
            Some(Field::Other(value)) => (None, value),
        };
        scale.unwrap_or_else(|| {
            self.faults.value(key, value, format!("must be -{0:?} to {0:?}", Scale::MAX));
            Scale::ONE
        })
    }
}
